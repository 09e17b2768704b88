"""Chains, rings, diamonds and master-master: each edit once on each cluster, over whatever routes it came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from peer.status.collect import collect
from peer.status.members import members_of
from peer.status.paths import silent_path_messages
from replication.core.definition.schema import TableSpec
from replication.errors import WaitTimeoutError
from tests.graphs import Graph
from tests.sites import table
from tests.waiting import wait_until

Draw = Callable[..., Graph]


@pytest.fixture
def draw(tmp_path: Path) -> Iterator[Draw]:
    with ExitStack() as stack:

        def make(routes: str, *specs: TableSpec, start: bool = True) -> Graph:
            graph = Graph(tmp_path, stack, routes, *specs)
            if start:
                graph.define()
                graph.start()
            return graph

        yield make


def ring(count: int) -> str:
    names = "abcde"[:count]
    return " ".join(f"{one}>{two}" for one, two in zip(names, names[1:] + names[0], strict=True))


def agree(graph: Graph, spec: TableSpec, rows: dict[int, str]) -> None:
    """All clusters show exactly these rows, and every version is once in each change log."""
    for node in graph.nodes.values():
        assert node.rows(spec) == rows, node.name
        assert len(set(graph.versions(spec)[node.name])) == len(graph.versions(spec)[node.name]), node.name
    assert len({tuple(versions) for versions in graph.versions(spec).values()}) == 1
    assert len({node.content(spec) for node in graph.nodes.values()}) == 1


def test_a_chain_passes_frames_on_and_rewrites_only_envelopes(draw: Draw) -> None:
    spec = table()
    graph = draw("a>b b>c c>d", spec)
    rows = {}
    for n in range(5):
        rows[n] = f"row {n}"
        position = graph["a"].write(spec, {n: rows[n]})
    graph["a"].wait(position, graph["d"])
    agree_from = {name: graph[name].rows(spec) for name in "abcd"}
    assert all(found == rows for found in agree_from.values())
    sealed = {name: [raw for _, raw in graph[name].landed(spec)] for name in "bcd"}
    assert sealed["b"] == sealed["c"] == sealed["d"]
    through = {name: {tuple(c.name for c in f.provenance) for f, _ in graph[name].landed(spec)} for name in "bcd"}
    assert through == {"b": {("a", "b")}, "c": {("a", "b", "c")}, "d": {("a", "b", "c", "d")}}


@pytest.mark.parametrize("count", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_in_a_ring_edits_of_all_are_once_on_each(draw: Draw, count: int) -> None:
    spec = table()
    graph = draw(ring(count), spec)
    rows, positions = {}, []
    for n, node in enumerate(list(graph.nodes.values()) * 3):
        rows[n] = f"row {n} of {node.name}"
        positions.append((node, node.write(spec, {n: rows[n]})))
    for node, position in positions[-count:]:
        for other in graph.nodes.values():
            if other is not node:
                node.wait(position, other)
                other.wait(position)
        node.wait(position)
    agree(graph, spec, rows)
    for node in graph.nodes.values():
        assert all(node.cluster not in frame.provenance[:-1] for frame, _ in node.landed(spec))


def test_two_masters_of_the_same_keys_end_the_same(draw: Draw) -> None:
    spec = table()
    graph = draw("a>b b>a", spec)
    for n in range(20):
        one = graph["a"].write(spec, {k: f"a {n}" for k in range(5)})
        two = graph["b"].write(spec, {k: f"b {n}" for k in range(5)})
    for node in graph.nodes.values():
        node.wait(one)
        node.wait(two)
    assert graph["a"].rows(spec) == graph["b"].rows(spec)
    agree(graph, spec, graph["a"].rows(spec))


def test_what_comes_by_two_routes_counts_once_and_goes_on_once(draw: Draw) -> None:
    spec = table()
    graph = draw("a>b a>c b>d c>d d>e", spec)
    rows = {}
    for n in range(30):
        rows[n] = f"row {n}"
        position = graph["a"].write(spec, {n: rows[n]})
    graph["a"].wait(position, graph["e"])
    wait_until(lambda: len(graph["d"].landed(spec)) == 60, what="both routes have delivered to d")
    all_is_sent(graph)
    agree(graph, spec, rows)
    assert len(graph["e"].landed(spec)) == 30


def all_is_sent(graph: Graph) -> None:
    """Wait until everything registered by now that may go on is durable there."""
    for source, peer in graph.routes:
        found = graph[source].ledger.files.statuses(peer)
        wanted = {(file, rule.table): status.needed for file, rule, status in found}

        def is_there(source: str = source, peer: str = peer, wanted: dict[object, int] = wanted) -> bool:
            now = {(f, rule.table): s.finished for f, rule, s in graph[source].ledger.files.statuses(peer)}
            return all(now[key] >= needed for key, needed in wanted.items())

        wait_until(is_there, what=f"{source} has sent all to {peer}")


@pytest.mark.slow
def test_in_a_full_mesh_no_route_brings_a_frame_more_than_once(draw: Draw) -> None:
    spec = table()
    names = "abcd"
    graph = draw(" ".join(f"{one}>{two}" for one in names for two in names if one != two), spec)
    rows, positions = {}, []
    for n in range(12):
        node = graph[names[n % 4]]
        rows[n] = f"row {n}"
        positions.append(node.write(spec, {n: rows[n]}))
    for node in graph.nodes.values():
        for position in positions[-4:]:
            node.wait(position)
    all_is_sent(graph)
    agree(graph, spec, rows)
    for node in graph.nodes.values():
        by_route = Counter((f.provenance[-2], f.header.stream, f.header.sequence) for f, _ in node.landed(spec))
        assert max(by_route.values()) == 1, node.name


def test_replicated_time_of_every_origin_moves_on_at_every_cluster_of_a_ring(draw: Draw) -> None:
    spec = table()
    graph = draw(ring(3), spec)
    for node in graph.nodes.values():
        node.write(spec, {1: node.name})
    pairs = [(node, origin) for node in graph.nodes.values() for origin in graph.nodes.values()]
    first = [
        wait_until(lambda n=node, o=origin: n.replicated(o, spec), what=f"{origin.name} at {node.name}")
        for node, origin in pairs
    ]
    for (node, origin), then in zip(pairs, first, strict=True):
        wait_until(lambda n=node, o=origin, t=then: n.replicated(o, spec) > t)


def test_a_cluster_owes_no_more_of_others_than_it_is_owed_itself(draw: Draw) -> None:
    """The route onward is older than the route that feeds it, which leaves out what was written before."""
    spec = table()
    graph = draw("a>b b>c", start=False)
    for node in graph.nodes.values():
        node.ledger.tables.create(spec)
    graph.connect("b", "c", spec)
    graph.start()
    graph["a"].wait(graph["a"].write(spec, {0: "before"}))
    graph.connect("a", "b", spec)
    graph["a"].plan()
    position = graph["a"].write(spec, {1: "after"})
    graph["a"].wait(position, graph["c"])
    assert graph["c"].rows(spec) == {1: "after"}
    first = wait_until(lambda: graph["c"].replicated(graph["a"], spec), what="replicated time of a at c")
    wait_until(lambda: graph["c"].replicated(graph["a"], spec) > first)


def test_a_route_owes_nothing_of_origins_that_it_does_not_bring(draw: Draw) -> None:
    """Both a and b send to c, a only from its second row on; b has nothing of a."""
    spec = table()
    graph = draw("a>c b>c", start=False)
    for node in graph.nodes.values():
        node.ledger.tables.create(spec)
    graph.connect("b", "c", spec)
    graph.start()
    graph["a"].wait(graph["a"].write(spec, {0: "before"}))
    graph.connect("a", "c", spec)
    graph["a"].plan()
    graph["a"].wait(graph["a"].write(spec, {1: "after"}), graph["c"])
    first = wait_until(lambda: graph["c"].replicated(graph["a"], spec), what="replicated time of a at c")
    wait_until(lambda: graph["c"].replicated(graph["a"], spec) > first)


def test_a_table_goes_on_from_a_cluster_that_received_it(draw: Draw) -> None:
    """c joins late, with b's landed rows left out and later ones of a and b arriving."""
    spec = table()
    graph = draw("a>b b>c", start=False)
    for node in graph.nodes.values():
        node.ledger.tables.create(spec)
    graph.connect("a", "b", spec)
    graph.start()
    graph["a"].wait(graph["a"].write(spec, {0: "old"}), graph["b"])
    graph.connect("b", "c", spec)
    graph["b"].plan()
    graph["b"].wait(graph["b"].write(spec, {5: "of b"}), graph["c"])
    graph["a"].wait(graph["a"].write(spec, {1: "new"}), graph["c"])
    assert graph["c"].rows(spec) == {1: "new", 5: "of b"}
    for origin in "ab":
        first = wait_until(lambda o=origin: graph["c"].replicated(graph[o], spec), what=f"replicated time of {origin}")
        wait_until(lambda o=origin, t=first: graph["c"].replicated(graph[o], spec) > t)


