"""What ``walship trace`` tells of a key: routes, repeats, times, the version that counts, and what is known no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from peer.tables.fold import fold
from peer.tables.trace import REPEATS, TRIMMED, Trace, key_table, trace
from replication.core.definition.schema import TableSpec
from replication.errors import RequestError
from replication.ledger.base import Pending
from shell.commands.trace import parse_key
from tests.graphs import Graph, Node
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.tables_made import cell, grouped, keyed
from tests.waiting import wait_until


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with ExitStack() as stack:
        made = Graph(tmp_path, stack, "a>b b>c a>c", table())
        made.define()
        made.start()
        yield made


def of(node: Node, spec: TableSpec, key: int = 1) -> Trace:
    return trace(node.tables, node.ledger, spec, {"id": key})


def test_a_trace_shows_the_routes_the_times_and_the_version_that_counts(graph: Graph) -> None:
    (spec,) = graph.specs
    a, b, c = (graph[name] for name in "abc")
    c.wait(a.write(spec, {1: "first"}))
    b.wait(a.write(spec, {1: "second", 2: "other"}))
    c.wait(b.write(spec, {1: "of b"}))
    wait_until(lambda: len(c.landed(spec)) == 5, what="both routes have brought what a wrote")
    found = of(c, spec)
    assert (found.cluster, found.table, found.key) == ("c", spec.name, {"id": 1})
    assert [v.values["text"] for v in found.versions] == ["of b", "second", "first"]
    assert [v.is_winner for v in found.versions] == [True, False, False]
    assert found.versions[0].path == ("b", "c") and found.versions[0].other_paths == ()
    for version in found.versions[1:]:
        assert {version.path, *version.other_paths} == {("a", "c"), ("a", "b", "c")}
        assert version.origin == "a" and version.applied is not None and version.applied > version.commit
    assert found.unknown == (REPEATS,)
    wait_until(lambda: any(v.origin == "b" for v in of(b, spec).versions), what="b to know its own row")
    (own,) = [v for v in of(b, spec).versions if v.origin == "b"]
    assert own.path == ("b",) and own.stored_in == "changes"
    assert of(c, spec, 99).versions == ()


def test_a_version_that_waits_for_replay_is_shown_as_landed(graph: Graph) -> None:
    (spec,) = graph.specs
    a, c = graph["a"], graph["c"]
    c.wait(a.write(spec, {1: "first"}))

    def fail(step: str) -> None:
        if step.startswith("append "):
            raise RuntimeError("no room")

    c.tables.fail = fail
    a.wait(a.write(spec, {1: "second"}), c, until="durable")
    landed, first = of(c, spec).versions
    assert (landed.stored_in, landed.applied, landed.is_winner, landed.values["text"]) == (
        "landed",
        None,
        True,
        "second",
    )
    assert first.stored_in == "changes" and not first.is_winner
    c.tables.fail = lambda _: None


@pytest.mark.parametrize("is_before", [True, False])
def test_a_version_that_replay_takes_just_then_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    site, spec = TableSite(tmp_path, "east"), table()
    site.ledger.tables.create(spec)
    Wal(site, "w0").append(spec, rows(1, 1))
    site.register()
    pending = site.ledger.replay.pending

    def taken() -> list[Pending]:
        monkeypatch.undo()
        found = pending()
        site.replay()
        return pending() if is_before else found

    monkeypatch.setattr(site.ledger.replay, "pending", taken)
    (version,) = trace(site.tables, site.ledger, spec, {"id": 1}).versions
    assert version.stored_in == "changes"
    site.close()


def test_of_what_the_change_log_has_no_more_only_the_winner_is_told(graph: Graph) -> None:
    (spec,) = graph.specs
    c = graph["c"]
    for text in ("old", "new"):
        position = graph["a"].write(spec, {1: text})
    c.wait(position)
    newest = max(version.commit for version in of(c, spec).versions)
    wait_until(lambda: min(c.replicated(node, spec) for node in graph.nodes.values()) > newest)
    assert fold(c.tables, c.ledger, spec, newest, 600) is not None
    assert [v.stored_in for v in of(c, spec).versions] == ["changes", "changes"]
    c.tables.delete(spec.name + "__changes", "_op >= 0")
    (winner,) = of(c, spec).versions
    assert (winner.stored_in, winner.path, winner.is_winner, winner.values["text"]) == ("table", (), True, "new")
    assert of(c, spec).unknown == (TRIMMED,)


def test_a_version_has_the_values_of_its_own_group_only(tmp_path: Path) -> None:
    spec = grouped("ops.g")
    with ExitStack() as stack:
        graph = Graph(tmp_path, stack, "a>b", spec)
        graph.define()
        graph.start()
        wal, b = graph["a"].wal(), graph["b"]
        wal.append(spec, pa.table({"k": ["x"], "a": [7], "b": pa.nulls(1, pa.string())}))
        wait_until(lambda: len(trace(b.tables, b.ledger, spec, {"k": "x"}).versions) == 2)
        found = {v.group: v.values for v in trace(b.tables, b.ledger, spec, {"k": "x"}).versions}
        assert found == {"left": {"a": 7}, "right-1": {"b": None}}


def test_keys_are_read_as_their_columns_take_them() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("flight", pa.int64())])
    spec = keyed("ops.f", schema, ("at", "carrier", "flight"))
    wanted = parse_key(spec, ["2013-01-01T10:00:00Z", "UA", "1545"])
    assert wanted == parse_key(spec, ["flight=1545", "carrier=UA", "at=2013-01-01T10:00:00"]) | {"at": wanted["at"]}
    assert wanted["at"].isoformat() == "2013-01-01T10:00:00+00:00" and wanted["flight"] == 1545
    assert parse_key(spec, ['{"at": "2013-01-01T10:00:00Z", "carrier": "UA", "flight": 1545}']) == wanted
    assert parse_key(cell("ops.c"), ["r1", "f", "q", ""])["row"] == b"r1"
    assert parse_key(cell("ops.c"), [r"\x00\\", "f", "q", ""])["row"] == b"\x00\\"
    null = '{"at": null, "carrier": "UA", "flight": 1545}'
    for wrong in (["UA"], [null], ["at=x", "carrier=UA", "flight=1"], ["flight=1", "carrier=UA"]):
        with pytest.raises(RequestError):
            parse_key(spec, wrong)
    zoned = parse_key(spec, ["2013-01-01T12:00:00+02:00", "UA", "1545"])
    assert zoned == wanted, "as read --json shows it, in another zone"


def test_key_values_that_do_not_fit_are_refused_by_name() -> None:
    spec = keyed("ops.d", pa.schema([("d", pa.decimal128(20, 2)), ("n", pa.int64())]), ("d", "n"))
    assert parse_key(spec, ['{"d": 12345678901234567.89, "n": 1}'])["d"] == Decimal("12345678901234567.89")
    with pytest.raises(RequestError, match="'abc' is not a number, as key column d"):
        parse_key(spec, ["abc", "1"])
    for wrong in ({"d": Decimal("1.123"), "n": 1}, {"d": Decimal(1), "n": "x"}, {"d": Decimal(1), "n": 2**63}):
        with pytest.raises(RequestError, match="is not a value of key column"):
            key_table(spec, wrong)


def test_a_table_without_a_key_has_nothing_to_trace(tmp_path: Path) -> None:
    with ExitStack() as stack:
        node = Graph(tmp_path, stack, "a>b")["a"]
        with pytest.raises(RequestError, match=r"has no key.*walship\.ops\.log"):
            trace(node.tables, node.ledger, keyed("ops.log", key=()), {})


def test_a_landed_row_with_a_value_that_duckdb_does_not_take_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, kind = TableSite(tmp_path, "east"), pa.map_(pa.string(), pa.int64())
    spec = keyed("ops.maps", pa.schema([("id", pa.int64()), ("m", kind)]), ["id"])
    site.ledger.tables.create(spec)
    monkeypatch.setattr("replication.core.rows.convert.check_map_keys", lambda batch: None)  # as earlier versions wrote
    site.wal().append(spec, pa.table({"id": [1, 2], "m": pa.array([[("a", 1)], [("a", 1), ("a", 2)]], kind)}))
    site.register()
    (found,) = trace(site.tables, site.ledger, spec, {"id": 2}).versions
    assert (found.stored_in, found.values["m"]) == ("landed", [("a", 1), ("a", 2)])
    site.close()
