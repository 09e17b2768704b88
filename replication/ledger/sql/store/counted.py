"""A value that is read from the ledger again only when one of its counters has grown. See ``schema.touched``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import SqlStore

_c = schema.counters.c
Value = TypeVar("Value")


class Counted(Generic[Value]):
    """The value of ``read``, under counters one of which every change of it raises. Only for read transactions."""

    def __init__(self, read: Callable[[Connection], Value], *names: str) -> None:
        self._revision = _sum_of(names)
        self._read = read
        self._kept: tuple[int, Value] | None = None

    def known(self, store: SqlStore) -> Value:
        """As ``get``, in a transaction of its own."""
        kept = self._kept
        if kept is not None and kept[0] >= _sum(store.rows(self._revision)):
            return kept[1]
        with store.read() as connection:
            return self.get(connection)

    def get(self, connection: Connection) -> Value:
        """The value as it is now. Callers must not change it."""
        revision, kept = _sum(self._revision.run(connection, {})), self._kept
        if kept is None or kept[0] < revision:
            kept = self._kept = revision, self._read(connection)
        return kept[1]


@cache
def _sum_of(names: tuple[str, ...]) -> Prepared:
    return Prepared(sa.select(sa.func.sum(_c.value)).where(sa.or_(*(_c.name == name for name in names))))


def _sum(rows: Iterable[Sequence[Any]]) -> int:
    ((value,),) = rows
    return int(value or 0)