def test_data_takes_the_other_route_when_one_breaks(draw: Draw) -> None:
    spec = table()
    graph = draw("a>b b>c a>c", spec)
    graph["a"].wait(graph["a"].write(spec, {0: "by both"}), graph["c"])
    graph["a"].plan(without=["c"])
    sequences = count(1)

    def came_by() -> list[list[str]]:
        sequence = next(sequences)
        position = graph["a"].write(spec, {sequence: "by b only"})
        graph["a"].wait(position, graph["c"])
        graph["a"].wait(position, graph["c"], until="durable")
        found = [f for f, _ in graph["c"].landed(spec) if f.header.sequence == sequence]
        return [[hop.name for hop in frame.provenance] for frame in found]

    wait_until(lambda: came_by() == [["a", "b", "c"]], what="the tail from a to c to end")


def test_waiting_says_what_is_lacking_where(draw: Draw) -> None:
    spec = table()
    graph = draw("a>b b>c", spec)
    graph["a"].wait(graph["a"].write(spec, {0: "x"}), graph["c"])
    wait_until(lambda: [way for way, _ in ways_to(graph, "c", "a")] == ["a → b → c"], what="c to know the route")
    graph["b"].plan(without=["c"])
    position = graph["a"].write(spec, {1: "y"})
    graph["a"].wait(position, graph["b"])
    with pytest.raises(WaitTimeoutError, match=r"Not visible at c .*not arrived: sequences \[1, 2\) of WAL a/"):
        graph["a"].wait(position, graph["c"], timeout_s=0.3)
    graph["b"].plan()
    graph["a"].wait(position, graph["c"])


