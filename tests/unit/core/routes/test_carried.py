"""What a route carries and requires, over any graph, and sequences that nobody upstream requires."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.frame import HOPS_MAX
from replication.core.ids import COUNT_END, ClusterId, FileId, StreamId
from replication.core.routes.carried import (
    SILENT_US,
    Carried,
    InboundRoute,
    acknowledged_onward,
    carried_onward,
    required_onward,
)
from replication.core.routes.required import RequiredFrom
from replication.ledger.sql.queries.freshness import by_group, routes_of
from replication.link.base import Hello, Route
from replication.link.wire import decode_request, encode_request
from tests.tables_made import keyed

TABLE = UUID(int=9)
A, B, C, D, E = (ClusterId(name, UUID(int=n)) for n, name in enumerate("abcde"))
NOW = 1_000 * SILENT_US


def route(
    source: ClusterId, *carried: Carried, last_seen: int = NOW, required_from: dict[FileId, int] | None = None
) -> InboundRoute:
    return InboundRoute(source, TABLE, "default", 1, required_from or {}, {}, carried, last_seen)


def wal(cluster: ClusterId, number: int = 0) -> FileId:
    return FileId(cluster, "h0", number)


def test_a_route_carries_what_its_source_receives_but_nothing_that_went_through_the_peer() -> None:
    coming = [route(B, Carried(A, (A, B))), route(C)]
    assert carried_onward(coming, D, E, NOW) == (
        Carried(A, (A, B, D)),
        Carried(B, (B, D)),
        Carried(C, (C, D)),
    )
    assert carried_onward(coming, D, B, NOW) == (Carried(C, (C, D)),)


def test_the_shortest_path_that_is_heard_is_told() -> None:
    direct, around = route(A), route(C, Carried(A, (A, B, C)))
    assert carried_onward([around, direct], D, E, NOW)[0] == Carried(A, (A, D))
    silent = route(A, last_seen=NOW - SILENT_US - 1)
    assert carried_onward([around, silent], D, E, NOW)[0] == Carried(A, (A, B, C, D))
    assert carried_onward([silent], D, E, NOW)[0] == Carried(A, (A, D), silent.last_seen)


def test_a_path_that_is_too_long_for_the_peer_is_not_told_since_the_peer_would_refuse_the_whole_route() -> None:
    hops = tuple(ClusterId(f"n{number}", UUID(int=number)) for number in range(HOPS_MAX - 2))
    longest, shorter = Carried(A, (A, *hops, B)), Carried(E, (E, *hops[1:], B))
    found = carried_onward([route(B, longest, shorter)], C, D, NOW)
    assert [each.origin for each in found] == [B, E] and max(len(each.path) for each in found) == HOPS_MAX


def test_silence_anywhere_on_the_path_is_told_with_its_earliest_time() -> None:
    (found,) = [c for c in carried_onward([route(B, Carried(A, (A, B), 77))], C, D, NOW) if c.origin == A]
    assert found.silent_since == 77
    last_seen = NOW - 2 * SILENT_US
    (both,) = [
        c for c in carried_onward([route(B, Carried(A, (A, B), 77), last_seen=last_seen)], C, D, NOW) if c.origin == A
    ]
    assert both.silent_since == 77


def test_of_others_no_more_is_owed_than_comes_in() -> None:
    first, second = (
        route(A, required_from={wal(A): 7, wal(A, 1): 3}),
        route(B, Carried(A, (A, B)), required_from={wal(A): 5}),
    )
    assert required_onward([first], D, {}) == {wal(A): 7, wal(A, 1): 3}
    assert required_onward([first, second], D, {}) == {wal(A): 5}
    assert required_onward([first, second], D, {wal(A): 9}) == {wal(A): 9}
    assert required_onward([first, second], A, {}) == {wal(A): 5}


def test_of_others_wals_that_had_ended_for_every_route_have_ended_onward() -> None:
    early, late = (RequiredFrom({wal(A, 1): 4}, [wal(A, n)]) for n in (5, 9))
    first, second = replace(route(A), required_from=early), replace(route(B, Carried(A, (A, B))), required_from=late)
    own = RequiredFrom({}, [wal(C, 3)])
    assert required_onward([first, second], D, own) == RequiredFrom({wal(A, 1): 4}, [wal(A, 5), wal(C, 3)])
    found = required_onward([first, second], D, own)
    assert [found.get(wal(A, n), 0) for n in (0, 1, 4, 5)] == [COUNT_END, 4, COUNT_END, 0]
    assert required_onward([first, route(B, Carried(A, (A, B)))], D, {}) == RequiredFrom({})
    assert required_onward([first, replace(route(B), required_from=late)], D, {}).ended == (wal(A, 5),)


def test_a_wal_that_has_ended_for_who_brings_it_is_not_listed_since_another_route_lists_it() -> None:
    """The next cluster refused the whole stream: the number that stands for what has ended is none that it reads."""
    ended = replace(route(B, Carried(A, (A, B))), required_from=RequiredFrom({}, [wal(A, 5)]))
    other = route(E, required_from={wal(A, 1): 3})  # its sender has frames of the WAL, but brings none any more
    found = required_onward([ended, other], D, {})
    assert found == RequiredFrom({}, [wal(A, 5)]) and found.get(wal(A, 1), 0) == COUNT_END
    spec = keyed("ops.t")
    hello = Hello(C, D, 1, "1", (Route(spec, "default", spec.name, 1, found),))
    assert decode_request(encode_request(hello)) == hello


def test_a_route_that_does_not_bring_an_origin_lowers_nothing() -> None:
    assert required_onward([route(A, required_from={wal(A): 7}), route(B)], D, {}) == {wal(A): 7}


def test_what_was_given_up_at_its_origin_is_waived_onward_too() -> None:
    one, two = Ranges.of((3, 5)), Ranges.of((4, 9))
    first = replace(route(A), acknowledged={wal(A): one})
    second = replace(route(B, Carried(A, (A, B))), acknowledged={wal(A): two, wal(C): one})
    assert acknowledged_onward([route(A), route(B)], D) == {}
    assert acknowledged_onward([first, route(B, Carried(A, (A, B)))], D) == {wal(A): one}
    assert acknowledged_onward([first, second], D) == {wal(A): Ranges.of((3, 9))}, (
        "C's frames do not come by that route"
    )
    assert acknowledged_onward([first, second], A) == {wal(A): two}


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda e: e[0] != e[1]), max_size=12), st.data())
def test_in_any_graph_news_settle_on_who_can_be_reached(edges: set[tuple[int, int]], data: st.DataObject) -> None:
    """Each cluster ends knowing the origins that have a way to it, also after routes have gone."""
    clusters = (A, B, C, D, E)
    carried: dict[tuple[int, int], tuple[Carried, ...]] = {}

    def settle() -> None:
        for _ in range(12):
            before = dict(carried)
            for one, two in data.draw(st.permutations(sorted(edges))):
                coming = [route(clusters[s], *carried.get((s, one), ())) for s, p in edges if p == one]
                carried[one, two] = carried_onward(coming, clusters[one], clusters[two], NOW)
            if carried == before:
                return
        raise AssertionError("news did not settle")

    def known(at: int) -> set[ClusterId]:
        coming = [route(clusters[s], *carried.get((s, at), ())) for s, p in edges if p == at]
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


def test_what_a_route_requires_is_found_in_time_that_grows_with_its_wals_and_not_with_what_it_carries() -> None:
    """A peer declares both lists, and every stream that is opened to another peer goes through them."""
    begun_s = time.thread_time()
    others = [ClusterId(f"n{number}", UUID(int=number)) for number in range(1000)]
    coming = route(A, *(Carried(each, (each, A)) for each in others), required_from={wal(B, n): 1 for n in range(5000)})
    assert required_onward([coming], D, {}) == {}
    gaps = {each: Ranges.of((0, 1)) for each in coming.required_from}
    assert acknowledged_onward([replace(coming, acknowledged=gaps)], D) == {}
    assert time.thread_time() - begun_s < 1


def test_what_a_stream_requires_takes_no_longer_for_what_is_lost_of_others() -> None:
    lost = replace(route(A), acknowledged={wal(A, number): Ranges.of((0, 2)) for number in range(100_000)})
    begun_s = time.thread_time()
    for number in range(2000):
        stream = StreamId(wal(A, number), TABLE, "default")
        (found,) = routes_of(stream, by_group([lost]), {})
        assert found.required(stream.wal, 3) == Ranges.of((2, 4))
    assert time.thread_time() - begun_s < 1
