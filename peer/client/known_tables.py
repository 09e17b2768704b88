"""Definitions of the tables that a handle writes to: from the ledger, or as last read while it does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from replication import log
from replication.core.definition.choice import full_name
from replication.core.definition.schema import TableSpec
from replication.errors import CoordinationError, UnknownTableError
from replication.ledger.base import Ledger
from replication.retries import next_ask_s

RETRY_S = 1.0
RETRY_MAX_S = 10.0  # every definition is up to date within this time once the ledger is back
_log = log.get(__name__)


class KnownTables:
    """Definitions by name, so that appends to an open WAL need no ledger. Safe for threads."""

    def __init__(self, ledger: Ledger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ledger = ledger
        self._known: dict[str, TableSpec] = {}
        self._retry_s = 0.0

    def get(self, name: str) -> TableSpec:
        """A table's definition.

        Raises:
            UnknownTableError: there is no such table.
            CoordinationError: the ledger does not answer, and the table was not read before.
        """
        name = full_name(name)
        known = self._known.get(name)
        begun_s = self._monotonic()
        if known is not None and begun_s < self._retry_s:
            return known
        try:
            self._known[name] = spec = self._ledger.tables.get(name)
        except UnknownTableError:
            self._known.pop(name, None)
            raise
        except CoordinationError as error:
            if known is None:
                raise
            self._retry_s = next_ask_s(begun_s, self._monotonic(), RETRY_S, RETRY_MAX_S)
            _log.warning("definition_not_read", table=name, error=str(error))
            return known
        return spec
