"""Views in an Iceberg catalog in a SQL database, for every engine that reads the catalog and supports views.

PyIceberg creates views only in REST catalogs. Spark leaves a metadata file behind each time it replaces a view. Here a
view has one row and two metadata files, the newest and the one before, by Iceberg's view specification.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from uuid import uuid4

import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables as Entry
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyiceberg.view.metadata import (
    SQLViewRepresentation,
    ViewHistoryEntry,
    ViewMetadata,
    ViewRepresentation,
    ViewVersion,
)

_VIEW = "VIEW"


def put_view(catalog: Catalog, name: str, location: str, columns: Sequence[NestedField], query: str) -> None:
    """Create or replace the view ``name``; nothing is written when it is unchanged, or to a catalog of another kind.

    When two processes replace it at the same time, one of them wins. The namespace of ``name`` is also that of the
    tables that ``query``, in Spark's dialect, names without one.
    """
    if not isinstance(catalog, SqlCatalog):  # others store views in their own ways
        return
    namespace, here = name.partition(".")[0], _entry(catalog, name)
    io = load_file_io(dict(catalog.properties), location)
    with catalog.engine.connect() as connection:
        select = sa.select(Entry.metadata_location, Entry.previous_metadata_location).where(here)
        at, old = connection.execute(select).one_or_none() or (None, None)
    before = _read(io, at) if at is not None else None
    metadata = _next_metadata(before, namespace, location, Schema(*columns), query)
    if metadata is None:
        return
    address = f"{location}/metadata/{metadata.current_version_id:05d}-{uuid4()}.metadata.json"
    with io.new_output(address).create() as out:
        out.write(metadata.model_dump_json(by_alias=True, exclude_none=True).encode())
    if at is None:
        short = name.partition(".")[2]
        change: sa.Insert | sa.Update = sa.insert(Entry).values(
            catalog_name=catalog.name,
            table_namespace=namespace,
            table_name=short,
            metadata_location=address,
            iceberg_type=_VIEW,
        )
    else:
        moved = {"metadata_location": address, "previous_metadata_location": at}
        change = sa.update(Entry).where(here, Entry.metadata_location == at).values(**moved)
    try:
        with catalog.engine.begin() as connection:
            done = connection.execute(change).rowcount
    except sa.exc.IntegrityError:  # another process has just created it
        done = 0
    unused = old if done else address
    if unused:
        with contextlib.suppress(OSError):  # else it stays, unreferenced
            io.delete(unused)


def _entry(catalog: SqlCatalog, name: str) -> sa.ColumnElement[bool]:
    namespace, _, short = name.partition(".")
    return sa.and_(
        Entry.catalog_name == catalog.name,
        Entry.table_namespace == namespace,
        Entry.table_name == short,
        Entry.iceberg_type == _VIEW,
    )


def _read(io: FileIO, address: str) -> ViewMetadata | None:
    """Read a metadata file; None when it is missing or not readable, so that the view is created again."""
    try:
        with io.new_input(address).open() as file:
            return ViewMetadata.model_validate_json(file.read())
    except (OSError, ValueError):
        return None


def _next_metadata(
    before: ViewMetadata | None, namespace: str, location: str, schema: Schema, query: str
) -> ViewMetadata | None:
    """Return the new metadata of the view, with one version; None when ``before`` has the same query and schema."""
    number = 1
    if before is not None:
        now = next(version for version in before.versions if version.version_id == before.current_version_id)
        same = before.schemas == [schema] and [each.root.sql for each in now.representations] == [query]
        if same:
            return None
        number = before.current_version_id + 1
    version = ViewVersion(
        version_id=number,
        schema_id=schema.schema_id,
        timestamp_ms=time.time_ns() // 1_000_000,
        summary={"engine-name": "walship"},
        representations=[ViewRepresentation(SQLViewRepresentation(type="sql", sql=query, dialect="spark"))],
        default_namespace=(namespace,),
    )
    return ViewMetadata(
        view_uuid=before.view_uuid if before is not None else str(uuid4()),
        format_version=1,
        location=location,
        schemas=[schema],
        current_version_id=number,
        versions=[version],
        version_log=[ViewHistoryEntry(timestamp_ms=version.timestamp_ms, version_id=number)],
    )
