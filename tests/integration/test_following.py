"""Rules that follow tables along a graph: groups added while replicating, and tables made after the rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.tables.fold import merge_changes
from peer.tables.read import read
from replication.core.definition.alter import add_group
from replication.core.definition.schema import TableSpec
from replication.ledger.base import PatternRule
from tests.graphs import Graph, Node
from tests.sites import Wal, table
from tests.waiting import wait_until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def every_group(graph: Graph, spec: TableSpec) -> None:
    """As ``enablereplication --all-loc-groups`` on all routes."""
    for source, peer in graph.routes:
        groups = [group.name for group in spec.groups]
        node = graph[source]
        node.ledger.rules.enable(peer, spec.uuid, groups, spec.name, node.term, every_group=True)


def shown(node: Node, spec: TableSpec) -> list[dict[str, Any]]:
    """Its rows by the definition it has now."""
    own = node.ledger.tables.by_uuid(spec.uuid)
    return [] if own is None else sorted(read(node.tables, own).read_all().to_pylist(), key=repr)


def put(wal: Wal, node: Node, spec: TableSpec, **row: object) -> None:
    own = node.ledger.tables.get(spec.name)
    schema = pa.schema([pa.field(name, own.by_name[name].type) for name in row])
    wal.append(own, pa.Table.from_pylist([row], schema))


def add(node: Node, spec: TableSpec, group: str, column: str) -> TableSpec:
    return node.ledger.tables.alter(spec.uuid, lambda own: add_group(own, group, [(column, pa.string(), uuid4())], 1))


def test_a_group_added_while_replicating_goes_along_and_old_versions_stay(tmp_path: Path, stack: ExitStack) -> None:
    spec = table()
    graph = Graph(tmp_path, stack, "a>b b>c", spec)
    graph.define()
    every_group(graph, spec)
    graph.start()
    a, c = graph["a"], graph["c"]
    wal = a.wal()
    put(wal, a, spec, id=1, text="one")
    put(wal, a, spec, id=2, text="two")
    wait_until(lambda: len(shown(c, spec)) == 2)
    merge_changes(c.tables, spec, None)
    altered = add(a, spec, "extra", "note")
    assert shown(a, spec) == [{"id": 1, "text": "one", "note": None}, {"id": 2, "text": "two", "note": None}]
    put(wal, a, spec, id=1, note="new")
    put(wal, a, spec, id=3, note="only")
    wanted = [
        {"id": 1, "text": "one", "note": "new"},
        {"id": 2, "text": "two", "note": None},
        {"id": 3, "text": None, "note": "only"},
    ]
    for name in "abc":
        wait_until(lambda name=name: shown(graph[name], spec) == wanted, what=f"the new group at {name}")
    for node in graph.nodes.values():
        merge_changes(node.tables, node.ledger.tables.get(spec.name), None)
        assert shown(node, spec) == wanted, "folded"
    wal.delete(altered, [{"id": 1}])
    put(wal, a, spec, id=2, text="2")
    wanted = [{"id": 2, "text": "2", "note": None}, wanted[2]]
    for name in "abc":
        wait_until(lambda name=name: shown(graph[name], spec) == wanted, what=f"the delete at {name}")


def test_two_masters_that_add_a_group_at_once_have_one_with_the_columns_of_both(
    tmp_path: Path, stack: ExitStack
) -> None:
    spec = table()
    graph = Graph(tmp_path, stack, "a>b b>a", spec)
    graph.define()
    every_group(graph, spec)
    a, b = graph["a"], graph["b"]
    wals = {node.name: node.wal() for node in (a, b)}
    add(a, spec, "extra", "left")
    add(b, spec, "extra", "right")
    add(b, spec, "other", "third")
    put(wals["a"], a, spec, id=1, left="l")
    put(wals["b"], b, spec, id=1, third="t")
    put(wals["b"], b, spec, id=2, right="r")
    graph.start()
    wanted = [
        {"id": 1, "text": None, "left": "l", "right": None, "third": "t"},
        {"id": 2, "text": None, "left": None, "right": "r", "third": None},
    ]
    for node in (a, b):
        wait_until(
            lambda node=node: [dict(sorted(r.items())) for r in shown(node, spec)] == wanted,
            what=node.name,
        )
    assert a.ledger.tables.get(spec.name) == b.ledger.tables.get(spec.name)
    assert [g.name for g in a.ledger.tables.get(spec.name).groups][0] == "default"
    assert a.content(a.ledger.tables.get(spec.name)) == b.content(b.ledger.tables.get(spec.name))


def test_a_group_added_to_a_table_of_which_some_groups_were_named_stays(tmp_path: Path, stack: ExitStack) -> None:
    spec = table()
    graph = Graph(tmp_path, stack, "a>b", spec)
    graph.define()
    graph.start()
    a, b = graph["a"], graph["b"]
    wal = a.wal()
    secret = f"secret{uuid4().hex}"
    add(a, spec, "extra", "note")
    put(wal, a, spec, id=1, text="t", note=secret)
    put(wal, a, spec, id=2, text="u")
    wait_until(lambda: len(shown(b, spec)) == 2)
    assert [row.get("text") for row in shown(b, spec)] == ["t", "u"]
    files = [path for path in Path(b.config.data_dir).rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_table_made_after_the_rule_goes_over_every_route_that_stands_for_it(tmp_path: Path, stack: ExitStack) -> None:
    graph = Graph(tmp_path, stack, "a>b b>c c>a", table())
    graph.define()
    for source, peer in graph.routes:
        node = graph[source]
        node.ledger.rules.add_pattern_rule(PatternRule(peer, "new.*", ("new.tmp_*",)), node.term)
    graph.start()
    spec, stays = table("new.flights"), table("new.tmp_x")
    a, c = graph["a"], graph["c"]
    for made in (spec, stays):
        a.ledger.tables.create(made)
    position = a.write(spec, {1: "one", 2: "two"})
    a.write(stays, {1: "one"})
    wait_until(
        lambda: c.ledger.tables.by_uuid(spec.uuid) is not None and c.tables.exists(spec.name),
        what="the table at c",
    )
    a.wait(position, c, timeout_s=60)
    assert c.rows(spec) == {1: "one", 2: "two"}
    wait_until(lambda: any(rule.table == spec.uuid for rule in c.ledger.rules.all()))
    position = c.write(spec, {2: "of c"})
    c.wait(position, graph["b"], timeout_s=60)
    assert graph["b"].rows(spec) == a.rows(spec) == {1: "one", 2: "of c"}
    assert c.ledger.tables.by_uuid(stays.uuid) is None
