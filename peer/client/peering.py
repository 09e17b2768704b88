"""Defining peers and enabling replication. A peer is checked before it is defined or gets a table.

Rules change in the ledger; ZooKeeper only announces the change. A call that is refused changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from uuid import UUID

from peer.client.contacts import NO_PROOF, Contacts, Proof, known_peer, with_root
from peer.client.definition import refuse_standby
from peer.client.enabling import EnableRequest, NewRules, refuse_unsent
from replication.coordination.session import Coordination
from replication.core.definition.choice import full_name
from replication.core.definition.define import is_system_table, unusable_name
from replication.core.definition.evolution import join, latest_stamp
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import (
    PeerExistsError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplicationError,
    RequestError,
    TableExistsError,
    UnfinishedSequenceError,
    UnknownTableError,
)
from replication.ledger.base import Ledger, Peer, Rule
from replication.wall_clock import now_us
from replication.worker.ship.routes import declare, ended_routes, routes_of

_TABLES_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Peering:
    """Defining peers and enabling replication, for one cluster."""

    ledger: Ledger
    announcer: Coordination
    contacts: Contacts
    commit_ahead_max_s: float = 86400.0  # of [receiver]

    def define(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> tuple[Peer, bool]:
        """Add a peer, which must answer, or change the address of a defined one. Idempotent.

        Args:
            name: the cluster's own name.
            zookeepers: ``host:port[,host:port…][/root]``; the root is ``/walship/NAME`` by default.
            proof: that a person may have it grant to this cluster.

        Returns:
            The peer, and whether it grants anything to this cluster.

        Raises:
            ConfigError: ``zookeepers`` is no such address.
            RequestError: it is this cluster, or has another name.
            PeerExistsError: the name is defined already, as another cluster.
            PeerUnavailableError: its ZooKeeper or receivers do not answer.
            PeerRefusedError: its version cannot be used with this one, or it refuses the proof.
        """
        zookeepers = with_root(zookeepers, name)
        known = next((peer for peer in self.ledger.rules.peers() if peer.name == name), None)
        reached = self.contacts.reach(name, zookeepers, proof)
        granted = bool(reached.described.granted)
        there, own = reached.public.cluster, self.ledger.cluster
        if there == own:
            raise RequestError(f"{zookeepers} is this cluster itself", "A cluster cannot be its own peer")
        if there.name == own.name:
            raise RequestError(
                f"{zookeepers} is another cluster ({there}) with the name of this one, {there.name}",
                "Give each cluster a name of its own, set at `walship init`",
            )
        if there.name != name:
            raise RequestError(f"the cluster at {zookeepers} is {there.name}, not {name}", f"Define it as {there.name}")
        made = Peer(name, str(reached.quorum), there)
        if known is not None:
            if known.cluster != there:
                raise PeerExistsError(
                    f"peer {name} is defined already: {known.cluster} at {known.zookeepers}",
                    f"First: walship deletecluster {name}",
                )
            if known.zookeepers != made.zookeepers:
                self.ledger.rules.set_address(name, made.zookeepers, self.ledger.terms.current())
                self.announcer.announce()
            self._forget_former(there)  # an earlier call may have been killed before it did this
            return replace(known, zookeepers=made.zookeepers), granted
        self.ledger.rules.define(made, self.ledger.terms.current())
        self._forget_former(there)
        self.announcer.announce()
        return made, granted

    def _forget_former(self, there: ClusterId) -> None:
        """Expect nothing more from the earlier incarnations of a cluster that was restored."""
        for gone in {route.source for route in self.ledger.landing.routes()}:
            if gone.name == there.name and gone != there:
                self.ledger.time.forget(gone)

    def delete(self, name: str) -> tuple[Peer, bool]:
        """Remove a peer and its rules.

        Returns:
            The peer, and whether it was informed.

        Raises:
            UnknownPeerError: there is none.
            UnfinishedSequenceError: an operation with it, such as a switchover, is unfinished.
        """
        peer = known_peer(self.ledger, name)
        for stored in self.ledger.steps.sequences(self.ledger.cluster.name):
            if any(json.loads(step).get("peer") == name for step in stored.steps):
                raise UnfinishedSequenceError(
                    f"the operation {stored.id.urn} with {name} is unfinished",
                    f"See walship ops show {stored.id.urn}. Finish, undo or abandon it, then delete the peer",
                )
        self.ledger.rules.delete(name, self.ledger.terms.current())
        self.announcer.announce()
        return peer, self._close_routes(peer)

    def _close_routes(self, peer: Peer) -> bool:
        """Close every route to a peer whose rule has ended; False when the peer did not answer."""
        routes = ended_routes(self.ledger, peer.cluster)
        if not routes:
            return True
        with suppress(ReplicationError), self.contacts.link(peer) as link:
            declare(link, self.ledger.cluster, peer.cluster, routes)
            return True
        return False

    def enable(
        self,
        table: str,
        groups: Sequence[str],
        peer_name: str,
        remote_table: str = "",
        *,
        from_now: bool = False,
        bootstrap_bytes: int | None = None,
        with_properties: bool | None = None,
        count_rows: Callable[[TableSpec], int | None],
    ) -> list[Rule]:
        """Send what is written to groups of a table from now on; see ``EnableRequest``. The peer makes its table first.

        Raises:
            RequestError: the name cannot be used there, the rules are so already, or rows would be left out.
            UnknownTableError, UnknownPeerError, SchemaError: no such table, peer or group.
            PeerRefusedError: the peer has another table of that name, or refuses; the hint is the remedy.
            PeerUnavailableError: no receiver of the peer answers.
        """
        how = EnableRequest(peer_name, groups, remote_table, from_now, bootstrap_bytes, with_properties, count_rows)
        ((_, made),) = self.enable_all([table], how)
        if isinstance(made, ReplicationError):
            raise made
        return made

    def enable_all(
        self, tables: Sequence[str], request: EnableRequest
    ) -> Iterator[tuple[str, list[Rule] | ReplicationError]]:
        """As ``enable``, many tables, some with each transaction and call. Yields each table's rules, or its error."""
        for begin in range(0, len(tables), _TABLES_AT_ONCE):
            some = tables[begin : begin + _TABLES_AT_ONCE]
            try:
                made = self._enable_some(some, request)
            except ReplicationError as error:
                made = dict.fromkeys(some, error)
            yield from made.items()

    def _enable_some(
        self, tables: Sequence[str], request: EnableRequest
    ) -> Mapping[str, list[Rule] | ReplicationError]:
        peer = known_peer(self.ledger, request.peer_name)
        before, failed, asked = self._rules(peer), dict[str, ReplicationError](), dict[str, NewRules]()
        for table in tables:
            try:
                asked[table] = self._check(full_name(table), peer, before, request)
            except ReplicationError as error:
                failed[table] = error
        failed |= self._carry_out(peer, asked, request)
        rules = self._rules(peer)
        return {table: failed[table] if table in failed else rules[asked[table].spec.uuid] for table in tables}

    def _check(self, table: str, peer: Peer, rules: Mapping[UUID, list[Rule]], request: EnableRequest) -> NewRules:
        """The rules that a table is to get, given those for the peer; raises ReplicationError when it may not."""
        if is_system_table(table):
            raise RequestError(f"{table} is walship's own table and is not replicated", "Enable its table")
        spec = self.ledger.tables.get(table)
        there = rules.get(spec.uuid, [])
        remote = full_name(request.remote_table) or (there[0].remote_table if there else table)
        held = self.ledger.sending.held() if there else []
        reason = next((each.reason for each in held if (each.peer, each.table) == (peer.name, spec.uuid)), "")
        asked = NewRules(spec, peer, remote, there, request, reason)
        asked.check()
        if not there and remote != table:
            self._refuse_other_name(spec, peer)
        if asked.new and not request.from_now and request.bootstrap_bytes is None:
            refuse_unsent(self.ledger, spec, request.count_rows)
        return asked

    def _carry_out(
        self, peer: Peer, asked: Mapping[str, NewRules], request: EnableRequest
    ) -> dict[str, ReplicationError]:
        """Write rules and have the peer open the routes; the tables that fail, whose new rules go again."""
        failed, term = dict[str, ReplicationError](), self.ledger.terms.current()
        with_properties, bootstrap = request.with_properties, request.bootstrap_bytes is not None
        new = {each.spec.uuid: each.new for each in asked.values() if each.is_plain}
        if new:
            properties = with_properties is not False
            self.ledger.rules.enable_all(peer.name, new, term, bootstrap=bootstrap, with_properties=properties)
        for table, each in asked.items():
            if not each.is_plain:
                try:
                    self.ledger.rules.enable(
                        peer.name,
                        each.spec.uuid,
                        each.new,
                        each.remote,
                        term,
                        bootstrap=bootstrap,
                        with_properties=None if each.there else with_properties,
                        every_group=not request.groups,
                    )
                except ReplicationError as error:
                    failed[table] = error
        made, rules = dict[str, list[Rule]](), self._rules(peer)
        for table, each in asked.items():
            made[table] = [rule for rule in rules.get(each.spec.uuid, []) if rule.group not in each.sent]
            if not made[table] and each.new and table not in failed:
                failed[table] = UnknownTableError(f"{table} was dropped meanwhile", "See walship listtables")
        failed |= self._open(peer, {table: rules for table, rules in made.items() if rules}, request)
        for table, each in asked.items():
            if each.changes_properties and table not in failed:  # workers see this at their next poll
                self.ledger.rules.enable(
                    peer.name, each.spec.uuid, [], each.remote, term, with_properties=with_properties
                )
        self.announcer.announce()
        return failed

    def _open(self, peer: Peer, made: Mapping[str, list[Rule]], request: EnableRequest) -> dict[str, ReplicationError]:
        """Open the routes of new rules, by table; the tables that the peer refuses, whose rules go again."""
        every = [rule for rules in made.values() for rule in rules]
        if not every:
            return {}
        try:
            self.open_routes(peer, every, request.bootstrap_bytes or 0)
            return {}
        except (PeerRefusedError, PeerUnavailableError) as error:
            if isinstance(error, PeerRefusedError) and len(made) > 1:  # which of them, and why, one at a time
                each = (self._open(peer, {table: rules}, request) for table, rules in made.items())
                return dict(chain.from_iterable(failed.items() for failed in each))
            for rules in made.values():
                groups = [rule.group for rule in rules]
                self.ledger.rules.disable(peer.name, rules[0].table, groups, self.ledger.terms.current())
            return dict.fromkeys(made, error)

    def open_routes(self, peer: Peer, rules: Sequence[Rule], bootstrap_bytes: int) -> None:
        """Have the peer make its tables and open the routes of ``rules``.

        Raises:
            PeerRefusedError: the peer refuses a table, or has no space.
            PeerUnavailableError: no receiver of the peer answers.
        """
        routes = routes_of(self.ledger, rules, peer.cluster)
        with self.contacts.link(peer) as link:
            sized = [replace(route, bootstrap_bytes=bootstrap_bytes) for route in routes]
            declare(link, self.ledger.cluster, peer.cluster, sized)

    def _refuse_other_name(self, spec: TableSpec, peer: Peer) -> None:
        """Raise RequestError when the peer has a table already under its name here: it keeps that name."""
        with suppress(PeerRefusedError), self.contacts.link(peer) as link:  # refused: a table of others has the name
            found = link.get_table(spec.name)
            if found is not None and found.uuid == spec.uuid:
                raise RequestError(f"{peer.name} has this table already, as {spec.name}", "Leave out --remote-table")

    def adopt(self, table: str, cluster: str) -> TableSpec:
        """Make a table here that is the same as another cluster's: its name, uuid, columns, groups and properties.

        Each of the two clusters can then send it to the other.

        Args:
            table: its name, here and there.
            cluster: a defined peer, or ``host:port[,…]/root`` of a cluster's ZooKeeper.

        Raises:
            ReadOnlyClusterError: this cluster is STANDBY.
            UnknownPeerError: no such peer, and no address.
            UnknownTableError: that cluster has no such table.
            TableExistsError: another table has the name here.
            RequestError: no table can have the name, or the table was dropped here, or changed far ahead of the clock.
            PeerUnavailableError: the cluster does not answer.
        """
        refuse_standby(self.ledger)
        table = full_name(table)
        if unusable := unusable_name(table):
            raise RequestError(f"no table can have that name: {unusable}", "Choose another name")
        with self.contacts.link_by(cluster) as link:
            found = link.get_table(table)
        if found is None:
            raise UnknownTableError(f"{cluster} has no table {table}", f"Make it without --like {cluster}")
        spec = replace(found, name=table)  # the peer's answer is not trusted with the name
        if latest_stamp(spec) > now_us() + self.commit_ahead_max_s * 1e6:  # later changes get times above
            what = (
                f"{table} was changed on {cluster} further ahead of the clock here than [receiver] commit_ahead_max_s"
            )
            raise RequestError(what, f"Correct the clock of the cluster that changed it, and make {table} anew there")
        known = self.ledger.tables.by_uuid(spec.uuid)
        if known is None:
            self.ledger.tables.create(spec)
        elif known not in self.ledger.tables.all():
            raise RequestError(
                f"{known.name} was dropped here, so rows written since would be missing from it",
                f"Make a new table of another name on {cluster}, and copy the rows into it",
            )
        elif known.name != table:
            raise TableExistsError(f"that table exists here already, as {known.name}", "Use that name here")
        return self.ledger.tables.alter(spec.uuid, lambda own: join(own, spec))

    def disable_all(
        self, tables: Iterable[str], groups: Sequence[str], peer_name: str
    ) -> Iterator[tuple[str, list[str] | ReplicationError]]:
        """Stop sending groups of tables (all when empty). Yields those sent until now of each table, or its error.

        Then ``close_ended`` informs the peer.
        """
        peer = known_peer(self.ledger, peer_name)
        rules, named = self._rules(peer), dict[str, list[TableSpec]]()
        for spec in self._sent_to(peer):
            named.setdefault(spec.name, []).append(spec)  # several: dropped ones, and another of the name
        for table in tables:
            try:
                name = full_name(table)
                specs = named.get(name) or [self.ledger.tables.get(name)]
                sent = list(dict.fromkeys(rule.group for spec in specs for rule in rules.get(spec.uuid, [])))
                ended = [group for group in sent if not groups or group in groups]
                if not sent:
                    raise RequestError(
                        f"{name} does not go to {peer_name}", f"See where it goes: walship describetable {name}"
                    )
                if not ended:
                    raise RequestError(
                        f"no group {', '.join(groups)} of {name} goes to {peer_name}",
                        f"Those that do: {', '.join(sent)}",
                    )
                for spec in specs:
                    self.ledger.rules.disable(peer_name, spec.uuid, ended, self.ledger.terms.current())
                yield table, ended
            except ReplicationError as error:
                yield table, error

    def close_ended(self, peer_name: str) -> bool:
        """Announce the rules that ended, and inform the peer; whether it answered."""
        self.announcer.announce()
        return self._close_routes(known_peer(self.ledger, peer_name))

    def sent_to(self, peer_name: str) -> list[str]:
        """Names of the tables that go to a peer, with those that were dropped here."""
        return sorted(spec.name for spec in self._sent_to(known_peer(self.ledger, peer_name)))

    def _sent_to(self, peer: Peer) -> list[TableSpec]:
        """The tables that go to a peer, dropped ones first."""
        here = {spec.uuid: spec for spec in self.ledger.tables.all()}
        tables = self._rules(peer).keys()
        dropped = [self.ledger.tables.by_uuid(table) for table in tables if table not in here]
        return [*(spec for spec in dropped if spec is not None), *(here[table] for table in tables if table in here)]

    def _rules(self, peer: Peer) -> dict[UUID, list[Rule]]:
        """The rules for a peer, by table."""
        found: dict[UUID, list[Rule]] = {}
        for rule in self.ledger.rules.to(peer.name):
            found.setdefault(rule.table, []).append(rule)
        return found
