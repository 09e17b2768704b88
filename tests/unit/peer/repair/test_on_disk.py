"""Files of frames on this host's disk, whatever their names: each is taken, or kept where quarantined frames are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from peer.repair.on_disk import on_disk, save_whole
from replication.errors import RequestError
from replication.files.local import LocalFiles
from tests.sites import SCHEMA, Site, Wal, rows, table


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path, "east")
    made.ledger.tables.create(table())
    return made


def _damage(path: Path, content: bytes) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return str(path)


def test_damaged_files_that_share_a_number_or_have_none_are_all_kept(site: Site) -> None:
    wal_dir, landing_dir = site.config.wal_dir, site.config.landing_dir
    names = [wal_dir / "a.wal", wal_dir / "b.wal", wal_dir / f"{7:012d}.wal", landing_dir / f"{7:012d}.wal"]
    contents = {_damage(path, str(path).encode()): str(path).encode() for path in names}
    files = LocalFiles()
    found, damaged, upcoming = on_disk(site.config, files)
    assert (found, damaged.keys(), upcoming) == ([], contents.keys(), 8)
    save_whole(site.config, site.config.ledger_url, files, damaged)
    kept = {path.read_bytes() for path in (site.config.data_dir / "quarantine").iterdir()}
    assert kept == set(contents.values()) and not any(path.exists() for path in names)


def test_what_an_attempt_that_was_killed_has_kept_already_is_not_kept_twice(site: Site) -> None:
    path = _damage(site.config.wal_dir / f"{3:012d}.wal", b"damaged")
    quarantine = site.config.data_dir / "quarantine"
    quarantine.mkdir()
    (quarantine / f"h0-{3:012d}.wal").hardlink_to(path)
    save_whole(site.config, site.config.ledger_url, LocalFiles(), {path: "damaged"})
    assert [kept.name for kept in quarantine.iterdir()] == [f"h0-{3:012d}.wal"]


@pytest.mark.parametrize(("tail", "is_whole"), [(b"", True), (b"\0" * 3, True), (b"\0\1", False), (b"\1", False)])
@pytest.mark.parametrize("frames", [0, 2])
def test_space_that_was_reserved_when_the_process_was_killed_is_no_damage(
    site: Site, frames: int, tail: bytes, is_whole: bool
) -> None:
    wal = Wal(site, "w0")
    for _ in range(frames):
        wal.append(table(), rows(0, 5))
    with open(wal.path, "ab") as file:
        file.write(bytes(2 << 20) + tail)
    found, damaged, _ = on_disk(site.config, LocalFiles())
    assert [(each.path, len(each.claims), each.length) for each in found] == [(wal.path, frames, wal.length)] * is_whole
    assert list(damaged) == [wal.path] * (not is_whole)


@pytest.mark.parametrize("name", ["\N{SUPERSCRIPT TWO}", "9" * 20, "x"])
def test_a_name_that_is_no_number_of_a_file_does_not_count_as_one(site: Site, name: str) -> None:
    wal, other = Wal(site, "w0"), Wal(site, "w1")
    for each in (wal, other):
        each.append(table(), rows(0, 5))
    odd = Path(other.path).rename(site.config.wal_dir / f"{name}.wal")
    found, damaged, upcoming = on_disk(site.config, LocalFiles())
    assert {each.path for each in found} == {wal.path, str(odd)} and not damaged
    assert upcoming == wal.file.number + 1
    newer, _, _ = on_disk(site.config, LocalFiles(), since=wal.file.number)
    assert [each.path for each in newer] == [wal.path], "nothing tells that it is newer than the ledger"


def test_a_copy_of_a_file_beside_it_is_refused(site: Site) -> None:
    wal = Wal(site, "w0")
    wal.append(table(), rows(0, 5))
    _damage(site.config.wal_dir / "copy.wal", Path(wal.path).read_bytes())
    with pytest.raises(RequestError, match=r"copy\.wal are both"):
        on_disk(site.config, LocalFiles())


def test_of_a_file_with_a_bad_sector_the_frames_around_it_are_saved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal, given = Wal(site, "w0"), os.pread
    for key in range(3):
        wal.append(table(), pa.table({"id": [key], "text": [os.urandom(20_000).hex()]}, schema=SCHEMA))
    bad = Path(wal.path).stat().st_size // 2

    def pread(handle: int, count: int, at: int) -> bytes:
        if at <= bad < at + count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return given(handle, count, at)

    monkeypatch.setattr(os, "pread", pread)
    found, damaged, _ = on_disk(site.config, LocalFiles())
    assert not found and damaged == {wal.path: f"cannot read {wal.path}: Input/output error"}
    (line,) = save_whole(site.config, site.config.ledger_url, LocalFiles(), damaged)
    assert "(2 of 2 frames saved" in line
