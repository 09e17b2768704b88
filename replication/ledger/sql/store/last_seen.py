"""When each cluster that sends here was last seen."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from replication.core.ids import ClusterId
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import upsert
from replication.wall_clock import now_us

_EVERY_US = 1_000_000
_NOTE = upsert(schema.last_seen, "source")


class LastSeen:
    """Records about once a second that a sender is alive; shared by the parts of one ledger."""

    def __init__(self) -> None:
        self._noted: dict[ClusterId, int] = {}

    def note(self, connection: Connection, source: ClusterId) -> None:
        """Record that a message from ``source`` arrived now."""
        now = now_us()
        if abs(now - self._noted.get(source, 0)) >= _EVERY_US:
            self._noted[source] = now
            _NOTE.run(connection, {"source": str(source), "at": now})
