"""What a road carries and owes: path-vector news over any graph, and sequences that nobody upstream is owed."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.routes.routes import SILENT_US, Carried, InboundRoad, carried_onward, owed_onward, waived_onward

TABLE = UUID(int=9)
A, B, C, D, E = (ClusterId(name, UUID(int=n)) for n, name in enumerate("abcde"))
NOW = 1_000 * SILENT_US


def road(source: ClusterId, *carried: Carried, heard: int = NOW, owed: dict[FileId, int] | None = None) -> InboundRoad:
    return InboundRoad(source, TABLE, "default", 1, owed or {}, {}, carried, heard)


def wal(cluster: ClusterId, number: int = 0) -> FileId:
    return FileId(cluster, "h0", number)


def test_a_road_carries_what_its_source_receives_but_nothing_that_went_through_the_peer() -> None:
    coming = [road(B, Carried(A, (A, B))), road(C)]
    assert carried_onward(coming, D, E, NOW) == (
        Carried(A, (A, B, D)),
        Carried(B, (B, D)),
        Carried(C, (C, D)),
    )
    assert carried_onward(coming, D, B, NOW) == (Carried(C, (C, D)),)


def test_the_shortest_path_that_is_heard_is_told() -> None:
    direct, around = road(A), road(C, Carried(A, (A, B, C)))
    assert carried_onward([around, direct], D, E, NOW)[0] == Carried(A, (A, D))
    silent = road(A, heard=NOW - SILENT_US - 1)
    assert carried_onward([around, silent], D, E, NOW)[0] == Carried(A, (A, B, C, D))
    assert carried_onward([silent], D, E, NOW)[0] == Carried(A, (A, D), silent.heard)


def test_silence_anywhere_on_the_path_is_told_with_its_earliest_time() -> None:
    (found,) = [c for c in carried_onward([road(B, Carried(A, (A, B), 77))], C, D, NOW) if c.origin == A]
    assert found.silent_since == 77
    heard = NOW - 2 * SILENT_US
    (both,) = [c for c in carried_onward([road(B, Carried(A, (A, B), 77), heard=heard)], C, D, NOW) if c.origin == A]
    assert both.silent_since == 77


def test_of_others_no_more_is_owed_than_comes_in() -> None:
    first, second = road(A, owed={wal(A): 7, wal(A, 1): 3}), road(B, Carried(A, (A, B)), owed={wal(A): 5})
    assert owed_onward([first], D, {}) == {wal(A): 7, wal(A, 1): 3}
    assert owed_onward([first, second], D, {}) == {wal(A): 5}
    assert owed_onward([first, second], D, {wal(A): 9}) == {wal(A): 9}
    assert owed_onward([first, second], A, {}) == {wal(A): 5}


def test_a_road_that_does_not_bring_an_origin_lowers_nothing() -> None:
    assert owed_onward([road(A, owed={wal(A): 7}), road(B)], D, {}) == {wal(A): 7}


def test_what_was_given_up_at_its_origin_is_waived_onward_too() -> None:
    one, two = Ranges.of((3, 5)), Ranges.of((4, 9))
    first = replace(road(A), waived={wal(A): one})
    second = replace(road(B, Carried(A, (A, B))), waived={wal(A): two, wal(C): one})
    assert waived_onward([road(A), road(B)], D) == {}
    assert waived_onward([first, road(B, Carried(A, (A, B)))], D) == {wal(A): one}
    assert waived_onward([first, second], D) == {wal(A): Ranges.of((3, 9))}, "C's frames do not come by that road"
    assert waived_onward([first, second], A) == {wal(A): two}


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda e: e[0] != e[1]), max_size=12), st.data())
def test_in_any_graph_news_settle_on_who_can_be_reached(edges: set[tuple[int, int]], data: st.DataObject) -> None:
    """Each cluster ends knowing the origins that have a way to it, also after roads have gone."""
    clusters = (A, B, C, D, E)
    carried: dict[tuple[int, int], tuple[Carried, ...]] = {}

    def settle() -> None:
        for _ in range(12):
            before = dict(carried)
            for one, two in data.draw(st.permutations(sorted(edges))):
                coming = [road(clusters[s], *carried.get((s, one), ())) for s, p in edges if p == one]
                carried[one, two] = carried_onward(coming, clusters[one], clusters[two], NOW)
            if carried == before:
                return
        raise AssertionError("news did not settle")

    def known(at: int) -> set[ClusterId]:
        coming = [road(clusters[s], *carried.get((s, at), ())) for s, p in edges if p == at]
        return {c.origin for r in coming for c in r.paths(NOW)} - {clusters[at]}

    def reachable(at: int) -> set[ClusterId]:
        found = {at}
        for _ in clusters:
            found |= {source for source, peer in edges if peer in found}
        return {clusters[n] for n in found - {at}}

    settle()
    assert all(known(at) == reachable(at) for at in range(5))
    if edges:
        gone = data.draw(st.sampled_from(sorted(edges)))
        edges.discard(gone)
        carried.pop(gone, None)
        settle()
        assert all(known(at) == reachable(at) for at in range(5))
