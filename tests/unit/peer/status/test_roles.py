"""What ``status`` says of lost writes that a third cluster keeps, and of rows beyond a cut in its tables."""

from __future__ import annotations

from contextlib import closing

from peer.status.roles import role_history
from replication.core.coverage import Ranges
from replication.core.succession import Succession
from replication.ledger.base import Quarantined
from tests.contract.ledger_stores import EAST, FRAME, NORTH, WEST, Route, claims, stream, table, wal
from tests.fakes.ledger import MemoryLedger


def test_lost_writes_that_were_discarded_are_not_said_to_be_in_the_tables() -> None:
    spec = table()
    of = stream(spec, wal())
    with closing(MemoryLedger(WEST)) as ledger:
        ledger.tables.create(spec)
        route = Route(ledger)
        begin = route.at
        route.land(claims(of, 0, 2, 0))
        told = Succession(EAST, NORTH, 2, 7, is_planned=False, cut={of: Ranges.of((0, 1))})
        ledger.successions.record(told)
        assert [each.applied_here for each in role_history(ledger, ()).successions] == [1]
        place = route.file, begin + FRAME, begin + 2 * FRAME, spec.uuid
        kept = Quarantined(*place, "late", "/copy", 5, succession=str(told))
        discarded = Quarantined(*place, "late", "/copy", 5, discarded=6, succession=str(told))
        for frame, waiting in ((kept, 1), (discarded, 0)):
            (known,) = role_history(ledger, [frame]).successions
            assert (known.lost_writes, known.applied_here) == (waiting, 0)
