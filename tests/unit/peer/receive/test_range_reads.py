"""What a host gives other hosts of its cluster: more reads than it serves at once wait for their turn."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peer.receive import range_reads
from peer.receive.range_reads import OPEN_MAX, RangeReads
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import PeerRefusedError
from replication.link.ranges import ReadAsk, decode_pieces, encode_ask, reassemble
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


def test_a_read_beyond_those_that_are_served_is_answered_at_once_and_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tasks of a Spark application with more cores would fail together, again and again."""
    ledger = new_ledger(tmp_path)
    spec = keyed("ops.one")
    ledger.tables.create(spec)
    wal = OriginWal(ledger, tmp_path / "wal")
    wal.upsert(spec, [{"k": "a", "v": 1}])
    wal.register()
    span = (FILE_HEADER_BYTES, wal.registered)
    ask = encode_ask(ReadAsk(ledger.cluster, wal.row.file, (span,)))
    reads = RangeReads(ledger, wal.row.host)
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
