"""A fold that meets a damaged file says which one, and what to do."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from peer.tables import fold as folding
from replication.errors import StorageError
from tests.fakes.tables import MemoryTables
from tests.sites import Site
from tests.tables_made import keyed


@pytest.mark.parametrize("error", [duckdb.IOException("no files found"), duckdb.InvalidInputException("in a.parquet")])
def test_a_fold_names_the_file_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: duckdb.Error
) -> None:
    def merge(*given: object) -> None:
        raise error

    monkeypatch.setattr(folding, "merge_changes", merge)
    site, tables, spec = Site(tmp_path, "east"), MemoryTables(), keyed("ops.t")
    tables.create(spec)
    try:
        site.ledger.tables.create(spec)
        with pytest.raises(StorageError, match=f"{error}.*from a backup"):
            folding.fold(tables, site.ledger, spec, 0, 600.0)
    finally:
        site.close()
