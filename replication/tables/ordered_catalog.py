"""A catalog in SQL whose tables' times never go back; see ``ordered.py``."""

from __future__ import annotations

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from replication.tables.damage import naming
from replication.tables.ordered import in_order, not_before


class OrderedCatalog(SqlCatalog):
    """Every commit goes through here, of rows or of metadata alone, and mends what was out of order before."""

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

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        with naming(str(orm_table.metadata_location)):
            return super()._convert_orm_to_iceberg(orm_table)
