"""What ``status`` says of lost writes that a third cluster keeps, and of rows beyond a cut in its tables."""

from __future__ import annotations

from contextlib import closing
from uuid import UUID

from peer.status.roles import role_history
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId
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
        ledger.replay.quarantine(Quarantined(*place, "late", "/copy", 5, succession=str(told)), (of, 1))
        for waiting in (1, 0):
            (known,) = role_history(ledger, ledger.replay.quarantined()).successions
            assert (known.lost_writes, known.applied_here) == (waiting, 0)
            ledger.replay.discard(route.file, begin + FRAME, 6)


def test_a_successor_whose_ledger_was_made_anew_does_not_count_what_it_has_got_since() -> None:
    spec = table()
    of = stream(spec, wal())
    with closing(MemoryLedger(WEST)) as ledger:
        ledger.tables.create(spec)
        Route(ledger).land(claims(of, 0, 4, 0))  # east wrote on after it was ACTIVE again
        former = ClusterId("west", UUID(int=77))
        ledger.former = (former,)
        ledger.successions.record(Succession(EAST, former, 2, 7, is_planned=False, cut={of: Ranges.of((0, 2))}))
        assert [each.applied_here for each in role_history(ledger, ()).successions] == [0]


def test_lost_writes_that_land_later_do_not_hide_what_is_in_the_tables() -> None:
    spec = table()
    of = stream(spec, wal())
    with closing(MemoryLedger(WEST)) as ledger:
        ledger.tables.create(spec)
        route = Route(ledger)
        route.land(claims(of, 0, 2, 0))
        told = Succession(EAST, NORTH, 2, 7, is_planned=False, cut={of: Ranges.of((0, 1))})
        ledger.successions.record(told)
        late = route.at
        route.land(claims(of, 2, 4, 0))
        for n, begin in enumerate((late, late + FRAME), 2):
            place = route.file, begin, begin + FRAME, spec.uuid
            ledger.replay.quarantine(Quarantined(*place, "late", "/copy", 5, succession=str(told)), (of, n))
        (known,) = role_history(ledger, ledger.replay.quarantined()).successions
        assert (known.lost_writes, known.applied_here) == (2, 1)
