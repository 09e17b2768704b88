"""ReplicationStatus per (file, rule), and the files that bootstraps pin: a view over files, progress and rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, FileId
from replication.core.phase import Phase
from replication.core.status import FileState, ReplicationStatus
from replication.ledger.base import FileKind, FileRow, Rule
from replication.ledger.sql.queries.claims import sent_on
from replication.ledger.sql.queries.rules import RuleCache, peers
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import upsert
from replication.ledger.sql.store.store import chunked, rows_in

_p, _rule, _s, _begins = sending.progress.c, sending.rules.c, schema.streams.c, sending.rule_begins.c
_withheld = sending.withheld.c
_PUT_WITHHELD = upsert(sending.withheld, "file_id", "table_uuid")
Pin = tuple[FileId, str, UUID, str]


def statuses(
    connection: Connection, in_force: Sequence[Rule], rows: Sequence[tuple[int, FileRow]]
) -> list[tuple[FileId, Rule, ReplicationStatus]]:
    """Status per (file, rule) of these files, from at most six statements.

    A rule that is no more in force as it is here begins with each file.
    """
    clusters = {p.name: p.cluster for p in peers(connection)}
    generations: dict[str, int] = {}
    for rule in in_force:
        generations[rule.peer] = max(rule.generation, generations.get(rule.peer, 0))
    control = [Rule(name, NIL_UUID, "", "", generation) for name, generation in sorted(generations.items())]
    holding = [rule for rule in in_force if rule.phase is not Phase.NEEDS_BOOTSTRAP]
    keys = [key for key, _ in rows]
    shipped = _by_file_and_peer(connection, keys)
    begins = _begins_of(connection, keys)
    withheld = _of_other_tables(connection, keys)
    found: list[tuple[FileId, Rule, ReplicationStatus]] = []
    written_for = _bootstraps(connection, [key for key, row in rows if row.kind is FileKind.BOOTSTRAP])
    for key, row in rows:
        state = FileState.CLOSED if row.closed else FileState.OPEN
        from_cluster = None if row.source is None else row.source.cluster
        for rule in control if row.kind is FileKind.CONTROL else holding:
            if row.kind is FileKind.BOOTSTRAP and row.source is None and not _is_for(rule, row, written_for.get(key)):
                continue
            if from_cluster is not None and clusters.get(rule.peer) == from_cluster:
                continue
            ranges, applied = shipped.get((key, rule.peer), (Ranges(), 0))
            of_rule = rule.peer, str(rule.table), rule.group, rule.generation, rule.phase.value
            begin = begins.get((key, *of_rule), FILE_HEADER_BYTES)
            if key in withheld:
                ranges = _beside(withheld[key], rule.table, ranges)
            found.append((row.file, rule, ReplicationStatus(state, begin, row.needed, ranges, applied)))
    return found


def at_peer(
    connection: Connection, rules_cache: RuleCache, rows: Sequence[tuple[int, FileRow]], peer: str
) -> dict[FileId, ReplicationStatus]:
    """Status per file under the rule that begins first in it, from as many statements whatever rules there are."""
    cluster = next((p.cluster for p in peers(connection) if p.name == peer), None)
    holding = (_rule.peer == peer) & (_rule.phase != Phase.NEEDS_BOOTSTRAP.value)
    rules, (held, begins) = rules_cache.to(connection, peer), rules_cache.begins(connection, peer)
    shipped = _by_file_and_peer(connection, [key for key, _ in rows], peer)
    of_bootstrap = (_rule.table_uuid == sending.bootstraps.c.table_uuid) & (
        _rule.generation <= sending.bootstraps.c.generation
    )
    written = sa.select(sending.bootstraps.c.file_id).join(sending.rules, of_bootstrap).where(holding)
    own_bootstraps = set(connection.scalars(written))
    found: dict[FileId, ReplicationStatus] = {}
    for key, row in rows:
        if not (rules if row.kind is FileKind.CONTROL else held):
            continue
        if row.source is not None and row.source.cluster == cluster:
            continue
        if row.kind is FileKind.BOOTSTRAP and row.source is None and (row.peer != peer or key not in own_bootstraps):
            continue
        state = FileState.CLOSED if row.closed else FileState.OPEN
        ranges, applied = shipped.get((key, peer), (Ranges(), 0))
        begin = begins.get(key, FILE_HEADER_BYTES)
        found[row.file] = ReplicationStatus(state, begin, row.needed, ranges, applied)
    return found


def _is_for(rule: Rule, row: FileRow, written: tuple[UUID, int] | None) -> bool:
    """Whether a bootstrap written here is for a rule; a rule that began again later gets another."""
    if written is None or rule.peer != row.peer:
        return False
    return rule.table == written[0] and rule.generation <= written[1]


def _bootstraps(connection: Connection, keys: Sequence[int]) -> dict[int, tuple[UUID, int]]:
    rows = rows_in(connection, sa.select(sending.bootstraps), sending.bootstraps.c.file_id, keys)
    return {row.file_id: (UUID(row.table_uuid), row.generation) for row in rows}


def _by_file_and_peer(
    connection: Connection, keys: Sequence[int], peer: str | None = None
) -> dict[tuple[int, str], tuple[Ranges, int]]:
    wanted = sa.select(_p.file_id, _p.peer, _p.shipped, _p.applied)
    if peer is not None:
        wanted = wanted.where(_p.peer == peer)
    rows = rows_in(connection, wanted, _p.file_id, keys)
    return {(row.file_id, row.peer): (Ranges.from_json(row.shipped), row.applied) for row in rows}


def _begins_of(connection: Connection, keys: Sequence[int]) -> dict[tuple[int | str, ...], int]:
    """Where rules begin in files, by (file, peer, table, group, generation, phase)."""
    of_rule = (_rule.peer, _rule.table_uuid, _rule.table_group, _rule.generation, _rule.phase)
    wanted = sa.select(_begins.file_id, *of_rule, _begins.begin).join(sending.rules)
    return {tuple(row[:-1]): row.begin for row in rows_in(connection, wanted, _begins.file_id, keys)}


def keep_withheld(connection: Connection, key: int, table: str, ranges: Ranges) -> None:
    """Add bytes of a file that hold only frames of ``table``."""
    here = (_withheld.file_id == key) & (_withheld.table_uuid == table)
    known = connection.scalar(sa.select(_withheld.ranges).where(here))
    joined = ranges if known is None else ranges.union(Ranges.from_json(known))
    _PUT_WITHHELD.run(connection, {"file_id": key, "table_uuid": table, "ranges": joined.to_json()})


def withheld(connection: Connection, file: FileId) -> dict[UUID, Ranges]:
    """Bytes of a file that are known to hold only frames of one table, by table."""
    wanted = (
        sa.select(_withheld.table_uuid, _withheld.ranges).join(schema.files).where(schema.files.c.file == str(file))
    )
    return {UUID(row.table_uuid): Ranges.from_json(row.ranges) for row in connection.execute(wanted)}


def _of_other_tables(connection: Connection, keys: Sequence[int]) -> dict[int, dict[UUID, Ranges]]:
    found: dict[int, dict[UUID, Ranges]] = {}
    for row in rows_in(connection, sa.select(sending.withheld), _withheld.file_id, keys):
        found.setdefault(row.file_id, {})[UUID(row.table_uuid)] = Ranges.from_json(row.ranges)
    return found


def _beside(withheld: Mapping[UUID, Ranges], table: UUID, shipped: Ranges) -> Ranges:
    """The ranges that count as shipped for a table: those shipped, and those withheld for other tables."""
    return Ranges.union_of(
        span for ranges in (shipped, *(r for other, r in withheld.items() if other != table)) for span in ranges
    )


def pins(
    connection: Connection,
    rows: Mapping[FileId, tuple[int, FileRow]],
    found: Iterable[tuple[FileId, Rule, ReplicationStatus]],
) -> set[Pin]:
    """The (file, peer, table, group) of BOOTSTRAPPING statuses for which the file must stay.

    A CLOSED WAL or landing file must stay only if it has frames of the table past the rule's begin; other files always.
    """
    pinned: set[Pin] = set()
    undecided: dict[int, list[tuple[Pin, int]]] = {}
    for file, rule, status in found:
        if rule.phase is not Phase.BOOTSTRAPPING:
            continue
        key, row = rows[file]
        pin = (file, rule.peer, rule.table, rule.group)
        if row.closed and row.kind in (FileKind.WAL, FileKind.LANDING):
            undecided.setdefault(key, []).append((pin, status.begin))
        else:
            pinned.add(pin)
    ends: dict[tuple[int, str, str], int] = {}
    for ids in chunked(sorted(undecided)):
        sent = sent_on(ids).subquery()
        wanted = (
            sa.select(sent.c.file_id, _s.table_uuid, _s.table_group, sa.func.max(sent.c.end).label("end"))
            .join_from(sent, schema.streams, _s.id == sent.c.stream_id)
            .group_by(sent.c.file_id, _s.table_uuid, _s.table_group)
        )
        for each in connection.execute(wanted):
            ends[each.file_id, each.table_uuid, each.table_group] = each.end
    for key, of_file in undecided.items():
        pinned |= {pin for pin, begin in of_file if ends.get((key, str(pin[2]), pin[3]), 0) > begin}
    return pinned
