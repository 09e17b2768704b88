"""Received bootstraps are found in bounded memory: one sender's wait for each other, and for nobody else's."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest

from peer.bootstrap import received
from peer.bootstrap.received import ReceivedBootstraps
from peer.frames.hosts import HostReader, Hosts
from replication.core.coverage import Interval, Ranges
from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    Codec,
    FrameKind,
    SealedHeader,
    encode_envelope,
    encode_file_header,
    encode_sealed_header,
    stream_hash,
)
from replication.core.ids import ClusterId, FileId
from replication.core.routes.bootstrap import Coverage
from replication.ledger.base import FileKind, FileRow, Pending

OWN = ClusterId("west", UUID(int=1))
TABLE = UUID(int=9)


def landed(folder: Path, number: int, sender: str, frames: int, *, whole: bool = True, table: UUID = TABLE) -> Pending:
    """A landing file with a bootstrap of ``frames`` frames of rows and one of coverage, which takes two more places."""
    cluster = ClusterId(sender, UUID(int=2))
    source, file = FileId(cluster, "h0", number), FileId(OWN, "h0", number)
    coverage = Coverage.of(table, "default", {FileId(cluster, "h0", 0): (Interval(0, 7, ZERO_HASH, ZERO_HASH),)})
    content, previous = bytearray(encode_file_header(file, 1)), ZERO_HASH
    for sequence in range(frames + whole):
        is_last = sequence == frames
        payload, kind = (coverage.encode(), FrameKind.COVERAGE) if is_last else (b"rows", FrameKind.BOOTSTRAP)
        hashes = bytes(32), previous, sha256(payload).digest()
        place = table, "default", source, sequence, 1, 0, 0, 0
        header = encode_sealed_header(SealedHeader(kind, Codec.NONE, *place, *hashes, len(payload)))
        previous = stream_hash(header)
        content += encode_envelope((cluster, OWN), len(header) + len(payload)) + header + payload
    path = folder / f"{number}.wal"
    path.write_bytes(content)
    end = len(content)
    row = FileRow(file, FileKind.BOOTSTRAP, "h0", str(path), False, end, "", "", FILE_HEADER_BYTES, 1, 0, source)
    return Pending(row, FILE_HEADER_BYTES, end, Ranges(), {})


def numbers(found: ReceivedBootstraps, *pending: Pending) -> tuple[list[int], list[int]]:
    """The numbers of the files of whole bootstraps, and of those that wait."""
    with HostReader(Hosts()) as reader:
        whole, broken = found.whole(reader, pending)
        found.ended(reader, pending, {(part.row.source.cluster, TABLE) for part in pending if part.row.source})
    return sorted(file.number for each in whole for file in each.ranges), sorted(file.number for file in broken)


def test_later_bootstraps_of_a_sender_wait_for_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "_HELD_MAX", 8)
    one, two, other = landed(tmp_path, 1, "bad", 5), landed(tmp_path, 2, "bad", 2), landed(tmp_path, 3, "good", 5)
    found = ReceivedBootstraps()
    assert numbers(found, one, two, other) == ([1, 3], [2])
    assert numbers(found, two, other) == ([2, 3], [])


def test_what_grows_without_end_holds_a_bounded_number_of_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "_HELD_MAX", 8)
    found, later = ReceivedBootstraps(), landed(tmp_path, 2, "bad", 3)
    assert numbers(found, landed(tmp_path, 1, "bad", 1, whole=False), later) == ([2], [])
    for frames in (4, 50, 100):
        first = landed(tmp_path, 1, "bad", frames, whole=False)
        numbers(found, first, later)
        assert sum(len(seen.frames) for seen in found._seen.values()) <= 16
    assert numbers(found, first, later) == ([], [1, 2])
    assert numbers(found, later) == ([2], [])


def test_bootstraps_of_other_tables_are_not_asked_whether_they_cover_one_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a coverage of very many WALs, and of a thousand tables all may wait in every round."""
    asked: list[int] = []
    covers = received._covers
    monkeypatch.setattr(received, "_covers", lambda *given: asked.append(1) or covers(*given))
    others = [landed(tmp_path, number, "good", 2, table=UUID(int=number)) for number in range(10, 13)]
    part = landed(tmp_path, 1, "good", 2, whole=False)
    assert numbers(ReceivedBootstraps(), *others, part) == ([10, 11, 12], [])
    assert not asked
    assert numbers(ReceivedBootstraps(), *others, part, landed(tmp_path, 2, "bad", 2)) == ([2, 10, 11, 12], [])
    assert len(asked) == 1
