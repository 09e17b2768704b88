"""A small table in a warehouse without Spark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa

from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.pyiceberg.local_io import local_path
from replication.tables.spark.iceberg import IcebergTables
from tests.tables_made import as_decode, keyed

KEYS = "abcdef"


class Small:
    """A table of six files and one row each, in a warehouse without Spark."""

    def __init__(self, folder: Path) -> None:
        """Create it below a folder."""
        self.catalog = IcebergCatalog(catalog_properties(folder))
        self.tables = IcebergTables(self.catalog, cast(Any, None))
        self.name = "ops.t"
        self.tables.create(keyed(self.name))
        for key in KEYS:
            self.append(key)

    def append(self, key: str) -> None:
        """Append a row in a file of its own."""
        rows = as_decode(pa.table({"k": [key], "v": pa.array([len(key)], pa.int64())}))
        self.tables.append(self.name, dataclasses.replace(rows, size=100), self.tables.history(self.name).current, {})

    def keys(self, snapshot: int | None = None) -> list[str]:
        """The keys of its rows."""
        with duckdb.connect() as connection:
            self.tables.attach(connection, "shown", self.name, snapshot=snapshot)
            return [key for (key,) in connection.execute("select k from shown order by k").fetchall()]

    def summary(self) -> dict[str, str]:
        """Of the current snapshot."""
        history = self.tables.history(self.name)
        return dict(history.snapshots[history.current or 0].summary)

    def files(self) -> set[str]:
        """The files of its folder, but for its metadata."""
        folder = Path(local_path(self.catalog.load(self.name).location()))
        return {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".metadata.json")}

    def reachable(self) -> set[str]:
        """The files that its snapshots have."""
        table, found = self.catalog.load(self.name), set[str]()
        for snapshot in table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                entries = manifest.fetch_manifest_entry(table.io)
                found |= {manifest.manifest_path, *(entry.data_file.file_path for entry in entries)}
        return {local_path(each) for each in found}
