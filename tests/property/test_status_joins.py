"""The ledger's joins are ``core.status.combine``: reports over the real SQL give the status that it gives."""

from __future__ import annotations

from functools import reduce
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.status import FileState, ReplicationStatus, combine
from replication.ledger.base import FileKind, Ledger, PeerProgress
from tests.contract.ledger_stores import EAST, FLIGHTS, FRAME, HEADER, claims, peer, stream
from tests.fakes.ledger import MemoryLedger

FRAMES = 8
END = HEADER + FRAMES * FRAME
offsets = st.integers(HEADER, END)
reports = st.tuples(st.lists(st.tuples(offsets, offsets), max_size=4).map(Ranges.union_of), offsets)
_writers = count()


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """East sends flights to north; every example adds a file."""
    made: Ledger = MemoryLedger(EAST)
    made.tables.create(FLIGHTS)
    made.rules.define(peer(), 0)
    made.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    return made


def written(ledger: Ledger, frames: int, *, closed: bool) -> FileId:
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", f"writer{next(_writers)}").file
    end = HEADER + frames * FRAME
    ledger.registration.register_own(file, HEADER, end, claims(stream(FLIGHTS, file), 0, frames, HEADER))
    if closed:
        ledger.files.close(file, end)
    return file


@given(st.lists(reports, min_size=1, max_size=6), st.integers(1, FRAMES), st.booleans(), st.booleans(), st.randoms())
def test_reports_in_any_order_over_sql_give_what_combine_gives(  # 004-21, 004-24
    ledger: Ledger,
    seen: list[tuple[Ranges, int]],
    frames: int,
    closed: bool,
    at_once: bool,
    random: Random,
) -> None:
    end = HEADER + frames * FRAME
    here = [(shipped.within(HEADER, end), min(applied, end)) for shipped, applied in seen]
    file = written(ledger, frames, closed=closed)
    sent = [PeerProgress(file, "north", shipped, applied) for shipped, applied in here]
    sent += random.sample(sent, random.randrange(len(sent) + 1))  # some come twice
    random.shuffle(sent)
    for batch in [sent] if at_once else [[report] for report in sent]:
        ledger.files.record(batch)
    state = FileState.CLOSED if closed else FileState.OPEN
    known = ReplicationStatus(state, HEADER, end)
    wanted = reduce(combine, (ReplicationStatus(state, HEADER, end, *report) for report in here), known)
    (found,) = [status for name, _, status in ledger.files.statuses("north") if name == file]
    assert found == wanted
    assert (found.finished, found.remaining) == (wanted.finished, wanted.remaining)
