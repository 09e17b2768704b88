"""A SQL catalog that keeps the times in tables' metadata ascending; see ``ordered.py``."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from replication.tables.pyiceberg.ordered import in_order, not_before
from replication.tables.pyiceberg.parsed import note_written, read_metadata


class OrderedCatalog(SqlCatalog):
    """PyIceberg's SQL catalog. Every commit, of rows or metadata, repairs times that are out of order."""

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is not None:
            newest = in_order(current_table.metadata).last_updated_ms
            updates = tuple(not_before(newest, update) for update in updates)
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        staged.metadata = in_order(staged.metadata)
        return staged

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """See PyIceberg's ``Catalog``. The new metadata is put into the cache of parsed files."""
        response = super().commit_table(table, requirements, updates)
        note_written(table.io, response.metadata_location, response.metadata)
        return response

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = str(orm_table.metadata_location)
        io = self._load_file_io(self.properties, location)
        metadata = read_metadata(io, location)
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return Table(identifier, metadata, location, self._load_file_io(metadata.properties, location), self)
