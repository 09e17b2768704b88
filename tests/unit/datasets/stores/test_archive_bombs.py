"""Archives that were made to take far more memory or time than they have bytes are refused, whole."""

from __future__ import annotations

import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.datasets.converters.plugins import conversions_of
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.request import copy_job
from tests.copying import read_tree, write_tree
from tests.hostile import memory_below

END = bytes(2 * tarfile.BLOCKSIZE)


def unpacked(at: Path) -> CopyCounts:
    configuration = CopyConfiguration(conversions=conversions_of(["untar", "unzip"]))
    with copy_job(str(at / "src"), str(at / "dst"), configuration) as job:
        return job.run()


def header(kind: bytes, content: bytes) -> bytes:
    """A header of the members that follow, or of the next one."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(content)
    return info.tobuf() + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def record(name: str, value: str) -> bytes:
    rest = f" {name}={value}\n".encode()
    size = next(size for size in range(len(rest), len(rest) + 9) if len(str(size)) + len(rest) == size)
    return f"{size}".encode() + rest


def members(count: int) -> bytes:
    return b"".join(tarfile.TarInfo(f"{number:04}").tobuf() for number in range(count)) + END


def test_headers_of_a_tar_archive_of_which_far_more_memory_would_be_made_are_refused(tmp_path: Path) -> None:
    """Each name of the first may be the rest of it. Of the second each member would get a copy."""
    shared = b"".join(record(f"k{number:05}", "") for number in range(10_000))
    long = tarfile.TarInfo("name")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 128 << 20
    tars = {
        "a.tar": header(tarfile.XHDTYPE, b"2 " * 20_000 + b"=") + members(1),
        "b.tar": header(tarfile.XGLTYPE, shared) + members(300),
        "c.tar": header(tarfile.XHDTYPE, record("comment", "1" * 30_000)) + members(1),
        "d.tar": long.tobuf(),
    }
    write_tree(tmp_path / "src", {**tars, "e": b"fine"})
    os.truncate(tmp_path / "src/d.tar", 129 << 20)
    with memory_below(64):
        counts = unpacked(tmp_path)
    assert set(counts.failures) == {"a", "b", "c", "d"}
    assert all("is not an archive that can be read" in reason for reason in counts.failures.values())
    assert read_tree(tmp_path / "dst") == {"e": b"fine"}


def test_usual_headers_of_a_tar_archive_count(tmp_path: Path) -> None:
    own = record("path", "n" * 150) + record("mtime", "1600000000.5") + record("SCHILY.xattr.user.a", "b\n=\n1 c")
    shared = header(tarfile.XGLTYPE, record("comment", "all"))
    for name, padding in (("a", b""), ("b", b"\0\0")):
        tars = {f"{name}.tar": shared + header(tarfile.XHDTYPE, own + padding) + members(1)}
        write_tree(tmp_path / "src", tars)
    assert unpacked(tmp_path).failures == {}
    assert read_tree(tmp_path / "dst") == {f"{name}/{'n' * 150}": b"" for name in "ab"}
    assert os.stat(tmp_path / "dst/a" / ("n" * 150)).st_mtime == 1_600_000_000.5


def test_of_a_zip_archive_that_lists_too_many_members_not_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.converters.archives.MEMBERS_MAX", 1000, raising=False)
    listed = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"x"
    count = 200_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, count * len(listed), 0, 0)
    write_tree(tmp_path / "src", {"a.zip": listed * count + end, "b": b"fine"})
    with memory_below(64):
        counts = unpacked(tmp_path)
    assert "it has more than 1,000 members" in counts.failures["a"]
    assert read_tree(tmp_path / "dst") == {"b": b"fine"}


def test_a_member_of_a_zip_archive_that_says_to_be_small_is_not_unpacked_in_memory(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    size = 64 << 20
    with zipfile.ZipFile(tmp_path / "src/a.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("zeros", bytes(size))
    content = (tmp_path / "src/a.zip").read_bytes()
    assert len(content) < 1000 and content.count(struct.pack("<L", size)) == 2
    write_tree(
        tmp_path / "src", {"a.zip": content.replace(struct.pack("<L", size), struct.pack("<L", 9)), "b": b"fine"}
    )
    with memory_below(40):
        counts = unpacked(tmp_path)
    assert "'zeros' is not packed by deflate" in counts.failures["a"]
    assert read_tree(tmp_path / "dst") == {"b": b"fine"}


def test_a_tar_archive_with_a_size_below_zero_is_refused(tmp_path: Path) -> None:
    """It was told to have changed while it was copied; or its members were read again and again."""
    for name, size in (("a", "-5"), ("b", "-1024")):
        tar = header(tarfile.XHDTYPE, record("size", size)) + members(1)
        write_tree(tmp_path / "src", {f"{name}.tar": tar, "c": b"fine"})
    counts = unpacked(tmp_path)
    assert set(counts.failures) == {"a", "b"}
    assert all("has a size below zero" in reason for reason in counts.failures.values())
    assert read_tree(tmp_path / "dst") == {"c": b"fine"}


def test_an_archive_whose_members_are_in_ever_new_deep_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such member of two kilobytes took five megabytes of memory."""
    monkeypatch.setattr("replication.datasets.stores.archives._FOLDERS_BYTES_MAX", 16 << 20, raising=False)
    (tmp_path / "src").mkdir()
    with tarfile.open(tmp_path / "src/a.tar", "w") as archive:
        for number in range(20):
            archive.addfile(tarfile.TarInfo(f"{number}/{'f/' * 1000}x"))
    write_tree(tmp_path / "src", {"b": b"fine"})
    with memory_below(64):
        counts = unpacked(tmp_path)
    assert "too many folders, or too deep" in counts.failures["a"]
    assert read_tree(tmp_path / "dst") == {"b": b"fine"}
