"""Beginning rules, of many tables at once in as many statements as of one."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.definition.choice import is_chosen
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.core.phase import Phase
from replication.core.routes.required import RequiredFrom
from replication.ledger.base import FileKind, Gap, Rule
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.rules import RuleCache, gaps_since_end, read_pattern_rules, write_gaps
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_id
from replication.ledger.sql.store.store import count_up, execute_many, meta
from replication.wall_clock import now_us

_c, _f, _s, _rule, _p = (t.c for t in (schema.claims, schema.files, schema.streams, sending.rules, sending.progress))
_FEW_TABLES = 16  # of more, all streams are read: one after the other takes less time than by an index


def begin(connection: Connection, rules: Sequence[Rule]) -> list[Rule]:
    """Begin rules, as a new generation; return them with that, what they require, ``since`` and their gaps.

    They require sequences after those claimed now, and bytes after each file's registered length. BOOTSTRAPPING ones
    also require the sequences that are missing among those claimed now. Own WALs that are deleted get no more frames,
    and the peer's own ones are not sent to it, so those are not listed.

    They are for one peer, which has no others of these groups, and of one phase.
    """
    if not rules:
        return []
    now, generation = now_us(), count_up(connection, "generation")
    rules = [replace(rule, generation=generation, since=now) for rule in rules]
    peer, whole = rules[0].peer, rules[0].phase is Phase.BOOTSTRAPPING
    first: dict[tuple[UUID, str], dict[FileId, int]] = {(rule.table, rule.group): {} for rule in rules}
    tables = sorted({str(rule.table) for rule in rules})
    ended = _ended(connection)
    to = str(connection.scalar(sa.select(sending.peers.c.cluster).where(sending.peers.c.name == peer)))
    of_tables = _s.table_uuid.in_(tables) if len(tables) <= _FEW_TABLES else sa.true()
    sent = of_tables & ~_s.wal.startswith(f"{to}/", autoescape=True)
    for stream, ranges in coverage(connection, sent & _may_grow(ended)).items():
        if (stream.table, stream.group) in first:
            first[stream.table, stream.group][stream.wal] = ranges.prefix(0) if whole else ranges.end
    before = json.dumps(list(map(str, ended)))
    execute_many(connection, sending.rules.insert(), [_row(rule) | {"ended": before} for rule in rules])
    begun = (_rule.peer == peer) & (_rule.generation == generation)
    made = connection.execute(sa.select(_rule.id, _rule.table_uuid, _rule.table_group).where(begun))
    keys = {(UUID(row.table_uuid), row.table_group): row.id for row in made}
    required = [
        {"rule_id": keys[group], "wal": str(wal), "sequence": sequence}
        for group, of_group in first.items()
        for wal, sequence in of_group.items()
    ]
    execute_many(connection, sending.required_from.insert(), required)
    grown = (
        sa.select(_f.id, _rule.id, _f.length)
        .join_from(schema.files, sending.rules, begun)
        .where(_f.kind != FileKind.CONTROL.value, _f.length > FILE_HEADER_BYTES)
    )
    connection.execute(sending.rule_begins.insert().from_select(["file_id", "rule_id", "begin"], grown))
    _unship(connection, peer)
    gaps = {} if whole else _gaps(connection, to, first, sent, now)  # a bootstrap fills earlier gaps
    for group, of_group in gaps.items():
        connection.execute(sending.rules.update().where(_rule.id == keys[group]).values(gaps=write_gaps(of_group)))
    groups = ((rule, (rule.table, rule.group)) for rule in rules)
    return [
        replace(rule, required_from=RequiredFrom(first[key], ended), gaps=gaps.get(key, ())) for rule, key in groups
    ]


def _ended(connection: Connection) -> list[FileId]:
    """For each host slot, the first WAL that is still here, or else the next one: earlier ones are deleted."""
    own, kept = meta(connection, "cluster"), dict[str, int]()
    for name in connection.scalars(sa.select(_f.file).where(_f.kind == FileKind.WAL.value)):
        file = file_id(name)
        kept[file.slot] = min(file.number, kept.get(file.slot, file.number))
    upcoming = connection.execute(sa.select(schema.slots)).all()
    return [FileId(ClusterId.parse(str(own)), row.slot, kept.get(row.slot, row.next)) for row in upcoming]


def _may_grow(ended: Sequence[FileId]) -> sa.ColumnElement[bool]:
    """Whether a stream is of no WAL that has ended. Of a salvaged WAL, frames may be in a file of copies."""
    is_here = _s.id.in_(sa.select(_c.stream_id).where(_c.file_id.is_not(None)))
    deleted = (
        _s.wal.startswith(f"{file.cluster}/{file.slot}/", autoescape=True) & (_s.wal < str(file)) for file in ended
    )
    return ~sa.or_(sa.false(), *deleted) | is_here


def follow(connection: Connection, rules_cache: RuleCache, spec: TableSpec) -> None:
    """Begin rules for a new or changed table, in the transaction that changes it.

    Added groups get rules for peers with ``every_group``. A name that matches pattern rules gets theirs.
    """
    pattern_rules = read_pattern_rules(connection)
    here = (_rule.table_uuid == str(spec.uuid)) & _rule.every_group
    if not pattern_rules and connection.scalar(sa.select(_rule.id).where(here).limit(1)) is None:
        return
    rules = rules_cache.in_force(connection, spec.uuid)
    for peer in sorted({rule.peer for rule in rules if rule.every_group}):
        current = [rule for rule in rules if rule.peer == peer]
        lacking = {group.name for group in spec.groups} - {rule.group for rule in current}
        like = replace(current[0], phase=Phase.LIVE)
        begin(connection, [replace(like, group=g.name) for g in spec.groups if g.name in lacking])
    known = {rule.peer for rule in rules}
    matching = [each for each in pattern_rules if is_chosen(spec.name, each.pattern, each.excluded)]
    for peer in sorted({each.peer for each in matching} - known):
        own = [each for each in matching if each.peer == peer]
        every = not all(each.groups for each in own)
        named = {group for each in own for group in each.groups}
        like = Rule(peer, spec.uuid, "", spec.name, 0, with_properties=own[0].with_properties, every_group=every)
        begin(connection, [replace(like, group=g.name) for g in spec.groups if every or g.name in named])


def _row(rule: Rule) -> dict[str, object]:
    same = ("peer", "remote_table", "generation", "since", "with_properties", "every_group")
    values: dict[str, object] = {name: getattr(rule, name) for name in same}
    return values | {"table_uuid": str(rule.table), "table_group": rule.group, "phase": rule.phase.value}


def _gaps(
    connection: Connection,
    to: str,
    groups: Collection[tuple[UUID, str]],
    sent: sa.ColumnElement[bool],
    now: int,
) -> dict[tuple[UUID, str], tuple[Gap, ...]]:
    """What cluster ``to`` is never sent of each group: all of it so far, or what came since an earlier rule ended.

    Streams without a commit time are of bootstraps without rows, and do not count.
    """
    end, newest = sa.func.max(_c.seq_end).label("end"), sa.func.coalesce(sa.func.max(_f.commit_hi), 0)
    here = sa.join(schema.streams, schema.claims).outerjoin(schema.files)
    ends = sa.select(_s.table_uuid, _s.table_group, end).select_from(here).where(sent, ~_c.divergent)
    dated = ends.group_by(_s.id, _s.table_uuid, _s.table_group, _s.retired_hi).having(
        (_s.retired_hi > 0) | (newest > 0)
    )
    each = dated.subquery().c
    total = sa.func.sum(sa.cast(each.end, sa.Float(53)))  # of whole numbers peers can make one that no integer holds
    frames = sa.select(each.table_uuid, each.table_group, total.label("frames"))
    found: dict[tuple[UUID, str], tuple[Gap, ...]] = {
        (UUID(row.table_uuid), row.table_group): (Gap(0, now, int(row.frames)),)
        for row in connection.execute(frames.group_by(each.table_uuid, each.table_group))
    }
    for row in connection.execute(sa.select(sending.ended_rules).where(sending.ended_rules.c.cluster == to)).all():
        group = UUID(row.table_uuid), row.table_group
        if group in groups:
            covered = coverage(connection, sent & (_s.table_uuid == row.table_uuid) & (_s.table_group == group[1]))
            positions = {stream.wal: ranges.end for stream, ranges in covered.items()}
            found[group] = gaps_since_end(connection, row, positions, now)
    return {group: found[group] for group in groups if found.get(group)}


def _unship(connection: Connection, peer: str) -> None:
    """Uncount shipped bytes past the registered length: they were filtered without the new rules."""
    wanted = sa.select(_p.file_id, _p.shipped, _f.length).join(schema.files).where(_p.peer == peer)
    for row in connection.execute(wanted).all():
        shipped = Ranges.from_json(row.shipped)
        if shipped.end > row.length:
            here = (_p.file_id == row.file_id) & (_p.peer == peer)
            kept = shipped.within(0, row.length).to_json()
            connection.execute(sending.progress.update().where(here).values(shipped=kept))
