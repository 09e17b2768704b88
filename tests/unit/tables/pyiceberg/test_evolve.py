"""Iceberg tables follow a definition, whatever came into it since they followed it last."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from replication.core.definition.alter import drop_column, set_properties
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from tests.tables_made import keyed

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.int64())])


def test_a_column_is_dropped_at_once_with_the_sort_order_that_it_was_in(tmp_path: Path) -> None:
    catalog, spec = IcebergCatalog(catalog_properties(tmp_path)), keyed("ops.t", SCHEMA, sort=["v", "w"])
    catalog.create(spec)
    catalog.create(drop_column(set_properties(spec, {"sort": "w desc"}, 1), "v"))
    table = catalog.load("ops.t")
    named = table.schema().find_column_name
    assert [(named(f.source_id), f.direction.name) for f in table.sort_order().fields] == [("w", "DESC")]
    catalog.close()
