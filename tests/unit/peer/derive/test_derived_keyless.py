"""Derived tables without a key: no row may go through a hook twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from peer.derive import deriver, hooks
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import RequestError
from replication.ledger.base import ReplayCheckpoint
from replication.ledger.sql.parts.replay import SqlReplay
from tests.deriving import DerivingSite, Killed
from tests.sites import Wal
from tests.tables_made import uuids
from tests.unit.peer.derive.test_derived import KILLS, PUBLIC, SCHEMA, rows, shown

pytestmark = pytest.mark.heavy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DerivingSite]:
    with ExitStack() as stack:
        yield DerivingSite(tmp_path, "east", stack)


def log_of(site: DerivingSite) -> tuple[TableSpec, TableSpec, Wal]:
    """A table without a key, what is derived of it, and the WAL that its rows are in."""
    spec = typed_table("ops.log", SCHEMA, [], uuids=uuids())
    site.ledger.tables.create(spec)
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5), (2, "bob", 500)))
    site.catch_up()
    return spec, site.define("ops.log_public", "ops.log", "select", PUBLIC), wal


def test_a_new_hook_applies_to_later_rows_only(site: DerivingSite) -> None:
    spec, public, wal = log_of(site)
    site.derive(public)
    before = site.derivation(public)
    site.define("ops.log_public", hook="select", options=PUBLIC)
    assert site.derivation(public) == before, "nothing new was said"
    site.define("ops.log_public", options={"where": "n < 1000"})
    wal.append(spec, rows((3, "eve", 700)))
    site.derive(public)
    assert sorted(shown(site, public)) == [(1, None, 5), (3, "eve", 700)]


@pytest.mark.parametrize("where", KILLS)
def test_a_hook_changed_during_a_step_doubles_no_row(site: DerivingSite, where: str) -> None:
    _, public, _ = log_of(site)
    site.kill_at = where
    with pytest.raises(Killed):
        site.derive(public)
    site.define("ops.log_public", options={"where": "n < 1000"})
    site.derive(public)
    found = sorted(row[0] for row in shown(site, public))
    assert found in ([1], [1, 2]) and (found == [1]) is (where in ("written", "wait", "settle"))


def test_a_source_that_was_rolled_back_stops_the_derived_table_for_good(site: DerivingSite) -> None:
    spec, public, wal = log_of(site)
    site.derive(public)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqlReplay, "checkpoint", lambda self, table: ReplayCheckpoint(table, 1, 0, 0, {}))
        with pytest.raises(RequestError, match="was rolled back or restored"):
            site.deriver().step(site.derivation(public))
    wal.append(spec, rows((3, "eve", 7)))
    with pytest.raises(RequestError, match="was rolled back or restored"):
        site.derive(public)
    with pytest.raises(RequestError, match="droptable"):
        site.define("ops.log_public", options={"where": "n < 1000"})
    assert [row[0] for row in shown(site, public)] == [1]


def test_commits_that_are_replayed_again_after_a_rollback_are_not_derived_again(site: DerivingSite) -> None:
    spec, public, wal = log_of(site)
    site.derive(public)
    kept = site.tables.history(spec.name).current
    wal.append(spec, rows((3, "eve", 7)))
    site.derive(public)
    assert kept is not None
    site.tables.rollback(spec.name, kept)  # type: ignore[attr-defined]  # the warehouse in memory
    wal.append(spec, rows((4, "dan", 8)))
    site.catch_up()
    assert sorted(row[0] for row in shown(site, spec)) == [1, 2, 3, 4], "before the deriver looks again"
    with pytest.raises(RequestError, match="was rolled back or restored"):
        site.derive(public)
    assert sorted(row[0] for row in shown(site, public)) == [1, 3]


def test_a_rollback_of_commits_that_are_not_derived_yet_changes_nothing(site: DerivingSite) -> None:
    spec, public, wal = log_of(site)
    site.derive(public)
    kept = site.tables.history(spec.name).current
    wal.append(spec, rows((3, "eve", 7)))
    site.catch_up()
    assert kept is not None
    site.tables.rollback(spec.name, kept)  # type: ignore[attr-defined]  # the warehouse in memory
    wal.append(spec, rows((4, "dan", 8)))
    site.derive(public)
    assert sorted(row[0] for row in shown(site, public)) == [1, 3, 4]


def test_a_restored_cluster_derives_nothing_more(site: DerivingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    _, public, _ = log_of(site)
    site.derive(public)
    other = ClusterId(site.cluster.name, UUID(int=99))
    monkeypatch.setattr(deriver, "version_of", lambda hook, _, spec: hooks.version_of(hook, other, spec))
    with pytest.raises(RequestError, match="was rolled back or restored"):
        site.derive(public)
