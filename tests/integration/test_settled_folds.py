"""Folds of tables in which nothing waits: they are not looked into again before something changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peer.tables.fold import FullyFolded, fold
from replication.core.definition.alter import rename_column, set_properties
from tests.integration.conftest import Warehouse
from tests.integration.replay_site import Site, settle


class Folding:
    """A site's folds with one memory, and how many of them looked into the tables."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.fully_folded, self.looked = site, FullyFolded(), 0
        opened = site.tables.scratch_duckdb

        def counted() -> Any:
            self.looked += 1
            return opened()

        monkeypatch.setattr(site.tables, "scratch_duckdb", counted)

    def fold(self, hold_s: float = 600) -> bool:
        site = self.site
        return fold(site.tables, site.ledger, site.spec, site.wal.now, hold_s, self.fully_folded) is not None

    def pass_time(self) -> None:
        """Replicated time moves on, and nobody writes."""
        self.site.wal.now += 1_000_000
        self.site.wal.register(closed=self.site.wal.now)


@pytest.fixture
def folding(tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Folding:
    site = Site(tmp_path, warehouse)
    site.put(("a", 1), ("b", 2))
    settle(site.replayer())
    made = Folding(site, monkeypatch)
    assert made.fold()
    return made


def test_a_quiet_table_is_looked_into_once_and_is_as_new_as_its_replicated_time(folding: Folding) -> None:
    folding.looked = 0
    for _ in range(4):
        folding.pass_time()
        assert not folding.fold()
        assert folding.site.ledger.replay.folds()[folding.site.spec.uuid] == folding.site.wal.now
    assert folding.looked == 1


def test_what_comes_to_a_quiet_table_is_folded(folding: Folding) -> None:
    site = folding.site
    for value in (3, 4):
        folding.pass_time()
        assert not folding.fold()
        site.put(("a", value))
        settle(site.replayer())
        assert folding.fold()
        assert site.rows() == {"a": value, "b": 2}
    site.agree()


def test_rows_newer_than_replicated_time_are_folded_when_it_reaches_them(folding: Folding) -> None:
    site = folding.site
    folding.pass_time()
    assert not folding.fold()
    closed = site.wal.now
    site.wal.upsert(site.spec, [{"k": "c", "v": 3}], commit=closed + 5_000_000)
    site.wal.register(closed=closed)
    settle(site.replayer())
    assert not folding.fold()
    assert not folding.fold()
    folding.pass_time()
    assert folding.fold()


def test_a_table_that_was_altered_is_looked_into_again(folding: Folding) -> None:
    site = folding.site
    folding.pass_time()
    assert not folding.fold()
    folding.looked = 0
    site.spec = site.ledger.tables.alter(site.spec.uuid, lambda spec: rename_column(spec, "v", "w", 1))
    folding.pass_time()
    assert not folding.fold()
    assert folding.looked == 1 and site.tables.fits(site.spec)


def test_tables_whose_rows_grow_too_old_are_looked_into_each_time(folding: Folding) -> None:
    site = folding.site
    site.spec = site.ledger.tables.alter(site.spec.uuid, lambda spec: set_properties(spec, {"max_age_s": "100"}, 1))
    folding.looked = 0
    for _ in range(3):
        folding.pass_time()
        folding.fold()
    assert folding.looked == 3
