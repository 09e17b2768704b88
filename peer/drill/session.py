"""SQL on a fork: DuckDB runs queries; INSERT, UPDATE and DELETE of forked tables become rows of their scratch tables.

An UPDATE runs on a temporary copy of the rows that its condition finds, and what it made of them is written. So its
expressions mean what they mean in DuckDB. Each statement is committed by itself, and sees all that was written before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from peer.drill.changes import TableChange, parse_change
from peer.drill.fork import ForkedTable, ForkTables
from peer.tables.read import open_named, query_result
from replication.core.definition.choice import DEFAULT_NAMESPACE
from replication.errors import RequestError
from replication.tables.base import DUCKDB
from replication.tables.duckdb.confined import refusal
from replication.tables.layout import LATEST
from replication.tables.pyiceberg.damage import refuse_unreadable

_CHANGES = (
    duckdb.StatementType.INSERT,
    duckdb.StatementType.UPDATE,
    duckdb.StatementType.DELETE,
    duckdb.StatementType.MERGE_INTO,
)
_WORK, _KEYS = "temp.main.walship_changed_rows", "temp.main.walship_changed_keys"


@dataclass(frozen=True, slots=True)
class Answered:
    """What a statement did: the first rows of a query's result, or how many rows a change touched.

    ``checked`` is None unless every column of a query is boolean: then whether there are rows, and all values are true.
    """

    changed: int | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    checked: bool | None = None


class ForkSession:
    """A DuckDB session on a fork. Temporary tables and views that it makes last as long as it does.

    ``interrupt`` may be called by any thread; everything else by one.
    """

    def __init__(self, fork: ForkTables) -> None:
        self._fork = fork
        self._connection = open_named()

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def interrupt(self) -> None:
        """End the query that runs, with an error."""
        self._connection.interrupt()

    def rows(self, query: str) -> pa.RecordBatchReader:
        """The rows of a query, or the number of rows that a change changed. Raises RequestError with DuckDB's words."""
        statement = self._single(query)
        change = self._change(statement)
        if change is not None:
            return pa.table({"changed": [self._apply(*change)]}).to_reader()
        self._fork.attach_named(self._connection, query)
        return query_result(self._connection, statement)

    def run(self, query: str, rows_max: int) -> Answered:
        """Run one statement, and keep the first ``rows_max`` rows of its result. Raises as ``rows``."""
        statement = self._single(query)
        change = self._change(statement)
        if change is not None:
            return Answered(changed=self._apply(*change))
        self._fork.attach_named(self._connection, query)
        try:
            found = self._connection.execute(query)
            if self._connection.description is None:
                return Answered()
            columns, kinds = zip(*((each[0], str(each[1])) for each in found.description), strict=True)
            is_check = set(kinds) == {"BOOLEAN"} and statement.type == duckdb.StatementType.SELECT
            kept: list[tuple[str, ...]] = []
            checked, count = True, 0
            for row in _fetched(found):
                count += 1
                checked = checked and all(value is True for value in row)
                if len(kept) < rows_max:
                    kept.append(tuple("NULL" if value is None else str(value) for value in row))
                elif not is_check:
                    break
        except duckdb.Error as error:
            refuse_unreadable(error)
            raise refusal(error) from None
        return Answered(None, columns, tuple(kept), (checked and count > 0) if is_check else None)

    def _single(self, query: str) -> duckdb.Statement:
        try:
            statements = self._connection.extract_statements(query)
        except duckdb.Error as error:
            raise refusal(error) from None
        if len(statements) != 1:
            raise RequestError(f"{len(statements)} statements were given", "Give one at a time")
        if statements[0].type == duckdb.StatementType.TRANSACTION:
            raise RequestError("a drill's fork has no transactions", "Each statement is committed by itself")
        return statements[0]

    def _change(self, statement: duckdb.Statement) -> tuple[TableChange, ForkedTable] | None:
        """The change of a forked table that a statement is; None for everything that DuckDB does alone."""
        if statement.type not in _CHANGES:
            return None
        change = parse_change(statement.query)
        names = [part.casefold() for part in change.target]
        names = names[1:] if len(names) == 3 and names[0] == "walship" else names
        names = [DEFAULT_NAMESPACE, *names] if len(names) == 1 else names
        wanted = ".".join(names).removesuffix(LATEST)
        for table in self._fork.fork.tables:
            if table.spec.name.casefold() == wanted:
                return change, table
        return None

    def _apply(self, change: TableChange, table: ForkedTable) -> int:
        name = table.spec.name
        if change.verb == "merge" or change.returns:
            what = "MERGE" if change.verb == "merge" else "RETURNING"
            raise RequestError(f"{what} is not possible on {name} in a drill", "Use INSERT, UPDATE or DELETE")
        if change.verb != "insert" and not table.spec.key:
            raise RequestError(f"{name} has no key, so its rows cannot be changed", "Insert into it, or read it")
        self._fork.attach_named(self._connection, f"{change.before} {DUCKDB.name(name)} {change.after}")
        try:
            return getattr(self, f"_{change.verb}")(change, table)  # type: ignore[no-any-return]
        except duckdb.Error as error:
            refuse_unreadable(error)
            raise refusal(error) from None
        finally:
            for work in (_WORK, _KEYS):
                self._connection.execute(f"drop table if exists {work}")

    def _insert(self, change: TableChange, table: ForkedTable) -> int:
        columns = ", ".join(DUCKDB.name(column.name) for column in table.spec.columns)
        view = DUCKDB.name(table.spec.name)
        self._connection.execute(f"create or replace temp table {_WORK} as select {columns} from {view} where false")
        self._connection.execute(f"{change.before}{_WORK}{change.after}")
        return self._fork.upsert(table.spec.name, self._rows(f"select * from {_WORK}"))

    def _update(self, change: TableChange, table: ForkedTable) -> int:
        columns = ", ".join(f"{change.alias}.{DUCKDB.name(column.name)}" for column in table.spec.columns)
        keys = ", ".join(map(DUCKDB.name, table.spec.key))
        self._connection.execute(f"create or replace temp table {_WORK} as {self._found(change, table, columns)}")
        self._connection.execute(f"create or replace temp table {_KEYS} as select {keys} from {_WORK}")
        has_alias = not change.after.lstrip().lower().startswith("set")
        named = "" if has_alias else f" as {change.alias}"
        self._connection.execute(f"{change.before}{_WORK}{named}{change.after}")
        gone = f"select {keys} from {_KEYS} except select {keys} from {_WORK}"
        self._fork.delete(table.spec.name, self._rows(gone))
        return self._fork.upsert(table.spec.name, self._rows(f"select * from {_WORK}"))

    def _delete(self, change: TableChange, table: ForkedTable) -> int:
        keys = ", ".join(f"{change.alias}.{DUCKDB.name(key)}" for key in table.spec.key)
        return self._fork.delete(table.spec.name, self._rows(self._found(change, table, keys)))

    _truncate = _delete

    def _found(self, change: TableChange, table: ForkedTable, columns: str) -> str:
        """The query for the rows that an UPDATE or DELETE is about."""
        where = change.where or "true"
        if change.others:
            where = f"exists (select 1 from {change.others} where {where})"
        found = f"{DUCKDB.name(table.spec.name)} as {change.alias}"
        return f"{change.prefix} select {columns} from {found} where {where}"

    def _rows(self, query: str) -> pa.Table:
        return self._connection.sql(query).to_arrow_table()


class OpenFork(ForkTables):
    """A fork opened for reading and writing, in Arrow and in SQL, as a probe in Python has it."""

    def sql(self, query: str) -> pa.RecordBatchReader:
        """Run a query over the fork's tables, or change rows of one; then the result is how many rows were changed.

        Raises:
            RequestError: DuckDB refuses it, or a fork cannot do it.
        """
        return ForkSession(self).rows(query)


def _fetched(found: duckdb.DuckDBPyConnection) -> Iterator[tuple[object, ...]]:
    while rows := found.fetchmany(1000):
        yield from rows
