"""Which files bootstraps pin: those with frames that a peer needs beside the snapshot's rows, until it is complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import FileId
from replication.core.phase import Phase
from replication.core.status import ReplicationStatus
from replication.ledger.base import FileKind, FileRow, Rule
from replication.ledger.sql.queries.claims import sent_on
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import chunked

_s = schema.streams.c
Pin = tuple[FileId, str, UUID, str]


def pins(
    connection: Connection,
    rows: Mapping[FileId, tuple[int, FileRow]],
    found: Iterable[tuple[FileId, Rule, ReplicationStatus]],
) -> set[Pin]:
    """Of statuses those (file, peer, table, group) that are BOOTSTRAPPING and for which the file must stay.

    Of a closed WAL or landing file that depends on its frames, of other files it is taken for granted.

    Args:
        connection: to the ledger.
        rows: keys and rows of the files.
        found: their statuses.
    """
    made: set[Pin] = set()
    asked: dict[int, list[tuple[Pin, int]]] = {}
    for file, rule, status in found:
        if rule.phase is not Phase.BOOTSTRAPPING:
            continue
        key, row = rows[file]
        pin = (file, rule.peer, rule.table, rule.group)
        if row.closed and row.kind in (FileKind.WAL, FileKind.LANDING):
            asked.setdefault(key, []).append((pin, status.begin))
        else:
            made.add(pin)
    ends: dict[tuple[int, str, str], int] = {}
    for ids in chunked(sorted(asked)):
        sent = sent_on(ids).subquery()
        wanted = (
            sa.select(sent.c.file_id, _s.table_uuid, _s.grp, sa.func.max(sent.c.end).label("end"))
            .join_from(sent, schema.streams, _s.id == sent.c.stream_id)
            .group_by(sent.c.file_id, _s.table_uuid, _s.grp)
        )
        for each in connection.execute(wanted):
            ends[each.file_id, each.table_uuid, each.grp] = each.end
    for key, of_file in asked.items():
        made |= {pin for pin, begin in of_file if ends.get((key, str(pin[2]), pin[3]), 0) > begin}
    return made
