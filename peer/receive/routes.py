"""The routes that senders declare: opened with their tables, definitions and schema versions, and closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peer.grants.rights import check_table
from peer.grants.scope import RouteKey
from peer.receive.definitions import Definitions
from replication import log
from replication.core.definition.define import unusable_name
from replication.core.definition.schema import TableSpec
from replication.core.frame import HOPS_MAX
from replication.core.grants import Grant
from replication.core.ids import ClusterId
from replication.core.routes.carried import Carried, InboundRoute
from replication.core.routes.required import ended_of
from replication.errors import PeerRefusedError
from replication.ledger.base import Ledger
from replication.link.base import Hello, Reason, Refusal, Route

_ORIGINS_MAX = 1024  # that routes of one sender ever carried
_LISTED_MAX = 1 << 20  # WALs and spans that routes of one sender list: each process has them in memory
_log = log.get(__name__)


class Routes:
    """The routes into one cluster. Safe for threads."""

    def __init__(self, ledger: Ledger, definitions: Definitions) -> None:
        self._ledger = ledger
        self._definitions = definitions

    def declared(self, source: ClusterId) -> dict[RouteKey, InboundRoute]:
        """Return the open routes of a source, by (table, group)."""
        routes = self._ledger.landing.routes()
        return {(route.table, route.group): route for route in routes if route.source == source}

    def open(self, grant: Grant, routes: Sequence[Route]) -> dict[RouteKey, Refusal]:
        """Open routes, and close those that say so. On return they are stored; the result has those that are refused.

        A missing table is created with the sender's uuid. What changed is stored in one transaction.
        """
        declared = self.declared(grant.cluster)
        refused: dict[RouteKey, Refusal] = {}
        changed: list[InboundRoute] = []
        here = self._definitions.read({route.spec.uuid for route in routes})
        room = _LISTED_MAX - sum(map(_listed, declared.values()))
        origins = set[ClusterId]()
        if any(route.carried for route in routes):
            origins.update(self._ledger.landing.carried_by(grant.cluster))
        for route in routes:
            key = route.spec.uuid, route.group
            try:
                if route.closed:
                    self._close(grant.cluster, key, route.generation)
                    continue
                left = room + _listed(declared.get(key)) - _listed(route)
                self._check_listed(grant.cluster, left)
                wanted = self._wanted(grant, route, here.get(route.spec.uuid), origins)
            except PeerRefusedError as error:
                refused[key] = replace(Refusal.of(error), table=route.spec.uuid)
                continue
            room, known = left, declared.get(key)
            if known is None or wanted != known:
                changed.append(wanted)
                declared[key] = wanted
        self._ledger.landing.declare_routes(changed)
        return refused

    def close_ended(self, hello: Hello) -> None:
        """Close the routes that are not in ``hello``, except those newer than its generation."""
        named = {(route.spec.uuid, route.group) for route in hello.routes}
        newest = max([hello.generation, *(route.generation for route in hello.routes)])
        for key, route in self.declared(hello.source).items():
            if key not in named and route.generation <= newest:
                self._close(hello.source, key, route.generation)

    def _close(self, source: ClusterId, key: RouteKey, generation: int) -> None:
        self._ledger.landing.close_route(source, *key, generation)
        _log.info("route_closed", source=str(source), table=str(key[0]), group=key[1])

    def _wanted(self, grant: Grant, route: Route, here: TableSpec | None, origins: set[ClusterId]) -> InboundRoute:
        """Return the route to store, once the table and its definitions are; add what it carries to ``origins``.

        Raises PeerRefusedError.
        """
        source = grant.cluster
        self._check_names(source, route)
        self._check_schemas(source, route)
        carried = self._carried(grant, route.carried, origins)
        spec = replace(route.spec, name=route.remote_table)
        check_table(grant, self._ledger.cluster, spec.name if here is None else here.name)
        self._definitions.create(source, spec, may_define=grant.defines)
        self._definitions.learn((spec, *route.schemas), may_define=grant.defines, source=source.name)
        return InboundRoute(
            source,
            spec.uuid,
            route.group,
            route.generation,
            route.required_from,
            dict(route.acknowledged),
            carried,
            phase=route.phase,
        )

    def _carried(self, grant: Grant, declared: Sequence[Carried], origins: set[ClusterId]) -> tuple[Carried, ...]:
        """Return what a route may carry: no frames of this cluster, and only those that the sender may forward.

        Add their ``origins``, which are kept for ever. Raises PeerRefusedError when there are too many.
        """
        own, named = self._ledger.cluster, {each.origin for each in declared}
        most = max(len(origins | named), len(declared))  # of one origin there is one path
        if most > _ORIGINS_MAX or any(len(each.path) > HOPS_MAX for each in declared):
            raise Refusal(
                Reason.TOO_LARGE,
                f"routes from {grant.cluster.name} to {own.name} carry frames of more than {_ORIGINS_MAX} clusters, or"
                f" through more than {HOPS_MAX}",
                f"Find out on {grant.cluster.name} which clusters send to it",
            ).error()
        ends = (grant.cluster,)
        if odd := [each for each in declared if each.path[:1] != (each.origin,) or each.path[-1:] != ends]:
            raise Refusal(
                Reason.NOT_GRANTED,
                f"{grant.cluster.name} declares a path of frames of {odd[0].origin.name} to {own.name} that does not"
                " begin there, or end at the sender",
                f"Check the version of walship on {grant.cluster.name}",
            ).error()
        origins |= named
        others = (each for each in declared if each.origin.name != own.name or each.origin in self._ledger.former)
        return tuple(each for each in others if grant.forwards(each.origin, named))

    def _check_listed(self, source: ClusterId, left: int) -> None:
        if left < 0:
            raise Refusal(
                Reason.TOO_LARGE,
                f"routes from {source.name} to {self._ledger.cluster.name} list more than {_LISTED_MAX:,} WALs and"
                " ranges of lost frames",
                f"On {source.name}: raise [writer] wal_age_max_s, or send fewer tables",
            ).error()

    def _check_schemas(self, source: ClusterId, route: Route) -> None:
        """Check that the group and the schema versions are of the route's table, the only one granted with it."""
        strange = [f"a schema version of another table, {v.table}" for v in route.schemas if v.table != route.spec.uuid]
        if all(group.name != route.group for group in route.spec.groups):
            strange.append(f"group {route.group!r}, which the table does not have")
        if strange:
            raise Refusal(
                Reason.NOT_GRANTED,
                f"{source.name} opens a route of table {route.remote_table} to {self._ledger.cluster.name} with"
                f" {strange[0]}",
                f"A route brings a group of its own table, and its schema versions: check the version of walship on"
                f" {source.name}",
            ).error()

    def _check_names(self, source: ClusterId, route: Route) -> None:
        """Check table names again: they become folders and catalog names, and the sender is not trusted."""
        for name in (route.remote_table, route.spec.name):
            if unusable := unusable_name(name):
                raise Refusal(
                    Reason.TABLE_CONFLICT,
                    f"{self._ledger.cluster.name} refuses this table name: {unusable}",
                    f"Send the table under another name: on {source.name}, disablereplication, then"
                    " enablereplication --remote-table namespace.name",
                ).error()


def _listed(route: Route | InboundRoute | None) -> int:
    """How many WALs a route lists, and spans of sequences."""
    if route is None:
        return 0
    spans = sum(1 + len(gaps.spans) for gaps in route.acknowledged.values())
    return len(route.required_from) + len(ended_of(route.required_from)) + spans
