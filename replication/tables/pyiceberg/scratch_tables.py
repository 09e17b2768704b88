"""Scratch tables of an Iceberg catalog: a namespace whose tables are written to, then dropped with their files.

What they hold is nobody's only copy. They have no walship table's properties, so nothing takes them for one.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from replication.retries import repeated_on
from replication.tables.pyiceberg.local_io import local_path

_PROPERTIES = {"format-version": "2", "write.metadata.delete-after-commit.enabled": "true"}


class ScratchTables:
    """The tables of one namespace. Safe for several processes."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog = catalog
        self.namespace = namespace

    def name(self, table: str) -> str:
        """A table's full name."""
        return f"{self.namespace}.{table}"

    @repeated_on(CommitFailedException, times=20, pause_s=0.2)
    def append(self, table: str, rows: pa.Table) -> None:
        """Append rows; the first ones create the table, by their schema. Raises CommitFailedException."""
        with suppress(TableAlreadyExistsError, NamespaceAlreadyExistsError):
            if not self._catalog.table_exists(self.name(table)):
                with suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace(self.namespace)
                self._catalog.create_table(self.name(table), rows.schema, properties=_PROPERTIES)
        self._catalog.load_table(self.name(table)).append(rows)

    def bytes(self) -> int:
        """The bytes of all data files."""
        total = 0
        with suppress(NoSuchNamespaceError):
            for identifier in self._catalog.list_tables(self.namespace):
                snapshot = self._catalog.load_table(identifier).current_snapshot()
                if snapshot is not None and snapshot.summary is not None:
                    total += int(snapshot.summary.additional_properties.get("total-files-size", 0))
        return total

    def drop(self) -> None:
        """Drop every table with its files, and the namespace. Idempotent."""
        try:
            for identifier in self._catalog.list_tables(self.namespace):
                with suppress(NoSuchTableError, FileNotFoundError):
                    location = self._catalog.load_table(identifier).location()
                    self._catalog.purge_table(identifier)
                    _remove_folder(location)
            self._catalog.drop_namespace(self.namespace)
        except NoSuchNamespaceError:
            return


def _remove_folder(location: str) -> None:
    """Remove a table's folder, and its namespace's when that is empty, on a local disk; other stores have none."""
    if location.startswith("file:"):
        folder = Path(local_path(location))
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()
