"""Which files may be deleted (rule 2)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.retention import FileFacts, PeerHold, held_by, past_budget
from replication.core.status import FileState, ReplicationStatus

EAST = ClusterId("east", UUID(int=1))
FILE = FileId(EAST, "h0", 1)
APPLIED = ReplicationStatus(FileState.CLOSED, 128, 1000, Ranges.of((128, 1000)), 1000)
FINISHED = replace(APPLIED, applied=500)
PARTIAL = replace(APPLIED, shipped=Ranges.of((128, 400), (500, 1000)), applied=0)


def facts(*peers: ReplicationStatus, past: bool = False, **changes: object) -> FileFacts:
    holds = tuple(PeerHold(f"p{number}", status, past) for number, status in enumerate(peers))
    return replace(FileFacts(FILE, True, 1000, 1000, holds), **changes)  # type: ignore[arg-type]


def test_a_bootstrap_pins_files_from_its_begin_on() -> None:
    before = replace(APPLIED, begin=APPLIED.needed)
    pinned = FileFacts(FILE, True, 1000, 1000, (PeerHold("west", APPLIED, past_budget=True, bootstrapping=True),))
    assert held_by(pinned) == ("a table is being bootstrapped at west",)
    assert not held_by(replace(pinned, peers=(PeerHold("west", before, bootstrapping=True),)))


def test_a_file_that_all_have_applied_goes() -> None:
    assert not held_by(facts(APPLIED, APPLIED))
    assert not held_by(facts())


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (facts(APPLIED, FINISHED), "p1 has not applied 500 bytes"),
        (facts(PARTIAL, APPLIED), "p0 lacks 100 bytes"),
        (facts(APPLIED, closed=False), "it is OPEN"),
        (facts(APPLIED, replayed=999), "the own replay has 1 bytes to go"),
        (facts(APPLIED, replayed=None, registered=900), "100 bytes are not registered yet"),
    ],
)
def test_a_file_stays_and_says_why(held: FileFacts, why: str) -> None:
    assert held_by(held) == (why,)


def test_a_peer_that_the_rules_name_and_that_reported_nothing_holds_the_file() -> None:
    assert held_by(facts(ReplicationStatus(FileState.CLOSED, 128, 1000)))


def test_past_the_budget_finished_suffices_but_nothing_less() -> None:
    assert not held_by(facts(FINISHED, past=True))
    assert held_by(facts(PARTIAL, past=True))


def test_a_cluster_without_tables_has_no_own_replay_to_wait_for() -> None:
    assert not held_by(facts(APPLIED, replayed=None))


def test_the_budget_gives_up_the_oldest_files_and_no_more_than_it_must() -> None:
    files = [(FileId(EAST, "h0", number), 100) for number in range(5)]
    assert past_budget(files, 500) == frozenset()
    assert past_budget(files, 499) == {files[0][0]}
    assert past_budget(files, 250) == {file for file, _ in files[:3]}
    assert past_budget(files, 0) == {file for file, _ in files}
