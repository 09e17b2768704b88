"""Rules, standing ones and peers as a transaction sees them."""

from __future__ import annotations

import json
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import ClusterId, FileId
from replication.ledger.base import PatternRule, Peer, Phase, Rule
from replication.ledger.sql.queries.gaps import read_gaps
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema.touched import RULES
from replication.ledger.sql.store.keys import file_id
from replication.ledger.sql.store.store import chunked, counter

_peer, _rule, _required_from = sending.peers.c, sending.rules.c, sending.required_from.c


class RuleCache:
    """Rules in force. What a rule requires never changes and may be long, so it is read once a process."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self._required_from: dict[int, dict[FileId, int]] = {}
        self._kept: tuple[int, list[Rule]] = (-1, [])

    def in_force(self, connection: Connection, table: UUID | None = None) -> list[Rule]:
        """All rules, or those of a table, as the connection's transaction sees them."""
        wanted = sa.select(sending.rules).order_by(_rule.peer, _rule.table_uuid, _rule.grp)
        if table is not None:
            wanted = wanted.where(_rule.table_uuid == str(table))
        rows = connection.execute(wanted).all()
        known = self._required_from
        unread = [row.id for row in rows if row.id not in known]
        read: dict[int, dict[FileId, int]] = {key: {} for key in unread}
        for ids in chunked(unread):
            for row in connection.execute(sa.select(sending.required_from).where(_required_from.rule_id.in_(ids))):
                read[row.rule_id][file_id(row.wal)] = row.sequence
        required_from = {row.id: read[row.id] if row.id in read else known[row.id] for row in rows}
        self._required_from = required_from if table is None else known | required_from
        return [
            Rule(
                r.peer,
                UUID(r.table_uuid),
                r.grp,
                r.remote_table,
                r.generation,
                required_from[r.id],
                Phase(r.phase),
                r.since,
                read_gaps(r.gaps),
                r.with_properties,
                r.every_group,
            )
            for r in rows
        ]

    def known(self, connection: Connection) -> list[Rule]:
        """As ``in_force``, read anew only when a rule or peer changed; for a connection that writes nothing itself."""
        revision = counter(connection, RULES)
        if self._kept[0] < revision:
            self._kept = revision, self.in_force(connection)
        return self._kept[1]


def read_pattern_rules(connection: Connection) -> list[PatternRule]:
    """Every standing rule, by peer and pattern."""
    c = sending.standing.c
    rows = connection.execute(sa.select(sending.standing).order_by(c.peer, c.pattern))
    return [
        PatternRule(r.peer, r.pattern, tuple(json.loads(r.excluded)), tuple(json.loads(r.grps)), r.with_properties)
        for r in rows
    ]


def peers(connection: Connection) -> list[Peer]:
    """All peers, by name."""
    rows = connection.execute(sa.select(sending.peers).order_by(_peer.name))
    return [Peer(row.name, row.zookeepers, ClusterId.parse(row.cluster), row.paused, row.rate) for row in rows]
