"""Importing files of rows for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from replication.core.definition.schema import TableSpec
from replication.writer.importing.importer import Imported
from replication.writer.writer import Writer
from tests.unit.writer.site import Site, some

ROWS = 150_000


def parquet(folder: Path, rows: pa.Table | None = None, name: str = "a.parquet") -> Path:
    path = folder / name
    pq.write_table(some(0, ROWS) if rows is None else rows, path)
    return path


def load(writer: Writer, spec: TableSpec, path: Path, form: str = "", *, again: bool = False) -> Imported:
    return writer.import_file(spec, path, form, lambda _: None, again=again)


def bulk_rows(site: Site) -> list[Any]:
    """The WALs of imports: those after the writer's own first one."""
    return site.rows()[1:]
