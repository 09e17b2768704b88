"""Rules, pattern rules and peers as a transaction sees them, and the gaps of rules that began again.

When a rule ends, the ledger stores how far each of its streams was at the peer. When the same (table, group) is enabled
for the same cluster again, the difference is a gap. It is shown while the rule is in force.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.core.phase import Phase
from replication.core.routes.required import RequiredFrom
from replication.ledger.base import PatternRule, Peer, Rule
from replication.ledger.rules import Gap
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.touched import ROUTES, RULES, TABLES
from replication.ledger.sql.store.counted import Counted
from replication.ledger.sql.store.keys import file_id, table_spec
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import rows_in
from replication.wall_clock import now_us

_c, _f, _s, _t, _route = (t.c for t in (schema.claims, schema.files, schema.streams, schema.tables, schema.routes))
_p, _begins, _withheld = sending.progress.c, sending.rule_begins.c, sending.withheld.c
_e, _peer, _rule, _required_from = (
    t.c for t in (sending.ended_rules, sending.peers, sending.rules, sending.required_from)
)
PEERS = Prepared(sa.select(_peer.name, _peer.zookeepers, _peer.cluster, _peer.paused, _peer.rate).order_by(_peer.name))


_ORDERED = sa.select(sending.rules).order_by(_rule.peer, _rule.table_uuid, _rule.table_group)
_ALL, _OF_TABLE = Prepared(_ORDERED), Prepared(_ORDERED.where(_rule.table_uuid == sa.bindparam("of_table")))
_OF_PEER = _rule.peer == sa.bindparam("of_peer")
_IS_HOLDING = _rule.phase != Phase.NEEDS_BOOTSTRAP.value
_COUNT = sa.func.count().label("rules")
_HOLDING = Prepared(sa.select(_rule.peer, _COUNT).where(_IS_HOLDING).group_by(_rule.peer))
_FIRST = Prepared(
    sa.select(_rule.peer, _begins.file_id, _COUNT, sa.func.min(_begins.begin).label("low"))
    .join_from(sending.rule_begins, sending.rules)
    .where(_IS_HOLDING)
    .group_by(_rule.peer, _begins.file_id)
)
_LIVE = Prepared(sa.select(_t.spec).where(~_t.dropped).order_by(_t.name))
_PUT_ENDED = upsert(sending.ended_rules, "cluster", "table_uuid", "table_group")
_SENT = Prepared(sa.select(_rule.table_uuid, _rule.table_group).where(_OF_PEER))
_RETURNED = sa.exists().where(_OF_PEER, _rule.table_uuid == _route.table_uuid, _rule.table_group == _route.table_group)
_NOT_RETURNED = Prepared(
    sa.select(_route.table_uuid, _route.table_group).where(
        _route.source == sa.bindparam("of_source"), ~_route.closed, ~_RETURNED
    )
)


class RuleCache:
    """Rules in force. A rule's ``required_from`` never changes and may be long, so it is read once per process.

    Attributes:
        counted: all of them, and those for each peer; read again only when a rule or peer changed.
    """

    def __init__(self) -> None:
        self._required_from: dict[int, RequiredFrom] = {}
        self.counted = Counted(self._read, RULES)
        self._begins = Counted(_first_begins, RULES)
        self._unsent: dict[str, Counted[list[TableSpec]]] = {}
        self._not_returned: dict[ClusterId, Counted[dict[UUID, set[str]]]] = {}

    def in_force(self, connection: Connection, table: UUID | None = None) -> list[Rule]:
        """All rules, or those of a table, as the connection's transaction sees them."""
        rows = _ALL.rows(connection) if table is None else _OF_TABLE.rows(connection, {"of_table": str(table)})
        known = self._required_from
        unread = [row.id for row in rows if row.id not in known]
        read: dict[int, dict[FileId, int]] = {key: {} for key in unread}
        for row in rows_in(connection, sa.select(sending.required_from), _required_from.rule_id, unread):
            read[row.rule_id][file_id(row.wal)] = row.sequence
        required_from = {
            row.id: RequiredFrom(read[row.id], _files(row.ended)) if row.id in read else known[row.id] for row in rows
        }
        self._required_from = required_from if table is None else known | required_from
        return [
            Rule(
                r.peer,
                UUID(r.table_uuid),
                r.table_group,
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

    def _read(self, connection: Connection) -> tuple[list[Rule], dict[str, tuple[Rule, ...]]]:
        rules = self.in_force(connection)
        return rules, {peer: tuple(of_peer) for peer, of_peer in groupby(rules, attrgetter("peer"))}

    # Only for read transactions. What they return is read again only when it may have changed.

    def known(self, connection: Connection) -> list[Rule]:
        """All rules in force."""
        return self.counted.get(connection)[0]

    def to(self, connection: Connection, peer: str) -> tuple[Rule, ...]:
        """The rules for a peer."""
        return self.counted.get(connection)[1].get(peer, ())

    def begins(self, connection: Connection, peer: str) -> tuple[int, Mapping[int, int]]:
        """How many rules for a peer retain files, and by key of a file that is older than they all the first begin."""
        return self._begins.get(connection).get(peer, (0, {}))

    def unsent(self, connection: Connection, peer: str) -> list[TableSpec]:
        """Tables of which a group has no rule for a peer, by name."""
        if peer not in self._unsent:
            self._unsent[peer] = Counted(partial(_unsent, peer=peer), RULES, TABLES)
        return self._unsent[peer].get(connection)

    def not_returned(self, connection: Connection, origin: ClusterId) -> dict[UUID, set[str]]:
        """Groups of tables that come from a cluster, and have no rule for the peer of its name."""
        if origin not in self._not_returned:
            self._not_returned[origin] = Counted(partial(_not_returned, origin=origin), RULES, ROUTES)
        return self._not_returned[origin].get(connection)


def _first_begins(connection: Connection) -> dict[str, tuple[int, dict[int, int]]]:
    found: dict[str, tuple[int, dict[int, int]]] = {row.peer: (row.rules, {}) for row in _HOLDING.rows(connection)}
    for row in _FIRST.rows(connection):
        rules, begins = found[row.peer]
        if row.rules == rules:
            begins[row.file_id] = row.low
    return found


def _unsent(connection: Connection, peer: str) -> list[TableSpec]:
    sent = {(UUID(table), group) for table, group in _SENT.rows(connection, {"of_peer": peer})}
    specs = [table_spec(row.spec) for row in _LIVE.rows(connection)]
    return [spec for spec in specs if any((spec.uuid, group.name) not in sent for group in spec.groups)]


def _not_returned(connection: Connection, origin: ClusterId) -> dict[UUID, set[str]]:
    found: dict[UUID, set[str]] = {}
    for table, group in _NOT_RETURNED.rows(connection, {"of_peer": origin.name, "of_source": str(origin)}):
        found.setdefault(UUID(table), set()).add(group)
    return found


def read_pattern_rules(connection: Connection) -> list[PatternRule]:
    """Every pattern rule, by peer and pattern."""
    c = sending.pattern_rules.c
    rows = connection.execute(sa.select(sending.pattern_rules).order_by(c.peer, c.pattern))
    return [
        PatternRule(r.peer, r.pattern, tuple(json.loads(r.excluded)), tuple(json.loads(r.grps)), r.with_properties)
        for r in rows
    ]


def peers(connection: Connection) -> list[Peer]:
    """All peers, by name."""
    return read_peers(PEERS.run(connection, {}))


def read_peers(rows: Iterable[Sequence[Any]]) -> list[Peer]:
    """The rows of ``PEERS`` as their values."""
    return [Peer(name, at, ClusterId.parse(cluster), bool(paused), rate) for name, at, cluster, paused, rate in rows]


@dataclass(frozen=True, slots=True)
class MissingSequences:
    """Per WAL of a rule's streams, the first sequence that the peer lacks; ``since`` is about when it was written.

    Empty when the peer has everything that the rule requires and that is registered.
    """

    first: Mapping[FileId, int]
    since: int


def lacking(connection: Connection, rule: Any) -> MissingSequences:
    """The registered sequences that the peer of a row of ``rules`` requires and is not known to have durable.

    Rows of claims may span bytes of other tables, also withheld ones.
    """
    to = ClusterId.parse(connection.execute(sa.select(_peer.cluster).where(_peer.name == rule.peer)).scalar_one())
    of_claim = (_s.wal, _c.seq_begin, _c.seq_end, _c.begin, _c.end)
    of_file = (_f.id, _f.source, _f.created, _p.shipped, _p.commit, _begins.begin)
    wanted = (
        sa.select(*of_claim, *of_file)
        .select_from(
            schema.claims.join(schema.streams, _s.id == _c.stream_id)
            .join(schema.files, _f.id == _c.file_id)
            .outerjoin(sending.progress, (_p.file_id == _f.id) & (_p.peer == rule.peer))
            .outerjoin(sending.rule_begins, (_begins.file_id == _f.id) & (_begins.rule_id == rule.id))
        )
        .where(_s.table_uuid == rule.table_uuid, _s.table_group == rule.table_group, ~_c.divergent)
    )
    begun = sa.select(_required_from.wal, _required_from.sequence).where(_required_from.rule_id == rule.id)
    required_from = {row.wal: int(row.sequence) for row in connection.execute(begun)}
    of_others = sa.select(_withheld.file_id, _withheld.ranges).where(_withheld.table_uuid != rule.table_uuid)
    beside = Ranges.by_key(
        (key, span) for key, spans in connection.execute(of_others) for span in Ranges.from_json(spans)
    )
    first: dict[FileId, int] = {}
    since = 0
    for wal, seq_begin, seq_end, begin, end, key, source, created, shipped, commit, start in connection.execute(wanted):
        if seq_end <= required_from.get(wal, 0) or (source is not None and file_id(source).cluster == to):
            continue
        durable = (Ranges() if shipped is None else Ranges.from_json(shipped)).union(beside.get(key, Ranges()))
        low = max(begin, FILE_HEADER_BYTES if start is None else start)
        if durable.contains(low, end):
            continue
        known = first.get(file_id(wal), seq_end)
        first[file_id(wal)] = min(known, max(seq_begin, required_from.get(wal, 0)))
        at = int(commit or created)
        since = at if since == 0 else min(since, at)
    return MissingSequences(first, since)


def note_end(connection: Connection, rule: Any) -> None:
    """Store how far a rule's streams were at the peer, before its row is deleted.

    For a rule that is not LIVE, the positions where an earlier rule ended are kept, if there are any.
    """
    to = connection.scalar(sa.select(_peer.cluster).where(_peer.name == rule.peer))
    here = (_e.cluster == to) & (_e.table_uuid == rule.table_uuid) & (_e.table_group == rule.table_group)
    if rule.phase != Phase.LIVE.value:
        earlier = sending.ended_rules.update().where(here).values(generation=rule.generation)
        if connection.execute(earlier).rowcount:
            return
    at, positions = 0, dict[FileId, int]()
    if rule.phase == Phase.LIVE.value:
        left, now = lacking(connection, rule), now_us()
        at = min(now, left.since) if left.since else now
        covered = coverage(connection, (_s.table_uuid == rule.table_uuid) & (_s.table_group == rule.table_group))
        positions = {stream.wal: left.first.get(stream.wal, ranges.end) for stream, ranges in covered.items()}
    row = {name: getattr(rule, name) for name in ("table_uuid", "table_group", "generation", "gaps")}
    at_peer = json.dumps({str(wal): sequence for wal, sequence in positions.items()})
    _PUT_ENDED.run(connection, row | {"cluster": to, "at": at, "positions": at_peer})


def gaps_since_end(connection: Connection, row: Any, positions: Mapping[FileId, int], now: int) -> tuple[Gap, ...]:
    """The gaps of a rule that begins now at ``positions``, after an earlier one ended; deletes the record of that."""
    same = (_e.cluster == row.cluster) & (_e.table_uuid == row.table_uuid) & (_e.table_group == row.table_group)
    connection.execute(sending.ended_rules.delete().where(same))
    ended = {file_id(wal): int(sequence) for wal, sequence in json.loads(row.positions).items()}
    frames = sum(max(0, first - ended.get(wal, 0)) for wal, first in positions.items())
    return (*read_gaps(row.gaps), *([Gap(row.at, now, frames)] if frames else []))


def write_gaps(gaps: tuple[Gap, ...]) -> str:
    """The column's text."""
    return json.dumps([[gap.begin, gap.end, gap.frames] for gap in gaps])


@lru_cache(maxsize=64)
def _files(text: str) -> tuple[FileId, ...]:
    return tuple(map(file_id, json.loads(text)))


@lru_cache(maxsize=1024)
def read_gaps(text: str) -> tuple[Gap, ...]:
    """The column's value."""
    return tuple(Gap(int(begin), int(end), int(frames)) for begin, end, frames in json.loads(text))
