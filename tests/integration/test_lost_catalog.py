"""The catalog is lost, or put back as it was before: what tables lack then is told, though nothing comes to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.replay import held_tables
from tests.fakes.tables import MemoryTables
from tests.replaying import TableSite
from tests.sites import rows, table


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableSite]:
    monkeypatch.setattr(held_tables, "_RETRY_WAIT", lambda failures: 0.0)
    made = TableSite(tmp_path, "east")
    yield made
    made.close()


def test_a_table_that_lacks_what_was_applied_is_held_until_it_is_back(site: TableSite) -> None:
    spec, other = table(), table("ops.other")
    for each in (spec, other):
        site.ledger.tables.create(each)
    wal = site.wal()
    wal.append(spec, rows(0, 10))
    site.register()
    assert site.replay().held == {}
    kept, site.tables = site.tables, MemoryTables()
    site.restart()
    for _ in range(3):
        assert "rolled back" in site.replayer.round().held[spec.name]
    wal.append(other, rows(0, 10))
    site.register()
    assert set(site.replay().held) == {spec.name}
    assert len(site.shown(other)) == 10
    site.tables = kept
    site.restart()
    assert set(site.replay().held) == {other.name}, "its rows are in the catalog that is gone now"
    assert len(site.shown(spec)) == 10


def test_a_table_that_holds_everything_is_not_opened_for_that(site: TableSite) -> None:
    spec = table()
    site.ledger.tables.create(spec)
    site.wal().append(spec, rows(0, 10))
    site.register()
    site.replay()
    before = site.tables.history(spec.name + "__changes").current
    site.restart()
    assert site.replay().held == {}
    assert site.tables.history(spec.name + "__changes").current == before