def ways_to(graph: Graph, name: str, origin: str) -> list[tuple[str, bool]]:
    """(way, whether it is heard) of an origin, as status tells."""
    node = graph[name]
    found = collect(node.config, node.ledger, members_of(node.coordination)).origins
    return [(str(w), w.silent_s is None) for o in found if o.origin == str(graph[origin].cluster) for w in o.paths]


def test_status_says_by_which_routes_an_origin_comes_and_which_are_broken(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.core.routes.carried.SILENT_US", 5_000_000)
    monkeypatch.setattr("replication.worker.ship.routes.SILENT_US", 5_000_000)
    spec = table()
    graph = draw("a>b b>c a>c", spec)
    around, direct = ("a → b → c", True), ("a → c", True)
    wait_until(lambda: ways_to(graph, "c", "a") == [direct, around])
    assert ways_to(graph, "c", "b") == [("b → c", True)]
    graph["a"].plan(without=["c"])
    wait_until(lambda: ways_to(graph, "c", "a") == [around, ("a → c", False)])
    graph["c"].wait(graph["a"].write(spec, {1: "by b"}))
    graph["a"].plan(without=["b", "c"])
    wait_until(lambda: ways_to(graph, "c", "a") == [("a → c", False), ("a → b → c", False)])
    assert ways_to(graph, "c", "b") == [("b → c", True)]
    found = collect(graph["c"].config, graph["c"].ledger, members_of(graph["c"].coordination)).origins
    (told,) = [silent_path_messages("a", each.paths) for each in found if each.origin == str(graph["a"].cluster)]
    assert len(told) == 2 and all("no other route" in text for text in told)
    graph["a"].plan()
    wait_until(lambda: ways_to(graph, "c", "a") == [direct, around])


def test_a_route_that_was_closed_owes_nothing_more(draw: Draw) -> None:
    spec, other = table(), table("ops.other")
    graph = draw("a>b", spec, other)
    a, b = graph["a"], graph["b"]
    b.wait(a.write(spec, {1: "x"}))
    a.ledger.rules.disable("b", spec.uuid, ["default"], a.term)
    a.coordination.announce()
    wait_until(lambda: [route.table for route in b.ledger.landing.routes()] == [other.uuid])
    a.wait(a.write(spec, {2: "not sent"}))
    reached = b.replicated(a)
    wait_until(lambda: b.replicated(a) > reached + 1_000_000, what="replicated time goes on")
    assert b.rows(spec) == {1: "x"}


def test_who_deletes_a_peer_hears_whether_it_could_be_told(draw: Draw) -> None:
    """And one that was down is told when it is defined again, for which it must answer, though nothing goes there."""
    graph = draw("a>b", table())
    a, b = graph["a"], graph["b"]
    wait_until(lambda: b.ledger.landing.routes())
    (peer,), port = a.ledger.rules.peers(), b.port
    b.port = 0
    assert a.peering(b).delete("b") == (peer, False)
    b.port = port  # a stream that was open still may have told it meanwhile
    a.ledger.rules.define(peer, a.term)
    a.coordination.announce()
    wait_until(lambda: not b.ledger.landing.routes(), what="the route to close")
    assert a.peering(b).delete("b") == (peer, True)


def test_a_peer_that_answers_knows_at_once_that_it_is_none_any_more(draw: Draw) -> None:
    graph = draw("a>b", table())
    wait_until(lambda: graph["b"].ledger.landing.routes())
    assert graph["a"].peering(graph["b"]).delete("b")[1]
    assert not graph["b"].ledger.landing.routes()
