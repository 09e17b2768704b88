"""A catalog whose database does not answer is told as such, with what to do."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replication.errors import CoordinationError
from replication.tables.catalog.catalog import CatalogProperties, IcebergCatalog, catalog_properties
from tests.tables_made import keyed


def test_a_database_that_cannot_be_opened_any_more(tmp_path: Path) -> None:
    spec, file = keyed("ops.t"), tmp_path / "catalog.db"
    with closing(IcebergCatalog(catalog_properties(tmp_path))) as catalog:
        catalog.create(spec)
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    with closing(IcebergCatalog(catalog_properties(tmp_path))) as catalog:
        for path in tmp_path.glob("catalog.db*"):
            path.unlink()
        file.mkdir()
        for look_up in (catalog.history, catalog.load):
            with pytest.raises(CoordinationError, match=r"cannot be read: .*unable to open.*Check that it runs"):
                look_up(spec.name)


def test_a_server_that_refuses_connections() -> None:
    away = {"type": "sql", "uri": "postgresql+psycopg://walship@127.0.0.1:1/west?connect_timeout=2"}
    for warehouse in ("file:///nowhere", "s3://nowhere"):
        with (
            closing(IcebergCatalog(CatalogProperties({}, {**away, "warehouse": warehouse}))) as catalog,
            pytest.raises(CoordinationError, match="refused.*Check that it runs"),
        ):
            catalog.history("ops.t")
