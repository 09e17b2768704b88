"""Defining peers and enabling replication. A peer is checked before it is defined or gets a table.

Rules change in the ledger; ZooKeeper only announces the change. A call that is refused changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from peer.client.contacts import NO_PROOF, Contacts, Proof, known_peer, with_root
from peer.client.definition import refuse_standby
from replication.coordination.session import Coordination
from replication.core.definition.choice import full_name
from replication.core.definition.define import is_system_table, unusable_name
from replication.core.definition.evolution import join
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.error_text import counted
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
from replication.worker.ship.routes import ended_routes, routes_of


@dataclass(frozen=True, slots=True)
class Peering:
    """Defining peers and enabling replication, for one cluster."""

    ledger: Ledger
    announcer: Coordination
    contacts: Contacts

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
            for route in routes:
                link.open_route(self.ledger.cluster, peer.cluster, route)
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
        """Send what is written to groups of a table from now on. The peer makes its table first.

        Args:
            table: its name here.
            groups: locality groups; empty for all, and for those added later.
            peer_name: a defined peer.
            remote_table: its name there; empty for the name that it has there, or the same name.
            with_properties: whether the peer's table follows the properties of this one. None changes nothing; for a
                new rule it means yes.
            from_now: accept that the rows that the table has already are not sent.
            bootstrap_bytes: send these rows too. They need about so many bytes at the peer, together with the
                bootstraps that are under way to it. None: do not send them.
            count_rows: counts the rows of the table; None where this cluster keeps no tables.

        Raises:
            RequestError: the name cannot be used there, the rules are so already, or rows would be left out.
            UnknownTableError, UnknownPeerError, SchemaError: no such table, peer or group.
            PeerRefusedError: the peer has another table of that name, or refuses; the hint is the remedy.
            PeerUnavailableError: no receiver of the peer answers.
        """
        table, remote_table = full_name(table), full_name(remote_table)
        _refuse_system_table(table)
        spec, peer = self.ledger.tables.get(table), known_peer(self.ledger, peer_name)
        there = self._rules(spec, peer)
        remote = remote_table or (there[0].remote_table if there else table)
        asked = _Enabling(spec, peer, remote, there, groups, bootstrap_bytes, with_properties)
        asked.check()
        if not there and remote != table:
            self._refuse_other_name(spec, peer)
        if asked.new and not from_now and bootstrap_bytes is None:
            self._refuse_unsent(spec, count_rows)
        self._carry_out(asked)
        return self._rules(spec, peer)

    def _carry_out(self, asked: _Enabling) -> None:
        """Write the rules and have the peer open the routes. When the peer refuses, the new rules go again."""
        peer, table, term = asked.peer, asked.spec.uuid, self.ledger.terms.current()
        rules = self.ledger.rules.enable(
            peer.name,
            table,
            asked.new,
            asked.remote,
            term,
            bootstrap=asked.bootstrap_bytes is not None,
            with_properties=None if asked.there else asked.with_properties,
            every_group=not asked.groups,
        )
        if asked.new:
            try:
                self.open_routes(peer, rules, asked.bootstrap_bytes or 0)
            except (PeerRefusedError, PeerUnavailableError):
                self.ledger.rules.disable(peer.name, table, [rule.group for rule in rules], term)
                raise
        if asked.changes_properties:  # workers see this at their next poll, and open their streams again
            with_properties = asked.with_properties
            self.ledger.rules.enable(peer.name, table, [], asked.remote, term, with_properties=with_properties)
        self.announcer.announce()

    def open_routes(self, peer: Peer, rules: Sequence[Rule], bootstrap_bytes: int) -> None:
        """Have the peer make its tables and open the routes of ``rules``.

        Args:
            peer: where the rules go.
            rules: of that peer.
            bootstrap_bytes: how much space the peer needs for bootstraps.

        Raises:
            PeerRefusedError: the peer refuses a table, or has no space.
            PeerUnavailableError: no receiver of the peer answers.
        """
        with self.contacts.link(peer) as link:
            for route in routes_of(self.ledger, rules, peer.cluster):
                link.open_route(self.ledger.cluster, peer.cluster, replace(route, bootstrap_bytes=bootstrap_bytes))

    def _refuse_other_name(self, spec: TableSpec, peer: Peer) -> None:
        """Raise RequestError when the peer has a table already under its name here: it keeps that name."""
        with suppress(PeerRefusedError), self.contacts.link(peer) as link:  # refused: a table of others has the name
            found = link.get_table(spec.name)
            if found is not None and found.uuid == spec.uuid:
                raise RequestError(f"{peer.name} has this table already, as {spec.name}", "Leave out --remote-table")

    def _refuse_unsent(self, spec: TableSpec, count_rows: Callable[[TableSpec], int | None]) -> None:
        """Raise RequestError when a table holds rows that a new rule would not send."""
        if unsent := self._unsent(spec, count_rows):
            raise RequestError(
                f"{spec.name} holds {unsent}, which will not be sent; only what is written from now on is sent",
                "Add --bootstrap to send these rows too, or --from-now to leave them out",
            )

    def _unsent(self, spec: TableSpec, count_rows: Callable[[TableSpec], int | None]) -> str:
        """What was written to a table before now, in words; "" when nothing was.

        Rows that are registered but not replayed cannot be counted. Their frames can.
        """
        covered = self.ledger.landing.coverage(spec.uuid)
        if not covered:
            return ""
        reached = self.ledger.time.reached({stream: ranges.end - 1 for stream, ranges in covered.items()})
        rows = count_rows(spec)  # counted last: what is replayed meanwhile counts twice rather than not at all
        if rows is None:
            return f"rows in {counted(sum(ranges.total for ranges in covered.values()), 'frame')} already"
        waiting = sum(ranges.total for stream, ranges in covered.items() if not reached[stream].applied)
        of_table = (frame for frame in self.ledger.replay.quarantined() if frame.table == spec.uuid)
        waiting += sum(not frame.discarded and not frame.succession for frame in of_table)
        frames = f"in up to {counted(waiting, 'frame')} not replayed yet"
        if not rows:
            return f"rows {frames}" if waiting else ""
        return f"{counted(rows, 'row')} already" + (f", and more {frames}" if waiting else "")

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
            RequestError: no table can have the name, or the table was dropped here.
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

    def disable(self, table: str, groups: Sequence[str], peer_name: str) -> tuple[list[str], bool]:
        """Stop sending groups of a table (all when empty).

        Returns:
            The groups that were sent until now, and whether the peer was informed. Else workers inform it later.
        """
        table, peer = full_name(table), known_peer(self.ledger, peer_name)
        spec = self._sent(table, peer) or self.ledger.tables.get(table)
        sent = [rule.group for rule in self._rules(spec, peer)]
        ended = [group for group in sent if not groups or group in groups]
        if not sent:
            raise RequestError(
                f"{table} does not go to {peer_name}", f"See where it goes: walship describetable {table}"
            )
        if not ended:
            raise RequestError(
                f"no group {', '.join(groups)} of {table} goes to {peer_name}", f"Those that do: {', '.join(sent)}"
            )
        self.ledger.rules.disable(peer_name, spec.uuid, ended, self.ledger.terms.current())
        self.announcer.announce()
        return ended, self._close_routes(peer)

    def sent_to(self, peer_name: str) -> list[str]:
        """Names of the tables that go to a peer, with those that were dropped here."""
        known_peer(self.ledger, peer_name)
        tables = {rule.table for rule in self.ledger.rules.to(peer_name)}
        specs = [self.ledger.tables.by_uuid(table) for table in tables]
        return sorted(spec.name for spec in specs if spec is not None)

    def _sent(self, table: str, peer: Peer) -> TableSpec | None:
        """The table of that name that goes to a peer. One that still exists comes before a dropped one."""
        specs = [self.ledger.tables.by_uuid(rule.table) for rule in self.ledger.rules.to(peer.name)]
        here = {spec.uuid for spec in self.ledger.tables.all()}
        named = [spec for spec in specs if spec is not None and spec.name == table]
        return max(named, key=lambda spec: spec.uuid in here, default=None)

    def _rules(self, spec: TableSpec, peer: Peer) -> list[Rule]:
        return [rule for rule in self.ledger.rules.to(peer.name) if rule.table == spec.uuid]


def _refuse_system_table(table: str) -> None:
    if is_system_table(table):
        raise RequestError(f"{table} is walship's own table and is not replicated", "Enable its table")


@dataclass(frozen=True, slots=True)
class _Enabling:
    """One call of ``Peering.enable``, and the rules that exist already (``there``)."""

    spec: TableSpec
    peer: Peer
    remote: str
    there: Sequence[Rule]
    groups: Sequence[str]
    bootstrap_bytes: int | None
    with_properties: bool | None

    @property
    def new(self) -> list[str]:
        """The groups that get a rule."""
        asked = [self.spec.group(group).name for group in self.groups] or [group.name for group in self.spec.groups]
        sent = {rule.group for rule in self.there}
        return [group for group in asked if group not in sent]

    @property
    def changes_properties(self) -> bool:
        """Whether a rule that exists is to follow properties, or no longer to."""
        wanted = self.with_properties
        return wanted is not None and any(rule.with_properties != wanted for rule in self.there)

    def check(self) -> None:
        """Raise RequestError when the name cannot be used at the peer, or when nothing would change."""
        table, peer = self.spec.name, self.peer.name
        if unusable := unusable_name(self.remote):
            raise RequestError(
                f"{table} cannot go to {peer} under that name: {unusable}",
                "Name it namespace.name there, such as --remote-table ops.flights",
            )
        if self.new:
            return
        if self.bootstrap_bytes is not None:
            again = f"To send the rows from before: walship bootstrap {peer} -t {table}"
            raise RequestError(f"{table} goes to {peer} already", again)
        takes_every_group = not self.groups and not all(rule.every_group for rule in self.there)
        if not self.changes_properties and not takes_every_group:
            raise RequestError(
                f"{table} goes to {peer} already", f"For older rows: walship bootstrap {peer} -t {table}"
            )
