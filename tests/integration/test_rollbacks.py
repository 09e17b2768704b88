"""A table that somebody rolled back gets again what it lost, no more and no less; against the fake warehouse."""

from __future__ import annotations

import pytest

from replication.errors import SchemaError
from tests.fakes.tables import MemoryTables
from tests.integration.replay_site import Site, settle
from tests.origin import OriginWal
from tests.tables_made import keyed

pytestmark = pytest.mark.parametrize("warehouse", ["memory"], indirect=True)  # what is replayed again, any would get


def current(site: Site, name: str) -> int:
    snapshot = site.tables.history(name).current
    assert snapshot is not None
    return snapshot


def test_a_rollback_replays_nothing_from_before_what_it_lost_though_another_table_kept_the_file(site: Site) -> None:
    log = site.table(keyed(f"{site.warehouse.namespace}.log", key=()))
    second = OriginWal(site.ledger, site.directory / "wal")

    def refused(step: str) -> None:
        if site.spec.name in step:
            raise SchemaError("it does not fit")

    assert isinstance(site.tables, MemoryTables)
    site.tables.fail = refused
    replayer = site.replayer()
    site.put(("held", 0))
    site.put(("first", 1), spec=log)
    replayer.round()
    second.upsert(log, [{"k": "elsewhere", "v": 2}])
    second.register()
    replayer.round()
    kept = current(site, log.name)
    site.expire_all_but_current(log.name)
    replayer = site.replayer()  # knows only how far the file is applied to all tables
    site.put(("lost", 3), spec=log)
    replayer.round()
    site.warehouse.rollback(log.name, kept)
    site.put(("last", 4), spec=log)
    settle(replayer)
    replayer = site.replayer()
    settle(replayer)
    rows = site.tables.query(f"select k from {site.tables.ref(log.name)} order by v").to_pylist()
    assert [row["k"] for row in rows] == ["first", "elsewhere", "lost", "last"]


def test_a_rollback_needs_no_file_that_only_had_rows_of_other_tables(site: Site) -> None:
    other = site.table(keyed(f"{site.warehouse.namespace}.other"))
    theirs = OriginWal(site.ledger, site.directory / "wal")
    replayer = site.replayer()
    site.put(("a", 1))
    replayer.round()
    kept = current(site, site.spec.name + "__changes")
    site.put(("b", 2))
    theirs.upsert(other, [{"k": "x", "v": 1}])
    theirs.register()
    replayer.round()
    site.ledger.files.close(theirs.row.file, theirs.registered)
    site.ledger.files.retire(theirs.row.file, 0)
    assert site.ledger.files.get(theirs.row.file) is None
    site.warehouse.rollback(site.spec.name + "__changes", kept)
    site.put(("c", 3))
    assert not settle(replayer).held
    assert site.rows() == {"a": 1, "b": 2, "c": 3}
