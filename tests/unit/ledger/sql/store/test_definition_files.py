"""The definition files beside a SQLite ledger have each table's schema versions, also if tables share a hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from replication.ledger.sql.store.definition_files import DefinitionFiles
from tests.contract.ledger_stores import FLIGHTS


def test_tables_with_the_same_columns_have_each_their_own_file(tmp_path: Path) -> None:
    kept = DefinitionFiles(tmp_path / "ledger.db")
    versions = [*FLIGHTS.versions.values(), *replace(FLIGHTS, uuid=uuid4()).versions.values()]
    for version in versions:
        kept.keep_version(version)
    found = DefinitionFiles(tmp_path / "ledger.db").versions()
    assert {version.table for version in found} == {version.table for version in versions} and len(found) == 2
    assert {version.hash for version in found} == {versions[0].hash}
