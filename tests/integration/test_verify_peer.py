"""A comparison with a peer of which only the receiver is there to ask: real sockets, processes and Iceberg tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from peer.client.cluster import Cluster
from peer.client.comparison import (
    ComparedCluster,
    compare_sides,
    other_side,
    own_side,
    peer_side,
    shared_tables,
    unmatched_tables,
)
from peer.replay_report import ReplayReport
from peer.verify.conversation import Conversations
from peer.verify.verdict import Verdict
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.grants import Grant
from replication.core.routes.freshness import ClosedNotice
from replication.errors import PeerRefusedError, PeerUnavailableError, RequestError, TableExistsError, UnknownTableError
from replication.ledger.base import Peer
from replication.ledger.sql.ledger import open_ledger
from replication.link import questions as q
from replication.link.grpc_client import connect
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from tests.noted import note_closed
from tests.sites import Site
from tests.tables_made import cell, grouped, keyed, uuids
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.float64())])


class Pair:
    """East, whose files may be read, and west, of which only the receiver may be asked."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.east, self.west = Site(folder, "east"), Site(folder, "west")
        self.cluster = Cluster(self.east.config, open_ledger(self.east.config.ledger_url))
        for part in (self.east, self.west, self.cluster):
            stack.callback(part.close)
        self.east.ledger.rules.define(Peer("west", "127.0.0.1:1/walship/west", self.west.cluster), self.east.term)
        self.receiver = stack.enter_context(self.west.receiver())
        self._compared: tuple[ComparedCluster, ComparedCluster] | None = None
        self._stack = stack
        self.now = 0
        self.pass_time()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.receiver.port}"

    def pass_time(self) -> None:
        """Replicated time of both sides is beyond any moment of the test."""
        self.now = time.time_ns() // 1000 + 3_600_000_000
        for site in (self.east, self.west):
            note_closed(site.ledger, site.cluster, ClosedNotice(self.now, ()))

    def fill(self, site: Site, spec: TableSpec, rows: Sequence[dict[str, Any]]) -> None:
        """Make the table on a site with these rows, as if they had been folded."""
        if site.ledger.tables.by_uuid(spec.uuid) is None:
            site.ledger.tables.create(spec)
        IcebergCatalog(catalog_properties(site.config.data_dir)).create(spec)
        table = iceberg_table(site, spec.name)
        schema = table.schema().as_arrow()
        table.append(pa.Table.from_pylist([{f.name: row.get(f.name) for f in schema} for row in rows], schema=schema))

    @contextmanager
    def sides(self) -> Iterator[tuple[ComparedCluster, ComparedCluster]]:
        with other_side(self.cluster, "west", receiver=self.address) as there, own_side(self.cluster, "west") as here:
            yield here, there

    def compare(self, spec: TableSpec, timeout_s: float = 30) -> Verdict:
        """Compare the table as it is by now, all of a test in one conversation, with one process."""
        if self._compared is None:
            self._compared = self._stack.enter_context(self.sides())
        here, there = self._compared
        return compare_sides(self.cluster, here, there, spec.name, timeout_s)


def iceberg_table(site: Site, name: str) -> Table:
    """A table as any Iceberg engine finds it."""
    return load_catalog("walship", **catalog_properties(site.config.data_dir).pyiceberg).load_table(name)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def simple(count: int) -> list[dict[str, Any]]:
    return [{"k": f"k{n:06d}", "v": n, "w": n / 7} for n in range(count)]


