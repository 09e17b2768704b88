"""Which clusters this one sends to, and what: peers validated before they are defined, tables made ready there first.

Rules change in the ledger; ZooKeeper only announces that they did. Whatever is refused leaves nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from peer.client.contacts import Contacts, known_peer, with_root
from replication.core.definition.choice import full_name
from replication.core.definition.define import is_system_table, unusable_name
from replication.core.definition.evolution import join
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import (
    PeerExistsError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplicationError,
    RequestError,
    TableExistsError,
    UnknownTableError,
)
from replication.ledger.base import Ledger, Peer, Rule
from replication.worker.ship.routes import ended_routes, routes_of


class Announcer(Protocol):
    """Says that rules changed; ``Coordination`` does."""

    def announce(self) -> int:
        """Say so."""


@dataclass(frozen=True, slots=True)
class Peering:
    """Defining peers and enabling replication, for one cluster."""

    ledger: Ledger
    announcer: Announcer
    contacts: Contacts

    def define(self, name: str, zookeepers: str) -> Peer:
        """Add a peer after it has answered; or have one be reached at another ZooKeeper, with all that it requires.

        Nothing is changed by what is so already.

        Args:
            name: the cluster's own.
            zookeepers: ``host:port[,host:port…][/root]``; its root is ``/walship/NAME`` unless it is given.

        Raises:
            ConfigError: ``zookeepers`` is none.
            RequestError: it is this cluster, or another cluster than ``name``, or of another incarnation.
            PeerExistsError: the name is defined already, as another cluster.
            PeerUnavailableError: its ZooKeeper or receivers do not answer.
            PeerRefusedError: its version does not go with this one.
        """
        zookeepers = with_root(zookeepers, name)
        known = next((peer for peer in self.ledger.rules.peers() if peer.name == name), None)
        reached = self.contacts.reach(name, zookeepers)
        there, own = reached.public.cluster, self.ledger.cluster
        if there == own:
            raise RequestError(f"{zookeepers} is this cluster itself", "A cluster cannot be its own peer")
        if there.name == own.name:
            raise RequestError(
                f"{zookeepers} is called {there.name} like this cluster, but is another one ({there})",
                "Give each cluster a name of its own, set at `walship init`",
            )
        if there.name != name:
            raise RequestError(f"The cluster at {zookeepers} is {there.name}, not {name}", f"Define it as {there.name}")
        made = Peer(name, str(reached.quorum), there)
        if known is not None:
            if known.cluster != there:
                raise PeerExistsError(
                    f"Peer {name} is defined already: {known.cluster} at {known.zookeepers}",
                    f"First: walship deletecluster {name}",
                )
            if known.zookeepers != made.zookeepers:
                self.ledger.rules.set_address(name, made.zookeepers, self.ledger.terms.current())
                self.announcer.announce()
            self._forget_former(there)  # a definition before this one may have been killed before it did
            return replace(known, zookeepers=made.zookeepers)
        self.ledger.rules.define(made, self.ledger.terms.current())
        self._forget_former(there)
        self.announcer.announce()
        return made

    def _forget_former(self, there: ClusterId) -> None:
        """Expect nothing more from what a cluster was that has been restored since."""
        for gone in {route.source for route in self.ledger.landing.routes()}:
            if gone.name == there.name and gone != there:
                self.ledger.time.forget(gone)

    def delete(self, name: str) -> tuple[Peer, bool]:
        """Remove a peer and its rules, and say whether it knows; UnknownPeerError when there is none."""
        peer = known_peer(self.ledger, name)
        self.ledger.rules.delete(name, self.ledger.terms.current())
        self.announcer.announce()
        return peer, self._tell_ended(peer)

    def _tell_ended(self, peer: Peer) -> bool:
        """Tell a peer of every route to it that has ended; False when it did not answer and sees routes go silent."""
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
        """Send what is written to groups of a table from now on, making the table at the peer first.

        With a bootstrap the rows that are there already follow, from this cluster's replay process.

        Args:
            table: its name here.
            groups: locality groups; empty for all, those that are added later included.
            peer_name: a defined peer.
            remote_table: its name there; empty for the same, or the one that it has there already.
            with_properties: whether the peer's table takes the properties of this one, now and when they are set anew,
                which can change while the table goes there; None for yes, or as it is.
            from_now: rows that are there already and will not be sent are accepted.
            bootstrap_bytes: about how much the rows that are there need at the peer, with what is on its way there
                beside them; None when they are not to be sent.
            count_rows: how many rows the table shows; None where no tables are kept.

        Raises:
            RequestError: no table can have that name there, or the table holds rows that are neither to be sent nor
                accepted as missing.
            UnknownTableError, UnknownPeerError, SchemaError: no such table, peer or group.
            PeerRefusedError: the peer has another table of that name, or wants none; the hint is the remedy.
            PeerUnavailableError: no receiver of the peer answers.
        """
        table, remote_table = full_name(table), full_name(remote_table)
        if is_system_table(table):
            raise RequestError(f"{table} is walship's own table and is not replicated", "Enable its table")
        spec, peer = self.ledger.tables.get(table), known_peer(self.ledger, peer_name)
        there = {rule.group: rule for rule in self._rules(spec, peer)}
        remote = remote_table or next((rule.remote_table for rule in there.values()), table)
        _check_remote_name(table, peer_name, remote)
        named = [spec.group(group).name for group in groups] or [group.name for group in spec.groups]
        new = [group for group in named if group not in there]
        bootstrap = bootstrap_bytes is not None
        is_so = with_properties is None or all(rule.with_properties == with_properties for rule in there.values())
        if not new and (bootstrap or (is_so and (groups or all(rule.every_group for rule in there.values())))):
            again = f"For rows from before: walship bootstrap {peer_name} -t {table}"
            raise RequestError(f"{table} goes to {peer_name} already", again if bootstrap else "See walship status")
        unsent = "" if from_now or bootstrap or not new else self._unsent(spec, count_rows)
        if unsent:
            raise RequestError(
                f"{table} holds {unsent}, which will not be sent; only what is written from now on is",
                "Say --from-now to accept that, or --bootstrap to send those as well",
            )
        term = self.ledger.terms.current()
        rules = self.ledger.rules.enable(
            peer_name,
            spec.uuid,
            new,
            remote,
            term,
            bootstrap=bootstrap,
            with_properties=None if there else with_properties,
            every_group=not groups,
        )
        if new:
            try:
                self._open_routes(peer, rules, bootstrap_bytes or 0)
            except (PeerRefusedError, PeerUnavailableError):
                self.ledger.rules.disable(peer_name, spec.uuid, new, term)
                raise
        if not is_so:  # workers see it at their next look, and open their streams anew
            self.ledger.rules.enable(peer_name, spec.uuid, [], remote, term, with_properties=with_properties)
        self.announcer.announce()
        return self._rules(spec, peer)

    def _open_routes(self, peer: Peer, rules: Sequence[Rule], bootstrap_bytes: int) -> None:
        """Have the peer take what the rules send, its tables made ready."""
        with self.contacts.link(peer) as link:
            for route in routes_of(self.ledger, rules, peer.cluster):
                link.open_route(self.ledger.cluster, peer.cluster, replace(route, bootstrap_bytes=bootstrap_bytes))

    def _unsent(self, spec: TableSpec, count_rows: Callable[[TableSpec], int | None]) -> str:
        """What a table has been written before now, in words; "" when that is nothing for certain.

        Rows that are registered and not replayed yet cannot be counted, but the frames that hold them can.
        """
        covered = self.ledger.landing.coverage(spec.uuid)
        if not covered:
            return ""
        reached = self.ledger.time.reached({stream: ranges.end - 1 for stream, ranges in covered.items()})
        rows = count_rows(spec)  # after that: what is replayed meanwhile is counted twice rather than not at all
        if rows is None:
            return f"rows in {sum(ranges.total for ranges in covered.values()):,} frames already"
        waiting = sum(ranges.total for stream, ranges in covered.items() if not reached[stream].visible)
        frames = f"in up to {waiting:,} frames that are not replayed yet"
        if not rows:
            return f"rows {frames}" if waiting else ""
        return f"{rows:,} rows already" + (f", and more {frames}" if waiting else "")

    def adopt(self, table: str, cluster: str) -> TableSpec:
        """Make a table here that is another cluster's of that name: same uuid, columns, groups and properties.

        Args:
            table: its name, here and there.
            cluster: a defined peer, or ``host:port[,…]/root`` of a cluster's ZooKeeper.

        Raises:
            UnknownPeerError: no such peer, and no address.
            UnknownTableError: that cluster has no such table.
            TableExistsError: the name is taken here by another table.
            RequestError: a name that no table can have, or a table that was dropped here.
            PeerUnavailableError: the cluster does not answer.
        """
        table = full_name(table)
        if unusable := unusable_name(table):
            raise RequestError(f"No table can be made of that name: {unusable}", "Choose another")
        with self.contacts.link_by(cluster) as link:
            found = link.get_table(table)
        if found is None:
            raise UnknownTableError(f"{cluster} has no table {table}", f"Make it without --like {cluster}")
        spec = replace(found, name=table)  # whatever it says
        known = self.ledger.tables.by_uuid(spec.uuid)
        if known is None:
            self.ledger.tables.create(spec)
        elif known not in self.ledger.tables.all():
            raise RequestError(
                f"{known.name} was dropped here, and what came meanwhile would be missing from it",
                f"Make a new table of another name on {cluster}, and copy the rows into it",
            )
        elif known.name != table:
            raise TableExistsError(f"that table is here already, as {known.name}", "Nothing to do; use that name here")
        return self.ledger.tables.alter(spec.uuid, lambda own: join(own, spec))

    def disable(self, table: str, groups: Sequence[str], peer_name: str) -> tuple[list[str], bool]:
        """Send nothing more of groups of a table (all when empty).

        Returns:
            The groups that were sent until now, and whether the peer knows; else workers report it when it is back.
        """
        table, peer = full_name(table), known_peer(self.ledger, peer_name)
        spec = self._sent(table, peer) or self.ledger.tables.get(table)
        sent = [rule.group for rule in self._rules(spec, peer)]
        ended = [group for group in sent if not groups or group in groups]
        if not sent:
            raise RequestError(f"{table} does not go to {peer_name}", "See walship status")
        if not ended:
            raise RequestError(
                f"No group {', '.join(groups)} of {table} goes to {peer_name}", f"Those that do: {', '.join(sent)}"
            )
        self.ledger.rules.disable(peer_name, spec.uuid, ended, self.ledger.terms.current())
        self.announcer.announce()
        return ended, self._tell_ended(peer)

    def sent_to(self, peer_name: str) -> list[str]:
        """Names of the tables that go to a peer, those that were dropped here included."""
        known_peer(self.ledger, peer_name)
        tables = {rule.table for rule in self.ledger.rules.all() if rule.peer == peer_name}
        specs = [self.ledger.tables.by_uuid(table) for table in tables]
        return sorted(spec.name for spec in specs if spec is not None)

    def _sent(self, table: str, peer: Peer) -> TableSpec | None:
        """The table of that name that goes to a peer: the one that is here, else one that was dropped here."""
        specs = [self.ledger.tables.by_uuid(rule.table) for rule in self.ledger.rules.all() if rule.peer == peer.name]
        here = {spec.uuid for spec in self.ledger.tables.all()}
        named = [spec for spec in specs if spec is not None and spec.name == table]
        return max(named, key=lambda spec: spec.uuid in here, default=None)

    def _rules(self, spec: TableSpec, peer: Peer) -> list[Rule]:
        return [rule for rule in self.ledger.rules.all() if rule.table == spec.uuid and rule.peer == peer.name]


def _check_remote_name(table: str, peer: str, remote: str) -> None:
    if unusable := unusable_name(remote):
        raise RequestError(
            f"{table} cannot go to {peer} under that name: {unusable}",
            "Name it namespace.name there, such as --remote-table ops.flights",
        )
