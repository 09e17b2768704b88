"""Two clusters whose roles change, in one process: ledgers, writers, workers and receivers are real, ZooKeeper is not.

A ``Failpoint`` ends a command, or fails one of its calls, at any of the calls that change something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from peer.client import contacts
from peer.client.cluster import Cluster
from peer.failover.role_change import RoleChange
from peer.receive.receiver import Receiver
from replication.coordination.base import Public
from replication.coordination.paths import MemberKind, Quorum
from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.ids import StreamId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.errors import CoordinationError, PeerUnavailableError, ReadOnlyClusterError
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore
from replication.roles.takeover import Takeover, change_role
from tests.sites import SCHEMA, Site
from tests.waiting import wait_until

TABLE = "ops.t"
_CHANGES = {
    "steps": {"put_all", "lease", "finish", "release", "fail", "remove"},
    "terms": {"keep_role"},
    "successions": {"record", "take_over", "accept", "cancel"},
    "rules": {"define", "enable"},
}
_OF_ZOOKEEPER = {"set_role", "announce"}


class Killed(BaseException):
    """The process is gone."""


class Failpoint:
    """Before or after the ``at``-th change, counted from 1, its caller ends; 0 only counts."""

    def __init__(self, at: int = 0, error: Callable[[], BaseException] = Killed) -> None:
        self.at, self.error = at, error
        self.passed = 0
        self._dead = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call with a point before it and one after it."""

        def called(*arguments: Any, **named: Any) -> Any:
            self._pass()
            result = call(*arguments, **named)
            self._pass()
            return result

        return called

    def _pass(self) -> None:
        if self._dead:
            raise Killed
        self.passed += 1
        if self.passed == self.at:
            error = self.error()
            self._dead = isinstance(error, Killed)
            raise error


def no_answer() -> BaseException:
    """What a lost ZooKeeper, ledger or connection comes to."""
    return CoordinationError("lost", "")


class Watched:
    """An object some of whose methods, or of whose parts' methods, are failpoints."""

    def __init__(self, of: Any, point: Failpoint, names: set[str], parts: dict[str, set[str]] | None = None) -> None:
        self._of, self._point, self._names, self._parts = of, point, names, parts or {}

    def __getattr__(self, name: str) -> Any:
        """The object's own, wrapped where it changes something."""
        found = getattr(self._of, name)
        if name in self._parts:
            return Watched(found, self._point, self._parts[name])
        return self._point.wrap(found) if name in self._names else found


class _Command(Cluster):
    """The handle of one command; its calls that change something are failpoints."""

    def __init__(self, site: Site, point: Failpoint) -> None:
        super().__init__(site.config, cast(Any, Watched(site.ledger, point, set(), _CHANGES)))
        self._opened._coordination = cast(Any, Watched(site.coordination, point, _OF_ZOOKEEPER))
        self._point = point

    @property
    def contacts(self) -> Any:
        """Calls to receivers are failpoints, too."""
        made = super().contacts

        @contextmanager
        def link(peer: Any) -> Iterator[Any]:
            with made.link(peer) as found:
                yield Watched(found, self._point, {"take_over"})

        return _Overridden(made, link)


class _Overridden:
    def __init__(self, of: Any, link: Any) -> None:
        self._of, self.link = of, link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class Member:
    """One cluster of the pair; ``is_away`` hides it from the other."""

    def __init__(self, folder: Path, name: str) -> None:
        self.site, self.name = Site(folder, name, writer={"lease_s": 2.0}), name
        self.address = f"zk:2181/walship/{name}"
        self.is_away = False
        self.handle = Cluster(self.site.config, self.site.ledger)
        self.handle._opened._coordination = self.site.coordination
        self.working = ExitStack()
        self.receiver: Receiver | None = None

    def close(self) -> None:
        """End the writer and the worker."""
        if self.handle._opened._writer is not None:
            self.handle._opened._writer.close()
        self.working.close()

    def receive(self, stack: ExitStack) -> None:
        """Run a receiver until the stack is closed."""
        self.receiver = stack.enter_context(self.site.receiver())
        found = self.site.coordination.public()
        address = f"127.0.0.1:{self.receiver.port}"
        self.site.coordination.publish(Public(found.cluster, found.version, (address,)))

    def ship_to(self, other: Member) -> None:
        """Run a worker until ``working`` is closed."""
        assert other.receiver is not None
        self.site.assign(other.site.cluster, other.receiver.port)
        self.working.enter_context(self.site.worker())
        members = self.site.coordination.members
        wait_until(lambda: bool(members(MemberKind.WORKERS)), what=f"{self.name}'s worker")

    def command(self, point: Failpoint | None = None) -> RoleChange:
        """A command's view of the cluster."""
        return RoleChange(self.handle if point is None else _Command(self.site, point), timeout_s=20.0)

    @contextmanager
    def receiver_fails(self, point: Failpoint) -> Iterator[None]:
        """What the receiver changes in a takeover are failpoints."""
        assert self.receiver is not None
        door = self.receiver._reception._successions
        real = door._takeover
        ledger = cast(Any, Watched(self.site.ledger, point, set(), _CHANGES))
        door._takeover = Takeover(ledger, cast(Any, Watched(self.site.coordination, point, _OF_ZOOKEEPER)))
        try:
            yield
        finally:
            door._takeover = real

    def bury(self) -> None:
        """End the leases of killed commands, as another process does that sees that their owner has ended."""
        steps = self.site.ledger.steps
        for stored in steps.sequences(self.name, "role"):
            if stored.owner:
                steps.release(stored.owner, [stored.id])

    def role(self) -> RoleState:
        """As ZooKeeper has it."""
        return self.site.coordination.role().state

    def coverage(self) -> dict[StreamId, Ranges]:
        """Of the table."""
        return dict(self.site.ledger.landing.coverage(self.handle.table(TABLE).uuid))