def test_rows_changed_removed_and_added_at_the_peer_are_listed_the_first_and_last_too(pair: Pair) -> None:
    spec, rows = keyed("ops.t", SCHEMA), simple(5000)
    pair.fill(pair.east, spec, rows)
    pair.fill(pair.west, spec, rows)
    assert pair.compare(spec).identical
    behind = iceberg_table(pair.west, "ops.t")
    with pytest.warns(UserWarning, match="copy-on-write"):
        behind.delete("k in ('k000000', 'k002500', 'k004999', 'k001000')")
    changed = [{"k": "k000000", "v": -1, "w": 0.0}, {"k": "k002500", "v": 2500, "w": float("nan")}]
    pair.fill(pair.west, spec, [*changed, {"k": "a", "v": 1, "w": 1.0}, {"k": "z", "v": 1, "w": 1.0}])
    verdict = pair.compare(spec)
    assert [(d.key["k"], d.what, d.columns) for d in verdict.differences] == [
        ("a", "only in west", ()),
        ("k000000", "different", ("v",)),
        ("k001000", "only in east", ()),
        ("k002500", "different", ("w",)),
        ("k004999", "only in east", ()),
        ("z", "only in west", ()),
    ]
    assert (verdict.differing, verdict.moving, verdict.left.rows, verdict.right.rows) == (6, 0, 5000, 5000)


def test_a_table_that_is_held_is_not_awaited_to_the_end_and_the_reason_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = keyed("ops.t", SCHEMA)
    pair.fill(pair.east, spec, simple(3))
    pair.fill(pair.west, spec, simple(2))
    monkeypatch.setattr("peer.client.comparison._FRESH_S", 1.0)
    later = time.time_ns() // 1000 + 86_400_000_000
    monkeypatch.setattr("peer.client.comparison.now_us", lambda: later)
    began = time.monotonic()
    ReplayReport(held={"ops.t": "its schema is odd"}).save(pair.west.ledger.replay)
    verdict = pair.compare(spec, timeout_s=600)
    assert time.monotonic() - began < 500, "of 600"
    assert (verdict.left.held, verdict.right.held) == ("", "its schema is odd")
    assert verdict.held == "at west: its schema is odd"
    ReplayReport().save(pair.west.ledger.replay)
    pair.pass_time()
    monkeypatch.undo()
    assert pair.compare(spec).held == ""


def test_tables_without_a_key_are_compared_as_bags_of_rows(pair: Pair) -> None:
    spec = typed_table("ops.log", SCHEMA, [], uuids=uuids())
    for site in (pair.east, pair.west):
        pair.fill(site, spec, [{**row, "_commit": 5} for row in simple(100) * 2])
    assert pair.compare(spec).identical
    pair.fill(pair.west, spec, [{"k": "by hand", "v": None, "w": 1.5}])
    (found,) = pair.compare(spec).differences
    assert (found.key, found.what) == ({"k": "by hand", "v": None, "w": 1.5}, "only in west")


def test_cell_tables_and_tables_of_groups_are_compared_in_what_goes_to_the_peer(pair: Pair) -> None:
    cells, groups = cell("ops.cells"), grouped("ops.groups")
    place = {"row": b"r", "qualifier": b"q", "visibility": b""}
    kinds = {name: cells.by_name[name].type for name in ("family", "row")}

    def value(family: str, content: bytes) -> dict[str, Any]:
        texts = {key: item.decode() if kinds["row"] == pa.string() else item for key, item in place.items()}
        return {**texts, "family": family, "value": content, "_commit_cell": 3}

    pair.fill(pair.east, cells, [value("m", b"same"), value("other", b"east")])
    pair.fill(pair.west, cells, [value("m", b"same"), value("other", b"west")])
    (found,) = pair.compare(cells).differences
    assert found.key["family"] == "other" and found.columns == ("value",)
    left = {"_commit_left": 1}
    pair.fill(
        pair.east, groups, [{"k": "1", "a": 1, "b": "east", **left}, {"k": "2", "b": "x", "_commit_right_2d1": 1}]
    )
    pair.fill(pair.west, groups, [{"k": "1", "a": 1, **left}])
    assert pair.compare(groups).differing == 2
    for spec, group in ((cells, "meta"), (groups, "left")):
        pair.east.ledger.rules.enable("west", spec.uuid, [group], spec.name, pair.east.term)
        assert pair.compare(spec).identical, "what does not go there is not compared"


