"""What peers still require of a file that is salvaged: what goes over to its saved copy, and whose route is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, StreamId
from replication.core.phase import Phase
from replication.ledger.base import Claim, FileRow, Rule
from replication.ledger.decisions.salvage import Requirement
from replication.ledger.sql.queries.rules import RuleCache, peers
from replication.ledger.sql.queries.statuses import statuses
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import execute_many

_rule, _start = sending.rules.c, sending.starts.c
Place = tuple[StreamId, int]


@dataclass(frozen=True, slots=True)
class Requirements:
    """Per (table, group) the rules that send it, with the cluster it goes to and the file's bytes that this lacks."""

    rules: Mapping[tuple[UUID, str], Sequence[tuple[Rule, ClusterId, Ranges]]]

    @staticmethod
    def load(connection: Connection, rules_cache: RuleCache, key: int, row: FileRow, end: int) -> Requirements:
        """Of a file, up to ``end`` at least."""
        made: dict[tuple[UUID, str], list[tuple[Rule, ClusterId, Ranges]]] = {}
        clusters = {peer.name: peer.cluster for peer in peers(connection)}
        for _, rule, status in statuses(connection, rules_cache, [(key, row)]):
            lacks = status.shipped.missing(status.begin, max(status.needed, end))
            made.setdefault((rule.table, rule.group), []).append((rule, clusters[rule.peer], lacks))
        return Requirements(made)

    def of(self, stream: StreamId) -> list[Requirement]:
        """What peers require of a stream; one that wrote it has it."""
        rules = self.rules.get((stream.table, stream.group), ())
        return [
            Requirement(rule.peer, lacks, rule.required_from.get(stream.wal, 0))
            for rule, cluster, lacks in rules
            if cluster != stream.wal.cluster
        ]

    def lacked(self) -> dict[tuple[UUID, str], Ranges]:
        """The bytes that some peer lacks, per (table, group)."""
        return {
            group: Ranges.union_of(span for _, _, lacks in rules for span in lacks)
            for group, rules in self.rules.items()
        }


def carry_over(
    connection: Connection,
    key: int,
    target: int,
    done: Mapping[Place, bool],
    copies: Mapping[Place, Claim],
    readable: Iterable[Claim],
) -> None:
    """How far each table has applied the copies, and where rules begin among them, as it was in the file.

    Args:
        connection: of the transaction.
        key: of the file.
        target: of the file of copies.
        done: of what was copied, whether it is applied here.
        copies: as they lie in the target.
        readable: frames as they lie in the file.
    """
    positions: dict[UUID, int] = {}
    for place, copy in copies.items():
        if done.get(place, False):
            positions[place[0].table] = max(copy.end, positions.get(place[0].table, 0))
    rows = [{"file_id": target, "table_uuid": str(t), "applied": end} for t, end in positions.items()]
    execute_many(connection, schema.positions.insert(), rows)
    ends = sorted(
        (claim.end, copies[claim.stream, claim.sequence].end)
        for claim in readable
        if (claim.stream, claim.sequence) in copies
    )
    begun = connection.execute(sa.select(_start.rule_id, _start.begin).where(_start.file_id == key)).all()
    begins = [
        {
            "file_id": target,
            "rule_id": rule,
            "begin": max((copy for end, copy in ends if end <= begin), default=FILE_HEADER_BYTES),
        }
        for rule, begin in begun
    ]
    execute_many(connection, sending.starts.insert(), begins)


def need_bootstraps(connection: Connection, lacking: Mapping[str, Iterable[UUID]]) -> None:
    """What these tables' rules require at peers is lost."""
    for peer, tables in lacking.items():
        here = (_rule.peer == peer) & _rule.table_uuid.in_([str(table) for table in tables])
        connection.execute(sending.rules.update().where(here).values(phase=Phase.NEEDS_BOOTSTRAP.value))
