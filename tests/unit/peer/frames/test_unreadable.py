"""A file, or part of one, that the disk cannot read is an error of that file; accessing it would end the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from peer.frames import check as wal_check
from peer.frames import hosts
from peer.frames.check import check_file, open_wal
from peer.frames.decode import FrameRef, find_poison, plan_decode
from peer.frames.hosts import HostReader, Hosts
from peer.frames.select import Selector
from peer.receive.range_reads import RangeReads
from peer.repair.readable import find_readable
from replication.core.frame import FILE_HEADER_BYTES, FrameView
from replication.errors import PeerRefusedError, StorageError, VersionError
from replication.files import mapped
from replication.files.reading import MappedFrames
from replication.link.ranges import ReadAsk, decode_pieces, encode_ask
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed

LOCAL = HostReader(Hosts())
PAYLOAD = bytes(500_000)


@pytest.fixture
def wal(tmp_path: Path) -> OriginWal:
    """Three frames, each longer than what is asked of the disk at once."""
    ledger = new_ledger(tmp_path)
    spec = keyed("ops.one")
    ledger.tables.create(spec)
    made = OriginWal(ledger, tmp_path / "wal")
    for _ in range(3):
        made.frame(spec.uuid, "default", bytes(32), PAYLOAD, 1)
    made.register()
    return made


def cut(wal: OriginWal, frame: FrameView) -> None:
    """What lies after a frame's headers has no pages any more, as on a disk that cannot read them."""
    os.truncate(wal.path, frame.payload_begin)


def test_frames_of_a_mapped_file_whose_pages_are_gone_are_an_error(wal: OriginWal) -> None:
    frames = LOCAL.frames(str(wal.path), FILE_HEADER_BYTES, wal.registered)
    cut(wal, next(frames))
    with pytest.raises(StorageError, match=r"wal cannot be read: the disk cannot read"):
        next(frames)


def test_a_check_says_which_file_the_disk_does_not_give_and_goes_on_with_others(wal: OriginWal) -> None:
    whole = check_file(wal.path)
    assert (whole.frames, whole.problems) == (3, ())
    with open_wal(wal.path) as view:
        frames = view.frames()
        first = next(frames)
        cut(wal, first)
        with pytest.raises(StorageError, match="the disk cannot read"):
            view.payload(first)
        with pytest.raises(StorageError, match="the disk cannot read"):
            next(frames)


def test_a_check_tells_a_payload_that_cannot_be_read_as_a_problem(
    wal: OriginWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(mapping: Any, begin: int, end: int) -> None:
        if end - begin >= len(PAYLOAD):
            raise OSError(errno.EIO, "the disk cannot read all of it")

    monkeypatch.setattr(wal_check, "load_pages", bad)
    checked = check_file(wal.path)
    assert checked.frames == 0 and "the disk cannot read" in checked.problems[0]


def test_salvage_finds_the_frames_beside_one_that_cannot_be_read(
    wal: OriginWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = [(frame.begin, frame.end) for frame in LOCAL.frames(str(wal.path), FILE_HEADER_BYTES, wal.registered)]

    bad, given = sum(spans[1]) // 2, os.pread

    def pread(handle: int, count: int, at: int) -> bytes:
        if at <= bad < at + count:
            raise OSError(errno.EIO, "bad")
        return given(handle, count, at)

    monkeypatch.setattr(os, "pread", pread)
    found = find_readable(wal.row, wal.registered)
    assert [frame.begin for frame, _ in found.frames.values()] == [spans[0][0], spans[2][0]]


def test_salvage_does_not_give_up_a_frame_that_a_newer_walship_can_read(wal: OriginWal) -> None:
    _, frame, _ = LOCAL.frames(str(wal.path), FILE_HEADER_BYTES, wal.registered)
    content = bytearray(wal.path.read_bytes())
    envelope = content[frame.begin : frame.sealed_begin - 4]
    envelope[4] += 1  # its format version
    content[frame.begin : frame.sealed_begin] = envelope + google_crc32c.value(bytes(envelope)).to_bytes(4, "little")
    wal.path.write_bytes(content)
    with pytest.raises(VersionError, match="Upgrade walship here first"):
        find_readable(wal.row, wal.registered)


def test_bytes_of_a_mapped_file_whose_pages_are_gone_are_an_error(wal: OriginWal) -> None:
    spans = [(frame.begin, frame.end) for frame in LOCAL.frames(str(wal.path), FILE_HEADER_BYTES, wal.registered)]
    contents = LOCAL.read(str(wal.path), [spans[0], spans[2]])
    assert bytes(next(contents)) == wal.path.read_bytes()[slice(*spans[0])]
    os.truncate(wal.path, spans[0][1])
    with pytest.raises(StorageError, match="the disk cannot read"):
        next(contents)


def test_own_frames_that_the_disk_does_not_give_are_an_error(wal: OriginWal) -> None:
    read = MappedFrames(str(wal.path), FILE_HEADER_BYTES, wal.registered)
    frames = iter(read)
    first = next(frames)
    assert read.payload(first) == PAYLOAD
    cut(wal, first)
    with pytest.raises(StorageError, match="the disk cannot read"):
        next(frames)
    with pytest.raises(StorageError, match="the disk cannot read"):
        read.payload(first)


def test_a_receiver_asks_for_pages_before_it_gives_headers_of_them(
    wal: OriginWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads() -> bytes:
        ask = ReadAsk(wal.ledger.cluster, wal.row.file, ((FILE_HEADER_BYTES, wal.registered),), heads=True)
        return b"".join(decode_pieces(RangeReads(wal.ledger, wal.row.host).read(encode_ask(ask)), "h0"))

    frames = list(LOCAL.frames(str(wal.path), FILE_HEADER_BYTES, wal.registered))
    assert heads() == b"".join(wal.path.read_bytes()[frame.begin : frame.payload_begin] for frame in frames)

    def not_given(*_: Any) -> None:
        raise OSError(errno.EIO, "not given")

    monkeypatch.setattr(mapped, "load_pages", not_given)
    with pytest.raises(PeerRefusedError, match="cannot be read: .*not given"):
        heads()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_file_that_cannot_be_opened_holds_nothing_else_up(
    wal: OriginWal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    other, spec = OriginWal(wal.ledger, tmp_path / "wal"), keyed("ops.two")
    wal.ledger.tables.create(spec)
    other.upsert(spec, [{"k": "a", "v": 1}])
    other.register()

    def opened(path: str, *rest: Any) -> Iterator[bytes]:
        if path == str(wal.path):
            raise OSError(code, os.strerror(code), path)
        return open(path, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(hosts, "open", opened, raising=False)
    made = Selector(LOCAL, wal.ledger.replay.pending(), 1 << 30).shared()
    assert [error.what for error in made.broken.values()] == [f"{wal.path} cannot be read: {os.strerror(code)}"]
    assert list(made.broken) == [wal.row.file] and len(made.frames[spec.uuid]) == 1


def test_what_the_disk_does_not_give_is_not_taken_for_a_frame_that_cannot_be_decoded(
    wal: OriginWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = wal.ledger.tables.all()[0]
    frames = [FrameRef.of(str(wal.path), wal.row.file, f) for f in MappedFrames(str(wal.path), 256, wal.registered)]
    decode = plan_decode(spec, spec.versions.values(), frames, 1, 1, 1)

    def opened(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hosts, "open", opened, raising=False)
    with pytest.raises(StorageError, match="cannot be read"):
        find_poison(decode, frames)
