"""What must hold whenever a file is deleted."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.retention import FileFacts, PeerHold, held_by, past_budget
from replication.core.status import FileState, ReplicationStatus, combine

FILE = FileId(ClusterId("east", UUID(int=1)), "h0", 1)
LENGTH = 300
spans = st.lists(st.tuples(st.integers(128, LENGTH), st.integers(128, LENGTH)), max_size=4).map(Ranges.union_of)
statuses = st.builds(
    ReplicationStatus,
    st.just(FileState.CLOSED),
    st.just(128),
    st.just(LENGTH),
    st.one_of(spans, st.just(Ranges.of((128, LENGTH)))),
    st.one_of(st.integers(0, LENGTH), st.just(LENGTH)),
)
holds = st.builds(PeerHold, st.sampled_from(("west", "south")), statuses, st.booleans())
facts = st.builds(
    FileFacts,
    st.just(FILE),
    st.booleans(),
    st.just(LENGTH),
    st.one_of(st.none(), st.integers(0, LENGTH), st.just(LENGTH)),
    st.lists(holds, max_size=3).map(tuple),
)


@given(facts)
def test_no_file_goes_whose_bytes_a_named_peer_lacks_or_that_is_open_or_unreplayed(file: FileFacts) -> None:
    if not held_by(file):
        assert file.closed
        assert file.replayed is None or file.replayed >= file.length
        for hold in file.peers:
            assert hold.status.shipped.contains(128, LENGTH)
            assert hold.past_budget or hold.status.applied >= LENGTH


@given(facts, statuses)
def test_one_more_peer_in_the_rules_never_frees_a_file(file: FileFacts, status: ReplicationStatus) -> None:
    more = replace(file, peers=(*file.peers, PeerHold("new", status)))
    assert not held_by(file) or held_by(more)


@given(facts, statuses)
def test_what_may_go_still_may_after_any_further_report(file: FileFacts, report: ReplicationStatus) -> None:
    later = tuple(replace(hold, status=combine(hold.status, report)) for hold in file.peers)
    assert held_by(file) or not held_by(replace(file, peers=later))


@given(st.lists(st.integers(1, 1000), max_size=20), st.integers(0, 5000))
def test_past_a_budget_the_oldest_go_and_what_stays_fits(sizes: list[int], budget: int) -> None:
    waiting = [(replace(FILE, number=number), size) for number, size in enumerate(sizes)]
    salvaged = past_budget(waiting, budget)
    kept = [size for file, size in waiting if file not in salvaged]
    assert sum(kept) <= budget
    assert sorted(file.number for file in salvaged) == list(range(len(salvaged)))
    if salvaged:
        assert sum(kept) + sizes[len(salvaged) - 1] > budget, "no file goes that the budget had room for"
