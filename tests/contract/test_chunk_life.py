"""The life of a chunk, over the real ledger and planner: needed, assigned, revoked, finished, applied, retired."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.shipping.chunk import Assignment, ChunkAssignment
from replication.core.shipping.planner import (
    Assign,
    HostView,
    Limits,
    PeerView,
    Plan,
    PlannerInput,
    RetryLater,
    Revoke,
    plan,
)
from replication.core.shipping.retention import RetentionPolicy
from replication.ledger.base import FileKind, Ledger, PeerProgress
from replication.retries import Backoff
from tests.contract.ledger_stores import FRAME, HEADER, NORTH, claims, peer, stream, table

FLIGHTS = table()
FRAMES = 40
END = HEADER + FRAMES * FRAME
LIMITS = Limits(range_bytes=1000, streams=2, worker_grace_s=5.0)
KEEPS_NO_TABLES = RetentionPolicy(keeps_tables=False)


@dataclass
class Master:
    """Plans with what the ledger says, and keeps the assignments."""

    ledger: Ledger
    hosts: tuple[HostView, ...] = (HostView("h0"), HostView("h1"))
    backoff: Backoff = field(default_factory=Backoff)
    assigned: dict[str, Assignment] = field(default_factory=dict)

    def round(self) -> Plan:
        made = plan(
            PlannerInput(
                now_s=50.0,
                hosts=self.hosts,
                peers=(PeerView("north", NORTH, receivers=("r:1",), backoff=self.backoff),),
                files=tuple(self.ledger.files.lacking()),
                assigned=self.assigned,
            ),
            LIMITS,
        )
        self.assigned |= made.assignments
        for host in self.hosts:
            for row in self.ledger.files.retirable(host.slot, KEEPS_NO_TABLES):
                self.ledger.files.retire(row.file, 0, KEEPS_NO_TABLES)
        return made

    def worker_is_absent(self, slot: str, for_s: float) -> None:
        self.hosts = tuple(replace(host, absent_s=for_s if host.slot == slot else 0.0) for host in self.hosts)

    def chunks(self, slot: str) -> tuple[ChunkAssignment, ...]:
        return self.assigned[slot].chunks

    @property
    def ranges(self) -> Ranges:
        return Ranges.union_of((c.begin, c.end) for each in self.assigned.values() for c in each.chunks)


@pytest.fixture
def master(ledger: Ledger) -> Master:
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    return Master(ledger)


@pytest.fixture
def file(master: Master) -> FileId:
    """A large CLOSED file of h0."""
    made = master.ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    master.ledger.registration.register_own(made, HEADER, END, claims(stream(FLIGHTS, made), 0, FRAMES, HEADER))
    master.ledger.files.close(made, END)
    return made


def report(master: Master, file: FileId, shipped: Ranges, applied: int = 0, losses: int = 0) -> None:
    kept = shipped if losses else Ranges()
    master.ledger.files.record([PeerProgress(file, "north", shipped, applied, losses=losses, kept=kept)])


def work(made: Plan, kind: type[Assign | Revoke]) -> list[ChunkAssignment]:
    chunks = [decision.work for decision in made.decisions if isinstance(decision, kind)]
    return [chunk for chunk in chunks if isinstance(chunk, ChunkAssignment)]


def test_a_chunk_from_needed_to_retired(master: Master, file: FileId) -> None:  # 004-35
    assert work(master.round(), Assign) and master.ranges == Ranges.of((HEADER, END)), "needed, so assigned"
    assert master.chunks("h0") and not master.chunks("h1")
    settled = master.round()
    assert not work(settled, Assign) and not work(settled, Revoke) and not settled.assignments

    lost = master.chunks("h0")
    master.worker_is_absent("h0", 60.0)
    revoked = master.round()
    assert sorted(work(revoked, Revoke)) == sorted(lost) and not work(revoked, Assign)
    assert revoked.fence and not master.ranges

    report(master, file, Ranges.of((lost[0].begin, lost[0].end)))
    master.worker_is_absent("h0", 0.0)
    again = master.round()
    assert sorted(work(again, Assign)) == sorted(lost[1:]), "the first was finished by the worker that had it before"
    assert not work(again, Revoke) and not again.fence

    report(master, file, Ranges.of((HEADER, END)))
    master.round()
    assert not master.ranges and master.ledger.files.get(file) is not None, "finished, not applied"

    report(master, file, Ranges.of((HEADER, END)), applied=END)
    master.round()
    assert master.ledger.files.get(file) is None, "applied, so retired"
    assert master.ledger.files.lacking() == []
    assert not master.round().decisions


def test_a_chunk_waits_while_its_peer_fails_and_is_needed_again_when_the_peer_loses_it(
    master: Master, file: FileId
) -> None:  # 004-35
    master.backoff = Backoff(3, 100.0)
    waiting = master.round()
    assert RetryLater("north", 100.0, "it failed 3 times in a row") in waiting.decisions
    assert not work(waiting, Assign) and not master.ranges
    master.backoff = Backoff()
    master.round()
    assert master.ranges == Ranges.of((HEADER, END))

    report(master, file, Ranges.of((HEADER, END)))
    master.round()
    assert not master.ranges
    report(master, file, Ranges.of((HEADER, 1000)), losses=1)
    master.round()
    assert master.ranges == Ranges.of((1000, END)), "what the peer lost is needed again"
