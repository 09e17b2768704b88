"""A value that is read from the ledger again only when its counter has grown. See ``schema.touched``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sqlalchemy.engine import Connection

from replication.ledger.sql.store.store import SqlStore, counter

Value = TypeVar("Value")


class Counted(Generic[Value]):
    """The value of ``read``, under a counter that every change of it raises. Only for read transactions."""

    def __init__(self, name: str, read: Callable[[Connection], Value]) -> None:
        """Start with nothing read."""
        self._name = name
        self._read = read
        self._kept: tuple[int, Value] | None = None

    def known(self, store: SqlStore) -> Value:
        """As ``get``, in a transaction of its own."""
        kept = self._kept
        if kept is not None and kept[0] >= store.counter(self._name):
            return kept[1]
        with store.read() as connection:
            return self.get(connection)

    def get(self, connection: Connection) -> Value:
        """The value as it is now. Callers must not change it."""
        revision, kept = counter(connection, self._name), self._kept
        if kept is None or kept[0] < revision:
            kept = self._kept = revision, self._read(connection)
        return kept[1]
