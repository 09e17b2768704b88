"""Registered frames become rows once, whoever dies, competes or tidies up; against the fake warehouse and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from peer.tables.fold import fold, merge_changes
from peer.tables.latest import show_latest
from peer.tables.maintenance import tidy, trim
from peer.tables.read import read
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.succession import Succession
from replication.errors import ForeignMaintenanceError
from replication.tables.layout import LATEST
from tests.integration.replay_site import FOLDED, HOUR_US, Site, settle
from tests.origin import OriginWal
from tests.tables_made import SIMPLE, cell, grouped, keyed


def test_a_replayer_killed_between_commit_and_mark_applies_once(site: Site) -> None:
    class Killed(Exception):
        pass

    replayer = site.replayer()
    site.put(("a", 1))
    replayer.round()
    site.put(("a", 2), ("b", 2))
    mark = site.ledger.replay.checkpoint_applied
    site.ledger.replay.checkpoint_applied = dies = lambda mark: (_ for _ in ()).throw(Killed())  # type: ignore[assignment]
    assert dies is not None
    replayer.round()
    site.ledger.replay.checkpoint_applied = mark  # type: ignore[method-assign]
    assert not site.applied()
    after = site.replayer()
    settle(after)
    settle(after)
    assert site.applied()
    assert site.rows() == {"a": 2, "b": 2}
    assert site.received() == 3


def test_what_a_killed_replayer_committed_is_no_lost_write(site: Site) -> None:
    own, mark = site.ledger.cluster, site.ledger.replay.checkpoint_applied
    replayer = site.replayer()
    site.put(("a", 1))
    replayer.round()
    site.put(("b", 2))
    site.ledger.replay.checkpoint_applied = lambda mark: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    replayer.round()
    site.ledger.replay.checkpoint_applied = mark  # type: ignore[method-assign]
    assert not site.applied()
    other = ClusterId("other", UUID(int=7))
    site.ledger.successions.record(Succession(own, other, 9, 1, is_planned=False))
    site.put(("c", 3))
    after = site.replayer()
    settle(after)
    settle(after)
    (lost,) = site.ledger.replay.quarantined()
    assert lost.succession and site.applied()
    assert site.rows() == {"a": 1, "b": 2} and site.received() == 2


def test_rewriting_and_expiring_everything_but_the_last_snapshot_is_survived(site: Site) -> None:
    replayer = site.replayer()
    for value in range(3):
        site.put(("a", value))
        replayer.round()
    site.tables.compact(site.spec.name + "__changes", 1)
    site.expire_all_but_current(site.spec.name + "__changes")
    site.put(("b", 9))
    settle(replayer)
    assert site.rows() == {"a": 2, "b": 9}
    again = site.replayer()
    site.put(("c", 9))
    settle(again)
    assert site.rows() == {"a": 2, "b": 9, "c": 9}
    assert site.received() == 5


def test_a_rollback_is_replayed_again(site: Site) -> None:
    replayer = site.replayer()
    site.put(("a", 1))
    replayer.round()
    kept = site.tables.history(site.spec.name + "__changes").current
    assert kept is not None
    for value in (2, 3):
        site.put(("a", value), ("b", value))
        replayer.round()
    site.warehouse.rollback(site.spec.name + "__changes", kept)
    assert site.rows() == {"a": 1}
    site.put(("c", 4))
    settle(replayer)
    settle(replayer)
    assert site.rows() == {"a": 3, "b": 3, "c": 4}
    assert site.received() == 6
    assert site.applied()


def test_a_rollback_whose_lost_commits_cannot_be_told_stops_only_that_table(site: Site) -> None:
    other = site.table(keyed(f"{site.warehouse.namespace}.other"))
    replayer = site.replayer()
    name = site.spec.name + "__changes"
    site.put(("a", 1))
    replayer.round()
    kept = site.tables.history(name).current
    assert kept is not None
    site.put(("a", 2))
    replayer.round()
    site.warehouse.rollback(name, kept)
    site.expire_all_but_current(name)
    site.put(("a", 3))
    site.put(("x", 1), spec=other)
    result = replayer.round()
    result = replayer.round()
    assert "rolled back" in result.held[site.spec.name]
    assert site.rows(other) == {"x": 1}
    assert site.rows() == {"a": 1}
    fresh = site.replayer()
    assert "rolled back" in fresh.round().held[site.spec.name]
    assert ForeignMaintenanceError.exit_code == 10


def test_a_poison_frame_is_kept_apart_and_holds_nothing_up(site: Site) -> None:
    other = site.table(keyed(f"{site.warehouse.namespace}.other"))
    replayer = site.replayer()
    site.put(("a", 1))
    version = site.spec.versions["default"]
    site.wal.now += 1
    begin = site.wal.path.stat().st_size
    site.wal.frame(site.spec.uuid, "default", version.hash, b"nonsense", 3)
    site.wal.frame(site.spec.uuid, "default", version.hash, b"damaged", 1, digest=b"\1" * 32)
    end = site.wal.path.stat().st_size
    site.put(("b", 2))
    site.put(("x", 1), spec=other)
    settle(replayer)
    assert site.rows() == {"a": 1, "b": 2}
    assert site.rows(other) == {"x": 1}
    assert site.applied()
    frames = site.ledger.replay.quarantined()
    assert [frame.begin for frame in frames][0] == begin and frames[1].end == end
    assert "record batch" in frames[0].reason and "SHA-256" in frames[1].reason
    assert Path(frames[0].copy).read_bytes() == site.wal.path.read_bytes()[begin : frames[0].end]
    assert site.ledger.time.replicated(site.spec.uuid)[site.ledger.cluster].t < site.wal.now
    assert site.ledger.time.replicated(other.uuid)[site.ledger.cluster].t == site.wal.now


def test_duplicates_are_passed_over(site: Site) -> None:
    replayer = site.replayer()
    site.put(("a", 1), ("b", 1))
    replayer.round()
    assert site.received() == 2
    settle(replayer)
    assert site.received() == 2 and site.applied()


def test_a_round_takes_a_bounded_number_of_bytes(site: Site) -> None:
    replayer = site.replayer(round_bytes=1)
    for value in range(3):
        site.put(("a", value))
    results = [replayer.round() for _ in range(3)]
    assert [result.frames for result in results] == [1, 1, 1]
    assert [result.more for result in results] == [True, True, False]
    assert site.rows() == {"a": 2}


@FOLDED
def test_fold_takes_deletes_late_versions_and_groups(site: Site) -> None:
    groups = site.table(grouped(f"{site.warehouse.namespace}.g"))
    replayer = site.replayer()
    site.put(("a", 1), ("b", 1), ("c", 1))
    site.wal.upsert(groups, [{"k": "x", "a": 1, "b": "one"}, {"k": "y", "a": 1}])
    site.wal.register(closed=site.wal.now)
    replayer.round()
    assert fold(site.tables, site.ledger, site.spec, site.wal.now, 600) is not None
    assert fold(site.tables, site.ledger, groups, site.wal.now, 600) is not None
    site.wal.delete(site.spec, [{"k": "b"}])
    site.wal.upsert(site.spec, [{"k": "a", "v": 5}, {"k": "d", "v": 5}])
    site.wal.upsert(groups, [{"k": "x", "b": "two"}, {"k": "z", "a": 7}])
    site.wal.delete(groups, [{"k": "y"}])
    site.wal.register(closed=site.wal.now)
    replayer.round()
    expected = {"a": 5, "c": 1, "d": 5}
    assert site.rows() == expected
    folded = fold(site.tables, site.ledger, site.spec, site.wal.now, 600)
    assert folded is not None and (folded.versions, folded.deletes) == (3, 1)
    fold(site.tables, site.ledger, groups, site.wal.now, 600)
    assert site.rows() == expected
    stored = site.tables.query(f"select k, v from {site.tables.ref(site.spec.name)}").to_pylist()
    assert {row["k"]: row["v"] for row in stored} == expected
    late = OriginWal(site.ledger, site.directory / "wal")
    late.upsert(site.spec, [{"k": "b", "v": 77}, {"k": "a", "v": 77}, {"k": "new", "v": 77}], commit=2)
    late.register()
    replayer.round()
    assert site.rows() == expected | {"new": 77}
    site.agree()
    merge_changes(site.tables, site.spec, None)
    assert site.rows() == expected | {"new": 77}
    site.agree()
    site.agree(groups)
    shown = sorted(read(site.tables, groups).read_all().to_pylist(), key=repr)
    assert shown == [{"k": "x", "a": 1, "b": "two"}, {"k": "z", "a": 7, "b": None}]


def test_tables_of_every_kind_have_a_view_of_their_newest_rows(site: Site) -> None:
    cells, log = (
        site.table(cell(f"{site.warehouse.namespace}.c")),
        site.table(keyed(f"{site.warehouse.namespace}.l", key=())),
    )
    replayer = site.replayer()
    for value in (b"old", b"new"):
        site.wal.upsert(cells, [{"row": b"r", "family": "f", "qualifier": b"q", "visibility": "", "value": value}])
    site.wal.upsert(log, [{"k": "same", "v": 1}, {"k": "same", "v": 1}])
    site.put(("a", 1))
    replayer.round()
    for spec, count in ((cells, 1), (log, 2), (site.spec, 1)):
        site.agree(spec)
        assert read(site.tables, spec).read_all().num_rows == count


@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)
def test_a_view_shows_what_came_late_while_a_fold_made_it_anew(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    replayer = site.replayer()
    late = OriginWal(site.ledger, site.directory / "wal")
    site.put(("a", 1))
    replayer.round()
    merge_changes(site.tables, site.spec, site.wal.now)
    late.upsert(site.spec, [{"k": "b", "v": 2}], commit=site.wal.now - 1)
    late.register()
    put: Any = site.tables.show

    def show(spec: TableSpec, query: str) -> None:
        monkeypatch.undo()
        replayer.round()
        put(spec, query)

    monkeypatch.setattr(site.tables, "show", show)
    show_latest(site.tables, site.spec)
    shown = site.tables.query(f"select k, v from {site.tables.ref(site.spec.name + LATEST)} order by k").to_pylist()
    assert shown == [{"k": "a", "v": 1}, {"k": "b", "v": 2}]


def test_a_table_made_anew_under_a_dropped_ones_name_has_its_own_rows_alone(site: Site) -> None:
    replayer = site.replayer()
    site.put(("a", 1), ("b", 1))
    replayer.round()
    assert fold(site.tables, site.ledger, site.spec, site.wal.now, 600) is not None
    site.ledger.tables.drop(site.spec.uuid)
    again = site.table(keyed(site.spec.name, pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.int32())])))
    assert read(site.tables, again).read_all().num_rows == 0
    site.put(("b", 2), spec=again)
    assert not replayer.round().held
    assert site.rows(again) == {"b": 2}
    site.agree(again)
    assert fold(site.tables, site.ledger, again, site.wal.now, 600) is not None
    site.agree(again)


@pytest.mark.parametrize("warehouse", ["memory"], indirect=True)
@pytest.mark.parametrize("beside", [False, True])
def test_frames_of_a_dropped_table_hold_up_nothing_of_another_of_its_name(site: Site, beside: bool) -> None:
    site.ledger.tables.drop(site.spec.uuid)
    again = site.table(keyed(site.spec.name))
    replayer = site.replayer()
    for turn in range(2):
        site.put(("old", turn))  # still on its way
        if beside:
            site.put(("new", turn), spec=again)
        assert not settle(replayer).held
        assert site.applied()
    assert site.rows(again) == ({"new": 1} if beside else {})


def test_every_kind_of_value_comes_back_exactly(site: Site) -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal

    schema = pa.schema(
        [
            ("k", pa.string()),
            ("i", pa.int32()),
            ("f", pa.float64()),
            ("raw", pa.binary()),
            ("flag", pa.bool_()),
            ("day", pa.date32()),
            ("local", pa.timestamp("us")),
            ("at", pa.timestamp("us", tz="UTC")),
            ("money", pa.decimal128(38, 9)),
            ("tags", pa.list_(pa.string())),
            ("nested", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.string())])))])),
            ("map", pa.map_(pa.string(), pa.int32())),
        ]
    )
    spec = site.table(keyed(f"{site.warehouse.namespace}.kinds", schema))
    full = {
        "k": "a\0b'\"\\",
        "i": -(2**31),
        "f": -0.0,
        "raw": b"\0\xff",
        "flag": False,
        "day": date(1901, 2, 3),
        "local": datetime(1903, 4, 5, 6, 7, 8, 9),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "money": Decimal("-12345678901234567890123456789.123456789"),
        "tags": ["", None, "x"],
        "nested": {"x": 1, "y": [{"z": None}]},
        "map": [("m", 1), ("n", None)],
    }
    empty = dict.fromkeys(schema.names) | {"k": ""}
    site.wal.upsert(spec, [full, empty, dict(empty, k="nan", f=float("nan"))])
    site.wal.register(closed=site.wal.now)
    settle(site.replayer())
    for _ in range(2):
        rows = {row["k"]: row for row in read(site.tables, spec).read_all().to_pylist()}
        assert rows[full["k"]] == full
        assert rows[""] == empty
        assert str(rows["nan"]["f"]) == "nan"
        merge_changes(site.tables, spec, site.wal.now)


def test_cells_keep_their_timestamps(site: Site) -> None:
    spec = site.table(cell(f"{site.warehouse.namespace}.cells"))
    at = {"row": b"r", "family": "f", "qualifier": "q", "visibility": ""}
    replayer = site.replayer()
    site.wal.cells(spec, [{**at, "value": b"new", "timestamp": 50}], commit=60)
    site.wal.cells(spec, [{**at, "value": b"old", "timestamp": 40}], commit=70)
    site.wal.register(closed=70)
    settle(replayer)
    merge_changes(site.tables, spec, 70)
    assert [row["value"] for row in read(site.tables, spec).read_all().to_pylist()] == [b"new"]
    site.wal.cells(spec, [{**at, "timestamp": 50, "delete": True}], commit=80)
    site.wal.cells(spec, [{**at, "value": b"tie", "timestamp": 50}], commit=90)
    site.wal.register(closed=90)
    settle(replayer)
    site.agree(spec)
    assert read(site.tables, spec).read_all().num_rows == 0
    merge_changes(site.tables, spec, 90)
    assert read(site.tables, spec).read_all().num_rows == 0


def test_keyless_tables_take_every_row(site: Site) -> None:
    spec = site.table(keyed(f"{site.warehouse.namespace}.log", SIMPLE, ()))
    replayer = site.replayer()
    site.wal.upsert(spec, [{"k": "a", "v": 1}, {"k": "a", "v": 1}])
    site.wal.register(closed=site.wal.now)
    settle(replayer)
    settle(replayer)
    assert read(site.tables, spec).read_all().num_rows == 2


def test_maintenance_keeps_rows_and_lets_replay_go_on(site: Site) -> None:
    replayer = site.replayer()
    site.put(("a", 1), ("b", 1))
    replayer.round()
    merge_changes(site.tables, site.spec, site.wal.now)
    site.wal.delete(site.spec, [{"k": "b"}])
    site.put(("a", 2))
    replayer.round()
    merge_changes(site.tables, site.spec, site.wal.now)
    later = site.wal.now + 400 * 24 * HOUR_US
    site.put(("c", 3))
    replayer.round()
    site.wal.register(closed=later)
    tidy(site.tables, site.ledger, site.spec, later)
    trim(site.tables, site.ledger, site.spec, later, 7 * 86400.0)
    assert site.received() == 1
    assert site.tables.query(f"select * from {site.tables.ref(site.spec.name + '__tombstones')}").num_rows == 0
    assert site.rows() == {"a": 2, "c": 3}
    site.put(("d", 4))
    settle(replayer)
    settle(site.replayer())
    assert site.rows() == {"a": 2, "c": 3, "d": 4}
