"""Dropped tables: the definition files beside a SQLite ledger do not bring one back, and its rules end."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.store import store
from replication.ledger.sql.store.definition_files import DefinitionFiles
from tests.contract.ledger_stores import FLIGHTS, WEATHER, WEST, peer, table


class Killed(BaseException):
    """The process ends here."""


def test_what_a_killed_drop_left_of_a_table_is_removed_when_the_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    initialise(url, WEST)
    ledger = open_ledger(url)
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)

    def killed(files: DefinitionFiles, table: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(DefinitionFiles, "forget_table", killed)
        ledger.tables.drop(FLIGHTS.uuid)
    ledger.close()
    assert DefinitionFiles(path).tables().keys() == {FLIGHTS.uuid, WEATHER.uuid}
    initialise(url, WEST)
    assert DefinitionFiles(path).tables().keys() == {WEATHER.uuid}


@pytest.fixture
def few_parameters(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """SQLite takes as few parameters as the fixture gives in one statement."""
    most = 30

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)

    monkeypatch.setattr(store, "IN_LIST", most - 5)
    sa.event.listen(sa.Engine, "connect", limit)
    yield most
    sa.event.remove(sa.Engine, "connect", limit)


def test_rules_of_more_dropped_tables_end_than_a_statement_takes_parameters(
    tmp_path: Path, few_parameters: int
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url, WEST)
    with closing(open_ledger(url)) as ledger:
        ledger.rules.define(peer(), 0)
        specs = [table(f"ops.t{number}", number + 1) for number in range(few_parameters + 1)]
        for spec in specs:
            ledger.tables.create(spec)
            ledger.rules.enable("north", spec.uuid, ["default"], spec.name, 0)
            ledger.tables.drop(spec.uuid)
        ledger.time.raise_closed("h0", {}, 1 << 60)
        assert len(ledger.rules.end_of_dropped(0)) == len(specs)
        assert ledger.rules.all() == []
