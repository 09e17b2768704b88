"""Beginning the rules of many tables at once, in as many statements as for one."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.phase import Phase
from replication.ledger.base import FileKind
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.rules import gaps_of_new, write_gaps
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import execute_many

_f, _rule = schema.files.c, sending.rules.c


def begin_live(
    connection: Connection,
    peer: str,
    wanted: Mapping[tuple[UUID, str], tuple[str, bool, bool]],
    generation: int,
    now: int,
) -> None:
    """Begin LIVE rules of one new generation. They require sequences after those claimed now.

    Args:
        connection: of the transaction.
        peer: the peer.
        wanted: by (table, group) the remote table's name, ``with_properties`` and ``every_group``; none has a rule for
            the peer.
        generation: theirs, and of no earlier rule.
        now: microseconds since 1970.
    """
    first: dict[tuple[UUID, str], dict[FileId, int]] = {}
    for stream, ranges in coverage(connection, None).items():
        if (stream.table, stream.group) in wanted:
            first.setdefault((stream.table, stream.group), {})[stream.wal] = ranges.end
    same = {"peer": peer, "generation": generation, "phase": Phase.LIVE.value, "since": now}
    own = ("remote_table", "with_properties", "every_group")
    rows = [
        same | {"table_uuid": str(table), "table_group": group} | dict(zip(own, rule, strict=True))
        for (table, group), rule in wanted.items()
    ]
    execute_many(connection, sending.rules.insert(), rows)
    begun = (_rule.peer == peer) & (_rule.generation == generation)
    made = connection.execute(sa.select(_rule.id, _rule.table_uuid, _rule.table_group).where(begun)).all()
    required = [
        {"rule_id": row.id, "wal": str(wal), "sequence": sequence}
        for row in made
        for wal, sequence in first.get((UUID(row.table_uuid), row.table_group), {}).items()
    ]
    execute_many(connection, sending.required_from.insert(), required)
    grown = (
        sa.select(_f.id, _rule.id, _f.length)
        .join_from(schema.files, sending.rules, begun)
        .where(_f.kind != FileKind.CONTROL, _f.length > FILE_HEADER_BYTES)
    )
    connection.execute(sending.rule_begins.insert().from_select(["file_id", "rule_id", "begin"], grown))
    ended = {(UUID(row.table_uuid), row.table_group) for row in connection.execute(sa.select(sending.ended_rules))}
    for row in made:
        group = UUID(row.table_uuid), row.table_group
        if group in first or group in ended:
            gaps = gaps_of_new(connection, peer, *group, first.get(group, {}), now)
            if gaps:
                here = _rule.id == row.id
                connection.execute(sending.rules.update().where(here).values(gaps=write_gaps(gaps)))
