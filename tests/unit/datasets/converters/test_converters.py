"""Converters: gzip and zstd on the way, back again, and what is refused."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from replication.core.copying.conversions import converted_path, origins
from replication.core.copying.names import RelativePath
from replication.datasets.converters import compression
from replication.datasets.converters.plugins import conversions_of, converter_of
from replication.errors import CopyError
from tests.copying import copied, read_tree, write_tree

CONTENT = os.urandom(3 << 20) + bytes(3 << 20)


@pytest.mark.parametrize(("name", "back"), [("gzip", "gunzip"), ("zstd", "unzstd")])
@given(pieces=st.lists(st.binary(max_size=50), max_size=6))
def test_what_is_packed_is_unpacked_at_any_split(name: str, back: str, pieces: list[bytes]) -> None:
    packed = b"".join(converter_of(name)(pieces, 0))
    parts = [packed[at : at + 7] for at in range(0, len(packed), 7)]
    assert b"".join(converter_of(back)(parts, len(packed))) == b"".join(pieces)


def test_members_of_a_gzip_file_and_frames_of_zstd_are_unpacked_one_after_the_other() -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert b"".join(converter_of("gunzip")([packed], len(packed))) == b"onetwo"
    for size in (1, 7, 5000):  # a tape's last block is padded with zeros
        parts = [(packed + bytes(4000))[at : at + size] for at in range(0, len(packed) + 4000, size)]
        assert b"".join(converter_of("gunzip")(parts, len(packed))) == b"onetwo"
    for behind in (b"\0x", b"x", bytes(9) + gzip.compress(b"three")[:-1]):
        with pytest.raises(CopyError):
            list(converter_of("gunzip")([packed + behind], len(packed)))
    frames = zstandard.compress(b"one") + zstandard.compress(b"") + zstandard.compress(b"two")
    assert b"".join(converter_of("unzstd")([frames], len(frames))) == b"onetwo"


def test_a_zstd_file_that_unpacks_to_far_more_is_unpacked_in_bounded_pieces() -> None:
    content = bytes(64 << 20) + b"the end"
    packed = zstandard.compress(content)
    assert len(packed) < 10_000
    pieces = list(converter_of("unzstd")([packed], len(packed)))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 16 << 20


@pytest.mark.parametrize("size", [13, 70_000, 10 << 20])
def test_every_kind_of_zstd_frame_and_block_is_unpacked_however_it_is_cut(size: int) -> None:
    random = os.urandom(300_000)
    kinds = [{"write_checksum": checked, "write_content_size": sized} for checked in (0, 1) for sized in (0, 1)]
    skippable = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    packed, content = skippable, b""
    for kind in kinds:
        for each in (b"", b"x", bytes(200), bytes(400_000), random, b"ab" * 200_000):
            packed += zstandard.ZstdCompressor(**kind).compress(each) + skippable
            streamed = zstandard.ZstdCompressor(**kind).compressobj()
            packed += streamed.compress(each) + streamed.flush()
            content += each + each
    pieces = (packed[at : at + size] for at in range(0, len(packed), size))
    assert b"".join(converter_of("unzstd")(pieces, len(packed))) == content


def test_extensions_follow() -> None:
    path = RelativePath("a/b.csv.gz")  # 000-30
    assert converted_path(path, conversions_of(["gunzip"])) == "a/b.csv"
    assert converted_path(path, conversions_of(["gunzip", "zstd"])) == "a/b.csv.zst"
    assert converted_path(RelativePath("a/b.csv"), conversions_of(["gunzip"])) == "a/b.csv"
    assert converted_path(RelativePath("a/.gz"), conversions_of(["gunzip"])) == "a/.gz"


def test_files_are_unpacked_while_they_are_copied_and_not_copied_again(tmp_path: Path) -> None:
    # 000-9, 000-42
    packed = {
        "a/small.csv.gz": gzip.compress(b"x" * 1000),
        "a/large.bin.zst": zstandard.compress(CONTENT),
        "b": b"as it is",
    }
    write_tree(tmp_path / "src", packed)
    made = copied(
        tmp_path / "src", tmp_path / "dst", conversions=("gunzip", "unzstd"), range_bytes=1 << 20, verify=True
    )
    assert made.progress.counts.failures == {}
    assert read_tree(tmp_path / "dst") == {"a/small.csv": b"x" * 1000, "a/large.bin": CONTENT, "b": b"as it is"}
    again = copied(tmp_path / "src", tmp_path / "dst", conversions=("gunzip", "unzstd"))
    assert again.progress.counts.files_listed == 0


@pytest.mark.parametrize("name", ["gunzip", "unzstd"])
def test_a_bomb_and_what_is_no_such_file_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 1 << 20)  # 000-10
    bomb = {"gunzip": gzip.compress, "unzstd": zstandard.compress}[name](bytes(64 << 20))
    with pytest.raises(CopyError, match="times as much"):
        for _ in converter_of(name)([bomb], len(bomb)):
            pass
    with pytest.raises(CopyError, match="is no"):
        list(converter_of(name)([b"something else"], 14))


def test_a_gzip_file_that_is_cut_short_is_not_published(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a.gz": gzip.compress(CONTENT)[:-9]})
    counts = copied(tmp_path / "src", tmp_path / "dst", conversions=("gunzip",)).progress.counts
    assert "cut short" in counts.failures["a"]
    assert read_tree(tmp_path / "dst") == {}


@pytest.mark.parametrize("name", ["gunzip", "unzstd"])
def test_an_empty_file_is_no_packed_one_as_for_gzip_and_zstd_themselves(name: str) -> None:
    for pieces in ([], [b""]):
        with pytest.raises(CopyError, match="cut short"):
            list(converter_of(name)(pieces, 0))


def test_the_names_that_a_converted_file_can_have_had() -> None:
    gunzip, both, gzip = (conversions_of(names) for names in (["gunzip"], ["gunzip", "zstd"], ["gzip"]))
    assert origins(RelativePath("a/b"), gunzip) == ["a/b", "a/b.gz"]
    assert origins(RelativePath("a/b.gz"), gunzip) == ["a/b.gz.gz"]
    assert origins(RelativePath("a/b.zst"), both) == ["a/b", "a/b.gz"]
    assert origins(RelativePath("a/b.gz"), gzip) == ["a/b"]
    assert origins(RelativePath("a/b"), gzip) == ["a/b"], "no file becomes that"
    assert origins(RelativePath("a/.gz"), gzip) == ["a/.gz"]
