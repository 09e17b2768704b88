"""The definition files beside a SQLite ledger do not bring a dropped table back."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.store.definition_files import DefinitionFiles
from tests.contract.ledger_stores import FLIGHTS, WEATHER, WEST


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
