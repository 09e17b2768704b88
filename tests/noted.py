"""What a ledger is told beside the frames of a test, as production stores it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from replication.core.ids import ClusterId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.base import Ledger, Rule
from replication.ledger.sql.queries.notices import keep_notice
from replication.ledger.sql.queries.retention import need_bootstrap as needs


def note_closed(ledger: Ledger, origin: ClusterId, notice: ClosedNotice) -> None:
    """Keep a closed notice as the registration of its frame does."""
    with _store(ledger).write() as connection:
        keep_notice(connection, str(origin), notice)


def need_bootstrap(ledger: Ledger, peer: str, table: UUID) -> list[Rule]:
    """Have a table need a bootstrap as after the release of files that it needs; return its rules for the peer."""
    with _store(ledger).write() as connection:
        needs(connection, peer, [table])
    return [rule for rule in ledger.rules.all() if (rule.peer, rule.table) == (peer, table)]


def _store(ledger: Ledger) -> Any:
    real: Any = getattr(ledger, "_real", ledger)
    return real._store
