"""What a host gives other hosts of its cluster: headers, and bytes of frames, each read in its turn."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peer.receive import range_reads
from peer.receive.range_reads import OPEN_MAX, RangeReads
from replication.core.frame import FILE_HEADER_BYTES, FrameView, scan
from replication.errors import PeerRefusedError
from replication.link.ranges import ReadAsk, decode_pieces, encode_ask, reassemble
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


@pytest.fixture
def wal(tmp_path: Path) -> OriginWal:
    ledger = new_ledger(tmp_path)
    spec = keyed("ops.one")
    ledger.tables.create(spec)
    made = OriginWal(ledger, tmp_path / "wal")
    made.upsert(spec, [{"k": "a", "v": 1}])
    made.register()
    return made


def test_a_host_answers_before_its_disk_has_given_the_headers(wal: OriginWal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks takes a host for gone that says nothing for five seconds, and then asks for the same again."""
    scanned: list[int] = []

    def slow(_: object, begin: int, end: int) -> Iterator[FrameView]:
        scanned.append(begin)
        yield from scan(wal.path.read_bytes()[:end], begin)

    monkeypatch.setattr(range_reads, "scan_mapped", slow)
    span = (FILE_HEADER_BYTES, wal.registered)
    replies = RangeReads(wal.ledger, wal.row.host).read(
        encode_ask(ReadAsk(wal.ledger.cluster, wal.row.file, (span,), heads=True))
    )
    first = next(replies)
    assert not scanned
    (frame,) = scan(wal.path.read_bytes()[: wal.registered], FILE_HEADER_BYTES)
    heads = wal.path.read_bytes()[frame.begin : frame.payload_begin]
    assert b"".join(decode_pieces([first, *replies], "h0")) == heads


def test_a_read_beyond_those_that_are_served_is_answered_at_once_and_waits_for_its_turn(
    wal: OriginWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tasks of a Spark application with more cores would fail together, again and again."""
    span = (FILE_HEADER_BYTES, wal.registered)
    ask = encode_ask(ReadAsk(wal.ledger.cluster, wal.row.file, (span,)))
    reads = RangeReads(wal.ledger, wal.row.host)
    served = [iter(reads.read(ask)) for _ in range(OPEN_MAX)]
    for each in served:
        next(each)
    waits = iter(reads.read(ask))
    first = next(waits)
    with ThreadPoolExecutor(1) as threads:
        rest = threads.submit(list, waits)
        served.pop().close()
        pieces = decode_pieces([first, *rest.result(120)], "h0")
        assert list(reassemble(pieces, [span], "h0")) == [wal.path.read_bytes()[slice(*span)]]
    served.append(iter(reads.read(ask)))
    next(served[-1])
    monkeypatch.setattr(range_reads, "_WAIT_S", 0.01)
    with pytest.raises(PeerRefusedError, match="reads already"):
        list(decode_pieces(reads.read(ask), "h0"))
