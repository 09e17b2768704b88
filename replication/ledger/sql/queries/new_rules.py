"""Beginning rules, of many tables at once in as many statements as of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.definition.choice import is_chosen
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.phase import Phase
from replication.ledger.base import FileKind, Gap, Rule
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.rules import RuleCache, gaps_of_new, read_pattern_rules, write_gaps
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import IN_LIST, count_up, execute_many
from replication.wall_clock import now_us

_f, _s, _rule, _p = schema.files.c, schema.streams.c, sending.rules.c, sending.progress.c


def begin(connection: Connection, rules: Sequence[Rule]) -> list[Rule]:
    """Begin rules, as a new generation; return them with that, what they require, ``since`` and their gaps.

    They require sequences after those claimed now, and bytes after each file's registered length. BOOTSTRAPPING ones
    also require the sequences that are missing among those claimed now.

    They are for one peer, which has no others of these groups, and of one phase.
    """
    if not rules:
        return []
    now, generation = now_us(), count_up(connection, "generation")
    rules = [replace(rule, generation=generation, since=now) for rule in rules]
    peer, whole = rules[0].peer, rules[0].phase is Phase.BOOTSTRAPPING
    first: dict[tuple[UUID, str], dict[FileId, int]] = {(rule.table, rule.group): {} for rule in rules}
    tables = sorted({str(rule.table) for rule in rules})
    for stream, ranges in coverage(connection, _s.table_uuid.in_(tables) if len(tables) < IN_LIST else None).items():
        if (stream.table, stream.group) in first:
            first[stream.table, stream.group][stream.wal] = ranges.prefix(0) if whole else ranges.end
    execute_many(connection, sending.rules.insert(), [_row(rule) for rule in rules])
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
    gaps = {} if whole else _gaps(connection, peer, first, now)  # a bootstrap fills earlier gaps
    for group, of_group in gaps.items():
        connection.execute(sending.rules.update().where(_rule.id == keys[group]).values(gaps=write_gaps(of_group)))
    groups = ((rule, (rule.table, rule.group)) for rule in rules)
    return [replace(rule, required_from=first[key], gaps=gaps.get(key, ())) for rule, key in groups]


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
    values = {name: getattr(rule, name) for name in same}
    return values | {"table_uuid": str(rule.table), "table_group": rule.group, "phase": rule.phase.value}


def _gaps(
    connection: Connection, peer: str, first: Mapping[tuple[UUID, str], Mapping[FileId, int]], now: int
) -> dict[tuple[UUID, str], tuple[Gap, ...]]:
    ended = {(UUID(row.table_uuid), row.table_group) for row in connection.execute(sa.select(sending.ended_rules))}
    found = {
        group: gaps_of_new(connection, peer, *group, of_group, now)
        for group, of_group in first.items()
        if of_group or group in ended
    }
    return {group: gaps for group, gaps in found.items() if gaps}


def _unship(connection: Connection, peer: str) -> None:
    """Uncount shipped bytes past the registered length: they were filtered without the new rules."""
    wanted = sa.select(_p.file_id, _p.shipped, _f.length).join(schema.files).where(_p.peer == peer)
    for row in connection.execute(wanted).all():
        shipped = Ranges.from_json(row.shipped)
        if shipped.end > row.length:
            here = (_p.file_id == row.file_id) & (_p.peer == peer)
            kept = shipped.within(0, row.length).to_json()
            connection.execute(sending.progress.update().where(here).values(shipped=kept))