def test_tables_that_are_not_there_or_are_others_are_named(pair: Pair) -> None:
    here, missing = keyed("ops.both"), keyed("ops.missing")
    for spec in (here, missing):
        pair.east.ledger.tables.create(spec)
    pair.west.ledger.tables.create(keyed("ops.both"))
    with pair.sides() as (_, there):
        assert shared_tables(pair.cluster, there) == []
        assert [error.what for error in unmatched_tables(pair.cluster, there)] == [
            "ops.both on west is another table than on east"
        ]
        pair.east.ledger.rules.enable("west", missing.uuid, ["default"], missing.name, pair.east.term)
        assert [error.what for error in unmatched_tables(pair.cluster, there)] == [
            "ops.both on west is another table than on east",
            "west does not have the table ops.missing of east",
        ]
        pair.east.ledger.rules.disable("west", missing.uuid, ["default"], pair.east.term)
    with pytest.raises(UnknownTableError, match="west does not have the table ops.missing") as raised:
        pair.compare(missing)
    assert raised.value.hint == "walship enablereplication west -t ops.missing --bootstrap"
    with pair.sides() as (mine, there):
        pair.east.ledger.rules.delete("west", pair.east.term)
        with pytest.raises(UnknownTableError) as raised:
            compare_sides(pair.cluster, mine, there, missing.name, 30)
    assert raised.value.hint.startswith("Define west as a peer of east first")
    pair.east.ledger.rules.define(Peer("west", "127.0.0.1:1/walship/west", pair.west.cluster), pair.east.term)
    with pytest.raises(TableExistsError, match="another table than on east"):
        pair.compare(here)


def test_a_peer_whose_zookeeper_cannot_be_reached_is_found_through_what_the_workers_were_told(pair: Pair) -> None:
    pair.cluster._opened._coordination = pair.east.coordination
    with pytest.raises(PeerUnavailableError), other_side(pair.cluster, "west"):
        pass
    pair.east.assign(pair.west.cluster, pair.receiver.port)
    with other_side(pair.cluster, "west") as there:
        assert there.tables() == frozenset()
    with pytest.raises(RequestError, match="not host:port"), other_side(pair.cluster, "west", receiver="nowhere"):
        pass
    with pytest.raises(RequestError, match="not a peer"), other_side(pair.cluster, "north", receiver=pair.address):
        pass
    pair.cluster._opened._coordination = None


def test_the_process_ends_with_the_conversation_and_leaves_nothing(pair: Pair) -> None:
    link = connect(pair.address, "west", pair.east.cluster, timeout_s=10)
    with peer_side(link, pair.east.cluster, pair.west.cluster) as there:
        assert there.tables() == frozenset()
        (open_one,) = pair.receiver._conversations._open
        process = open_one.pid
        assert os.getpriority(os.PRIO_PROCESS, process) > os.getpriority(os.PRIO_PROCESS, 0)
        with (
            peer_side(link, pair.east.cluster, pair.west.cluster),
            pytest.raises(PeerRefusedError, match="2 comparisons with west are running"),
            peer_side(link, pair.east.cluster, pair.west.cluster),
        ):
            pass
    wait_until(lambda: not pair.receiver._conversations._open)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    link.close()


def test_a_comparison_that_takes_too_long_is_ended(pair: Pair) -> None:
    short = Conversations(pair.west.config, seconds_max=0.5)
    conversation = short.begin(Grant(pair.east.cluster))
    began = time.monotonic()
    with pytest.raises(PeerUnavailableError, match="has ended"):
        while time.monotonic() - began < 20:
            conversation.ask(q.encode_question(q.AskTables()))
            conversation.answer()
    wait_until(lambda: not short._open)


def test_a_process_that_dies_is_told_and_the_receiver_goes_on(pair: Pair) -> None:
    with pair.sides() as (_, there):
        there.tables()
        (open_one,) = pair.receiver._conversations._open
        os.kill(open_one.pid, 9)
        with pytest.raises(PeerUnavailableError):
            there.tables()
    with pair.sides() as (_, there):
        assert there.tables() == frozenset()


def test_answers_are_cut_to_messages_of_bounded_size() -> None:
    batch = pa.record_batch({"k": pa.array(["x" * 1000] * 5000)})
    cut = q.pieces(batch)
    assert all(piece.nbytes <= q.ROWS_BYTES_MAX for piece in cut)
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([batch]))
