"""Peers and rules over SQL; decisions check the master's term in their own transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import PeerExistsError, RequestError, UnknownPeerError, UnknownTableError
from replication.ledger.base import FileKind, PatternRule, Peer, Phase, Rule
from replication.ledger.sql.queries.new_rules import begin
from replication.ledger.sql.queries.rules import (
    PEERS,
    RuleCache,
    lacking,
    note_end,
    peers,
    read_pattern_rules,
    read_peers,
)
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import check_term, table_spec
from replication.ledger.sql.store.prepared import upsert
from replication.ledger.sql.store.store import SqlStore, chunked, counter

_t, _peer, _rule, _e = (t.c for t in (schema.tables, sending.peers, sending.rules, sending.ended_rules))

_f, _b = schema.files.c, sending.bootstraps.c
# bootstraps that were not finished, and that no rule waits for any more
_LEFT = schema.files.delete().where(
    _f.kind == FileKind.BOOTSTRAP.value,
    _f.source.is_(None),
    _f.closed_length < 0,
    ~sa.exists().where(
        _b.file_id == _f.id,
        _rule.peer == _f.peer,
        _rule.table_uuid == _b.table_uuid,
        _rule.phase == Phase.BOOTSTRAPPING.value,
    ),
)
_PUT_PATTERN = upsert(sending.pattern_rules, "peer", "pattern")
SETTLE_US = 10_000_000


class SqlRules:
    """``Rules`` over SQL."""

    def __init__(self, store: SqlStore, rules_cache: RuleCache) -> None:
        self._store = store
        self._rules_cache = rules_cache

    def define(self, peer: Peer, term: int) -> None:
        values = {
            "name": peer.name,
            "zookeepers": peer.zookeepers,
            "cluster": str(peer.cluster),
            "paused": peer.paused,
            "rate": peer.rate,
        }
        try:
            with self._store.write() as connection:
                check_term(connection, term)
                connection.execute(sending.peers.insert().values(values))
        except IntegrityError:
            raise PeerExistsError(
                f"a peer named {peer.name} is defined already", f"Remove it first: walship deletecluster {peer.name}"
            ) from None

    def delete(self, name: str, term: int) -> None:
        with self._deciding(term, name) as connection:
            self._end(connection, _rule.peer == name)
            connection.execute(sending.peers.delete().where(_peer.name == name))

    def set_address(self, name: str, zookeepers: str, term: int) -> None:
        self._set_peer(name, term, zookeepers=zookeepers)

    def set_paused(self, name: str, paused: bool, term: int) -> None:
        self._set_peer(name, term, paused=paused)

    def set_rate(self, name: str, rate: int, term: int) -> None:
        self._set_peer(name, term, rate=rate)

    def _set_peer(self, name: str, term: int, **values: str | bool | int) -> None:
        with self._deciding(term, name) as connection:
            connection.execute(sending.peers.update().where(_peer.name == name).values(values))

    def peers(self) -> list[Peer]:
        return read_peers(self._store.rows(PEERS))

    def generation(self) -> int:
        return self._store.counter("generation")

    def enable(
        self,
        peer: str,
        table: UUID,
        groups: Sequence[str],
        remote_table: str,
        term: int,
        *,
        bootstrap: bool = False,
        with_properties: bool | None = None,
        every_group: bool = False,
    ) -> list[Rule]:
        with self._deciding(term, peer) as connection:
            text = connection.scalar(sa.select(_t.spec).where(_t.uuid == str(table), ~_t.dropped))
            if text is None:
                raise UnknownTableError(f"there is no table {table}", "Create it with: walship createtable")
            spec = table_spec(text)
            for group in groups:
                spec.group(group)
            rules = {rule.group: rule for rule in self._rules_cache.in_force(connection, table) if rule.peer == peer}
            other = sorted({rule.remote_table for rule in rules.values()} - {remote_table})
            if other:
                raise RequestError(
                    f"{spec.name} goes to {peer} as {other[0]} already and cannot go there as {remote_table} too",
                    "All groups of a table go to one remote table. First: walship disablereplication",
                )
            taken = with_properties
            if taken is None:
                taken = next((rule.with_properties for rule in rules.values()), True)
            added = [group.name for group in spec.groups if every_group and group.name not in rules]
            groups = [*dict.fromkeys([*groups, *added])]
            wanted = [group for group in groups if group not in rules]
            phase = Phase.BOOTSTRAPPING if bootstrap else Phase.LIVE
            like = Rule(peer, table, "", remote_table, 0, {}, phase, with_properties=taken)
            begun = begin(connection, [replace(like, group=group) for group in wanted])
            rules |= {rule.group: rule for rule in begun}
            here = _of_table(peer, table)
            if with_properties is not None:  # properties belong to the table, not to a group
                changed = here & (_rule.with_properties != taken)
                connection.execute(sending.rules.update().where(changed).values(with_properties=taken))
                rules = {group: replace(rule, with_properties=taken) for group, rule in rules.items()}
            if every_group:
                connection.execute(sending.rules.update().where(here).values(every_group=True))
            return [rules[group] for group in groups]

    def enable_all(
        self,
        peer: str,
        groups: Mapping[UUID, Collection[str]],
        term: int,
        *,
        bootstrap: bool = False,
        with_properties: bool = True,
    ) -> int:
        phase = Phase.BOOTSTRAPPING if bootstrap else Phase.LIVE
        with self._deciding(term, peer) as connection:
            rules = [rule for rule in self._rules_cache.in_force(connection) if rule.peer == peer]
            known = {(rule.table, rule.group) for rule in rules}
            of_table = {rule.table: (rule.remote_table, rule.with_properties) for rule in rules}
            live = connection.execute(sa.select(_t.uuid, _t.spec).where(~_t.dropped)).all()
            specs = {table: table_spec(row.spec) for row in live if (table := UUID(row.uuid)) in groups}
            wanted: list[Rule] = []
            for table, spec in specs.items():
                remote_table, properties = of_table.get(table, (spec.name, with_properties))
                every = table not in of_table and {each.name for each in spec.groups} <= set(groups[table])
                like = Rule(peer, table, "", remote_table, 0, {}, phase, with_properties=properties, every_group=every)
                new = (group for group in sorted(set(groups[table])) if (table, group) not in known)
                wanted += (replace(like, group=group) for group in new)
            return len(begin(connection, wanted))

    def unsent(self, peer: str) -> list[TableSpec]:
        with self._store.read() as connection:
            return [*self._rules_cache.unsent(connection, peer)]

    def not_returned(self, origin: ClusterId) -> dict[UUID, set[str]]:
        with self._store.read() as connection:
            return {**self._rules_cache.not_returned(connection, origin)}

    def begin_bootstrap(self, peer: str, table: UUID, term: int) -> list[Rule]:
        with self._deciding(term, peer) as connection:
            rules = [rule for rule in self._rules_cache.in_force(connection, table) if rule.peer == peer]
            if not rules:
                raise RequestError(f"table {table} does not go to {peer}", "First: walship enablereplication")
            again = [rule for rule in rules if rule.phase is not Phase.BOOTSTRAPPING]
            here = _of_table(peer, table)
            self._end(connection, here & (_rule.phase != Phase.BOOTSTRAPPING.value))
            # not read back: the cache would keep them if this transaction fails
            begun = begin(connection, [replace(rule, phase=Phase.BOOTSTRAPPING) for rule in again])
            by_group = {rule.group: rule for rule in (*rules, *begun)}
            return [by_group[rule.group] for rule in rules]

    def end_bootstrap(self, peer: str, table: UUID, generation: int, term: int) -> list[Rule]:
        ready = (_rule.generation <= generation) & (_rule.phase == Phase.BOOTSTRAPPING.value)
        here = _of_table(peer, table)
        with self._store.write() as connection:
            check_term(connection, term)
            connection.execute(sending.rules.update().where(here & ready).values(phase=Phase.LIVE.value))
            rules = self._rules_cache.in_force(connection, table)
        return [rule for rule in rules if (rule.peer, rule.phase) == (peer, Phase.LIVE)]

    def disable(self, peer: str, table: UUID, groups: Sequence[str], term: int) -> None:
        here = _of_table(peer, table)
        with self._deciding(term, peer) as connection:
            self._end(connection, here & _rule.table_group.in_(list(groups)))
            connection.execute(sending.rules.update().where(here).values(every_group=False))

    def add_pattern_rule(self, pattern_rule: PatternRule, term: int) -> None:
        row = {
            "peer": pattern_rule.peer,
            "pattern": pattern_rule.pattern,
            "excluded": json.dumps(pattern_rule.excluded),
            "grps": json.dumps(pattern_rule.groups),
            "with_properties": pattern_rule.with_properties,
        }
        with self._deciding(term, pattern_rule.peer) as connection:
            _PUT_PATTERN.run(connection, row)

    def end_pattern_rule(self, peer: str, pattern: str, term: int) -> bool:
        here = (sending.pattern_rules.c.peer == peer) & (sending.pattern_rules.c.pattern == pattern)
        with self._deciding(term, peer) as connection:
            return connection.execute(sending.pattern_rules.delete().where(here)).rowcount > 0

    def pattern_rules(self) -> list[PatternRule]:
        with self._store.read() as connection:
            return read_pattern_rules(connection)

    def end_of_dropped(self, term: int) -> list[Rule]:
        with self._store.read() as connection:
            closed = counter(connection, "closed")
            dropped = sa.select(_t.uuid).where(_t.dropped, _t.dropped_at < closed - SETTLE_US)
            wanted = sa.select(sending.rules).where(_rule.table_uuid.in_(dropped))
            if connection.execute(wanted.limit(1)).one_or_none() is None:
                return []
        with self._store.write() as connection:
            check_term(connection, term)
            never = Phase.NEEDS_BOOTSTRAP.value  # nothing is sent before a bootstrap, and none can be begun any more
            found = connection.execute(wanted).all()
            rows = [row for row in found if row.phase == never or not lacking(connection, row).first]
            gone = {(row.peer, row.table_uuid, row.table_group) for row in rows}
            in_force = self._rules_cache.in_force(connection)
            ended = [rule for rule in in_force if (rule.peer, str(rule.table), rule.group) in gone]
            for ids in chunked([row.id for row in rows]):
                self._end(connection, _rule.id.in_(ids))
        return ended

    def _end(self, connection: Connection, which: sa.ColumnElement[bool]) -> None:
        for row in connection.execute(sa.select(sending.rules).where(which)).all():
            note_end(connection, row)
        connection.execute(sending.rules.delete().where(which))
        connection.execute(_LEFT)

    def all(self) -> list[Rule]:
        return [*self._rules_cache.counted.known(self._store)[0]]

    def to(self, peer: str) -> tuple[Rule, ...]:
        return self._rules_cache.counted.known(self._store)[1].get(peer, ())

    def ended(self, cluster: ClusterId) -> list[tuple[UUID, str, int]]:
        wanted = sa.select(_e.table_uuid, _e.table_group, _e.generation).where(_e.cluster == str(cluster))
        return [(UUID(table), group, int(generation)) for table, group, generation in self._store.rows(wanted)]

    @contextmanager
    def _deciding(self, term: int, peer: str) -> Iterator[Connection]:
        """A writing transaction of the master of ``term``, about a peer that must be defined."""
        with self._store.write() as connection:
            check_term(connection, term)
            if connection.scalar(sa.select(_peer.name).where(_peer.name == peer)) is None:
                names = ", ".join(each.name for each in peers(connection))
                raise UnknownPeerError(
                    f"there is no peer {peer}",
                    f"Defined peers: {names}" if names else "Define it with: walship definecluster",
                )
            yield connection


def _of_table(peer: str, table: UUID) -> sa.ColumnElement[bool]:
    return (_rule.peer == peer) & (_rule.table_uuid == str(table))
