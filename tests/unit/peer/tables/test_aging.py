"""Rows that are too old disappear from reads, then from disk, which changes nothing in what is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from peer.tables.fold import merge_changes
from peer.tables.latest import show_latest
from peer.tables.maintenance import trim
from peer.tables.read import Reader, earliest, read
from peer.tables.trace import EXPIRED, trace
from peer.verify.digest import content_hash
from replication.core.definition.alter import set_properties
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.core.routes.freshness import Replicated
from replication.errors import RequestError
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.tables_made import grouped, uuids

pytestmark = pytest.mark.heavy

HOUR = 3_600_000_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TableSite]:
    with ExitStack() as stack:
        made = TableSite(tmp_path, "east")
        stack.callback(made.close)
        yield made


def now() -> int:
    return time.time_ns() // 1000


def wal_at(site: TableSite, ago_us: int, name: str) -> Wal:
    made = site.wal(name)
    made.ahead_us = -ago_us
    return made


def with_age(site: TableSite, spec: TableSpec, seconds: int | str, at: int = 1) -> TableSpec:
    site.ledger.tables.create(spec)
    return site.ledger.tables.alter(spec.uuid, lambda own: set_properties(own, {"max_age_s": str(seconds)}, at))


def shown(site: TableSite, spec: TableSpec, as_of: int | None = None) -> list[tuple[object, ...]]:
    return sorted((tuple(r.values()) for r in read(site.tables, spec, as_of=as_of).read_all().to_pylist()), key=repr)


def stored(site: TableSite, name: str) -> int:
    return site.tables.query(f'select * from "{name}"').num_rows


def catch_up(site: TableSite) -> None:
    site.register()
    site.replay()


@pytest.mark.parametrize("folds", [False, True])
def test_what_is_too_old_is_not_read_and_newer_versions_live_on(site: TableSite, folds: bool) -> None:
    spec = with_age(site, table(), 3600)
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 3))
    wal_at(site, 1000, "w1").append(spec, rows(2, 2))
    catch_up(site)
    if folds:
        merge_changes(site.tables, spec, now())
    assert [row[0] for row in shown(site, spec)] == [2, 3]
    wal_at(site, 2 * HOUR, "w2").append(spec, rows(3, 2))
    catch_up(site)
    assert [row[0] for row in shown(site, spec)] == [2, 3], "late ones that are too old do not come"


def test_reads_as_of_a_time_show_what_was_not_too_old_then(site: TableSite) -> None:
    spec = with_age(site, table(), 3600)
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 1))
    wal_at(site, HOUR // 2, "w1").append(spec, rows(1, 1))
    catch_up(site)
    assert [row[0] for row in shown(site, spec, now() - 5 * HOUR // 2)] == [0]
    assert [row[0] for row in shown(site, spec)] == [1]


def test_they_are_removed_from_disk_and_a_cut_reads_the_same_before_and_after(site: TableSite) -> None:
    spec = with_age(site, table(), 3600)
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 50))
    wal_at(site, HOUR // 2, "w1").append(spec, rows(40, 20))
    catch_up(site)
    cut = now()
    merge_changes(site.tables, spec, cut)
    assert stored(site, spec.name) == 60
    before = content_hash(read(site.tables, spec, as_of=cut))
    trim(site.tables, site.ledger, spec, cut, 86400.0)
    assert stored(site, spec.name) == 20
    assert content_hash(read(site.tables, spec, as_of=cut)) == before
    wal_at(site, 1000, "w3").append(spec, rows(0, 1))
    catch_up(site)
    assert [row[0] for row in shown(site, spec)] == [0, *range(40, 60)], "the key may be written again"


def test_the_view_shows_no_late_row_that_lost_to_a_trimmed_delete_though_who_folded_them_was_killed(
    site: TableSite,
) -> None:
    spec = table()
    site.ledger.tables.create(spec)
    wal_at(site, 2 * HOUR, "w0").delete(spec, [{"id": 1}])
    catch_up(site)
    wal_at(site, 3 * HOUR, "w1").append(spec, rows(0, 3))
    catch_up(site)
    show_latest(site.tables, spec)
    merge_changes(site.tables, spec, now())  # and was killed before it showed the fold
    assert [row[0] for row in shown(site, spec)] == [0, 2] and stored(site, spec.name + "__latest") == 2
    trim(site.tables, site.ledger, spec, now(), 60.0)
    assert [row[0] for row in shown(site, spec)] == [0, 2] and stored(site, spec.name + "__latest") == 2


def test_nothing_is_removed_before_everybody_has_heard_of_the_age(site: TableSite) -> None:
    spec = with_age(site, table(), 3600, at=now())
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 5))
    catch_up(site)
    cut = now()
    merge_changes(site.tables, spec, cut)
    trim(site.tables, site.ledger, spec, cut, 86400.0)
    assert stored(site, spec.name) == 5 and shown(site, spec) == []


def test_they_are_removed_and_hidden_by_the_view_where_nobody_writes_any_more(site: TableSite) -> None:
    spec = with_age(site, table(), 3600, at=now())
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 5))
    wal_at(site, HOUR // 2, "w1").append(spec, rows(7, 1))
    catch_up(site)
    merge_changes(site.tables, spec, now())
    for left, after in ((1, 2 * 60_000_000), (0, HOUR)):
        cut = now() + after
        assert merge_changes(site.tables, spec, cut) is not None
        show_latest(site.tables, spec)
        trim(site.tables, site.ledger, spec, cut, 86400.0)
        assert stored(site, spec.name) == left and stored(site, spec.name + "__latest") == left
        assert merge_changes(site.tables, spec, cut + 10 * HOUR * (1 - left) + 60_000_000) is None


def test_a_trace_says_that_the_newest_version_has_expired(site: TableSite) -> None:
    spec = with_age(site, table(), 3600)
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 2))
    wal_at(site, 1000, "w1").append(spec, rows(1, 1))
    catch_up(site)
    gone, here = (trace(site.tables, site.ledger, spec, {"id": key}) for key in (0, 1))
    assert [version.is_winner for version in gone.versions] == [False]
    assert [version.is_winner for version in here.versions] == [True, False]
    assert EXPIRED in gone.unknown and EXPIRED in here.unknown


def test_groups_grow_old_apart(site: TableSite) -> None:
    spec = with_age(site, grouped("ops.g"), 3600)
    old, new = wal_at(site, 3 * HOUR, "w0"), wal_at(site, 1000, "w1")
    old.append(spec, pa.table({"k": ["x", "y", "z"], "a": [1, 2, 3], "b": ["1", "2", "3"]}))
    new.append(spec, pa.table({"k": ["x"], "a": [10]}))
    catch_up(site)
    for _ in range(2):
        assert shown(site, spec) == [("x", 10, None)]
        merge_changes(site.tables, spec, now())
    trim(site.tables, site.ledger, spec, now(), 86400.0)
    assert stored(site, spec.name) == 1 and shown(site, spec) == [("x", 10, None)]
    assert site.tables.query(f'select _commit_left as c from "{spec.name}"').column(0).null_count == 0


def test_cells_grow_old_by_the_users_timestamps(site: TableSite) -> None:
    spec = with_age(site, cell_table("ops.c", uuids=uuids(), history_s=10 * 86400), 3600)
    cell = {"family": "f", "qualifier": "q", "visibility": "", "value": b"v"}
    given = [{"row": b"old", "timestamp": now() - 2 * HOUR}, {"row": b"new", "timestamp": now() - HOUR // 2}]
    site.wal().cells(spec, [cell | each for each in given])
    catch_up(site)
    for _ in range(2):
        assert [row[0] for row in shown(site, spec)] == [b"new"]
        merge_changes(site.tables, spec, now())
    later = now() + 70_000_000
    merge_changes(site.tables, spec, later)
    trim(site.tables, site.ledger, spec, later, 86400.0)
    assert stored(site, spec.name) == 1


def test_deletes_stay_deletes_while_rows_grow_old(site: TableSite) -> None:
    spec = with_age(site, table(), 7200)
    old, new = wal_at(site, HOUR, "w0"), wal_at(site, 1000, "w1")
    new.delete(spec, [{"id": 1}])
    catch_up(site)
    merge_changes(site.tables, spec, now())
    trim(site.tables, site.ledger, spec, now(), 0.0)
    old.append(spec, rows(0, 3))
    catch_up(site)
    assert [row[0] for row in shown(site, spec)] == [0, 2]


def test_rows_without_a_key_are_not_read_or_compared_as_of_a_time_from_which_some_are_removed(site: TableSite) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    spec = with_age(site, typed_table("ops.log", schema, [], uuids=uuids()), 3600)
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 3))
    catch_up(site)
    wal_at(site, 1000, "w1").append(spec, rows(9, 1))
    catch_up(site)
    then = now() - 5 * HOUR // 2
    assert [row[0] for row in shown(site, spec, then)] == [0, 1, 2]
    replicated = now()
    with patch.object(type(site.ledger.time), "replicated", lambda *_, **__: {site.cluster: Replicated(replicated)}):
        trim(site.tables, site.ledger, spec, now(), 86400.0)
        assert shown(site, spec, then) == []
        since = earliest(site.tables, site.ledger, spec)
        assert since is not None and then < since < replicated
        reader = Reader(site.config, site.ledger)
        with patch.object(Reader, "catalog", site.tables):
            assert [row["id"] for row in reader.read(spec, as_of=replicated).read_all().to_pylist()] == [9]
            with pytest.raises(RequestError, match=f"as of {then}. Read as of {since} or later"):
                reader.read(spec, as_of=then)


@pytest.mark.parametrize("key", [["id"], []])
def test_rows_live_as_long_as_they_may_though_a_clusters_clock_is_ahead(site: TableSite, key: list[str]) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    spec = with_age(site, typed_table("ops.log", schema, key, uuids=uuids()), 3600)
    wal_at(site, HOUR // 2, "w0").append(spec, rows(0, 3))
    catch_up(site)
    wal_at(site, -2 * HOUR, "w1").append(spec, rows(9, 1))
    catch_up(site)
    ahead = now() + 2 * HOUR
    if key:
        merge_changes(site.tables, spec, ahead)
    with patch.object(type(site.ledger.time), "replicated", lambda *_, **__: {site.cluster: Replicated(ahead)}):
        trim(site.tables, site.ledger, spec, now(), 0.0)
        since = earliest(site.tables, site.ledger, spec)
    assert [row[0] for row in shown(site, spec)] == [0, 1, 2, 9]
    assert since is not None and (key or since < now())


def test_rows_without_a_key_grow_old_but_the_newest_commit_stays_on_disk(site: TableSite) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    spec = with_age(site, typed_table("ops.log", schema, [], uuids=uuids()), 3600)
    wal_at(site, 3 * HOUR, "w0").append(spec, rows(0, 3))
    catch_up(site)
    wal_at(site, 3 * HOUR, "w2").append(spec, rows(3, 3))
    catch_up(site)
    assert shown(site, spec) == []
    wal_at(site, 1000, "w1").append(spec, rows(9, 1))
    catch_up(site)
    assert [row[0] for row in shown(site, spec)] == [9]