class Pair:
    """East, ACTIVE at first, and west; ``acked`` counts the rows that were acked, each in a frame of its own."""

    def __init__(self, folder: Path, stack: ExitStack, tables: tuple[str, ...] = (TABLE,)) -> None:
        self.acked = 0
        self.members = self.east, self.west = Member(folder, "east"), Member(folder, "west")
        by_address = {member.address: member for member in self.members}

        def read_public(address: str, tls: object = None) -> tuple[Quorum, Public]:
            member = by_address[address]
            if member.is_away:
                raise PeerUnavailableError(f"{member.name} does not answer", "")
            return Quorum.parse(address), member.site.coordination.public()

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(contacts, "read_public", read_public)
        west = self.west.site
        change_role(west.ledger, west.coordination, lambda _: RoleState(Role.STANDBY, 1))
        for member in self.members:
            stack.callback(member.site.close)
            member.receive(stack)
            member.site.ledger.successions.keep_address(member.site.cluster, member.address)
            stack.callback(member.close)
        for name in tables:
            self.east.handle.create_table(name, SCHEMA, ["id"])
        peering = self.east.handle.peering
        peering.define("west", self.west.address)
        for name in tables:
            peering.enable(name, (), "west", from_now=True, count_rows=lambda _: 0)
        self.east.ship_to(self.west)
        self.west.ship_to(self.east)

    def other(self, member: Member) -> Member:
        """The other one."""
        return self.west if member is self.east else self.east

    def write(self) -> list[str]:
        """Try to write a row at each; the names of those that acked."""
        took = []
        for member in self.members:
            try:
                member.handle.upsert(TABLE, [{"id": self.acked, "text": member.name}])
            except ReadOnlyClusterError:
                continue
            self.acked += 1
            took.append(member.name)
        return took

    def await_same(self, of: Member) -> None:
        """Wait until every acked row is at both, once."""

        def same() -> bool:
            found = [member.coverage() for member in self.members]
            return found[0] == found[1] and sum(ranges.total for ranges in found[0].values()) == self.acked

        wait_until(same, what=f"{self.acked} rows at both: {[m.coverage() for m in self.members]}")


@contextmanager
def role_pair(folder: Path, tables: tuple[str, ...] = (TABLE,)) -> Iterator[Pair]:
    """The pair, until the context ends."""
    with ExitStack() as stack:
        yield Pair(folder, stack, tables)
    assert not [each for each in threading.enumerate() if each.name.startswith("commit-leases")]


def add_tables(pair: Pair, count: int) -> None:
    """More tables that go from east to west, with open routes, by the ledgers alone."""
    east, west = pair.east.site, pair.west.site
    specs = [typed_table(f"ops.t{number}", SCHEMA, ["id"], uuids=iter(uuid4, None)) for number in range(count)]
    versions = [version for spec in specs for version in spec.versions.values()]
    for site in (east, west):
        with SqlStore(site.config.ledger_url).write() as connection:  # all at once, as no command does
            rows = [{"uuid": str(spec.uuid), "name": spec.name, "spec": spec.to_json()} for spec in specs]
            connection.execute(schema.tables.insert(), rows)
            of_version = [
                {"hash": each.hash, "table_uuid": str(each.table), "table_group": each.group, "body": each.body}
                for each in versions
            ]
            connection.execute(schema.schemas.insert(), of_version)
    east.ledger.rules.enable_all("west", {spec.uuid: ["default"] for spec in specs}, east.term)
    generations = {(rule.table, rule.group): rule.generation for rule in east.ledger.rules.all()}
    west.ledger.landing.declare_routes(
        [InboundRoute(east.cluster, table, group, number) for (table, group), number in generations.items()]
    )
