"""One cluster of the simulation of successions: real leases, WALs, ledger and takeover, each moved on a step at a time.

Frames are real, so are the writer's order of sync, lease check and publication, the ledger's claims and cuts, and what
a receiver and a worker do with successions. Landing and replay are reduced to what counts here: which frames landed, in
which order, and which of them were applied.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from peer.grants.rights import CallerRights
from peer.receive.inbound_stream import InboundStream
from peer.receive.reception import Reception
from peer.receive.successions import SuccessionRequests
from replication.config import Config
from replication.coordination.base import RoleRead
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.grants import Caller
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.roles import RoleState
from replication.core.routes.carried import InboundRoute, carried_onward
from replication.core.routes.freshness import ClosedNotice
from replication.core.succession import Succession, Successions, contested
from replication.errors import (
    CoordinationError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplicationError,
    SuccessionError,
)
from replication.ledger.base import FileKind, Landed
from replication.link.base import PROTOCOL, AskedLease, Description, Hello, Reason, TakeOver
from replication.roles.takeover import Takeover
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.noted import note_closed
from tests.simulation.successions.frames import Stored, Versions, address, claim, newest
from tests.simulation.successions.granting import HOST, PEERS, config_of
from tests.simulation.successions.writer import Writer

if TYPE_CHECKING:
    from tests.simulation.successions.world import World

_LANDING: Any = SimpleNamespace(senders=SimpleNamespace(of=nullcontext))  # each sender has the disk for itself


@dataclass
class Inbound:
    """A stream that a receiver has open."""

    stream: InboundStream


@dataclass
class Outbound:
    """A stream that a worker has open, how many of its frames the peer had, and what it was told when that opened."""

    inbound: Inbound
    sent: int
    told: int


class Site:
    """See the module.

    Attributes:
        store: registered frames, in order.
        applied: frames in the tables, in the order in which they were applied.
        lost: lost writes that are kept, with their successions.
        refused: successions that were not believed, or contradict others.
    """

    def __init__(self, world: World, ledger: MemoryLedger) -> None:
        self.world = world
        self.ledger = ledger
        self.id = ledger.cluster
        self.name = self.id.name
        self.rate = 1 + world.chance.uniform(-0.005, 0.005)
        self.ahead_us = world.chance.randrange(-2_000_000, 2_000_000)
        self.zookeeper = MemoryEnsemble()
        self.store: list[Stored] = []
        self.have: set[tuple[StreamId, int]] = set()
        self.received: dict[ClusterId, int] = {}
        self.landing: dict[ClusterId, tuple[FileId, int]] = {}
        self.applied: list[Stored] = []
        self.replayed = 0
        self.lost: dict[tuple[StreamId, int], tuple[Stored, str]] = {}
        self.refused: list[str] = []
        self.streams: dict[str, Outbound] = {}
        self.inbounds: list[Inbound] = []
        self.daemon: Coordination | None = None
        self.writer = Writer(self)
        self.role = RoleState()
        self.sent: list[Site] = []

    @property
    def config(self) -> Config:
        """The configuration."""
        peer = PEERS[self.name]
        return config_of(self.name, self.world.lease, peer if peer in self.world.sites else "east")

    # Clocks, which drift.

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME of the cluster's hosts."""
        return int(self.world.now_us * self.rate) * 1000

    def wall_us(self) -> int:
        """The wall clock."""
        return self.world.now_us + self.ahead_us

    # Worker and receiver: one process here.

    def restart(self) -> None:
        """Worker and receiver start: what they knew is gone, and peers are asked who took over."""
        self.stop()
        self.streams.clear()
        self.inbounds.clear()
        self.sent = self.peers()
        with suppress(CoordinationError):
            session = self.session()
            self.daemon = session
            session.establish(self.id, "1", (), self.ledger.terms.role())
            self.takeover = Takeover(self.ledger, session)
            self.requests = SuccessionRequests(self.ledger, CallerRights(self.ledger), self.takeover)
            session.enrol(MemberKind.WORKERS, HOST, {})
            session.watch_role(self._on_role)
            self.role = session.role().state
            for peer in self.sent:
                self.ask(peer)

    def stop(self) -> None:
        """Worker and receiver end."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.close()

    def session(self) -> Coordination:
        """A new session with this cluster's ZooKeeper."""
        return Coordination(self.zookeeper.tree(), f"/{self.name}")

    def state(self) -> RoleState:
        """The role in force."""
        node = self.zookeeper._nodes.get(f"/{self.name}/role")
        return self.ledger.terms.role() if node is None else RoleState.decode(node.content)

    def up(self) -> bool:
        """Whether worker and receiver run; they start if they can."""
        if self.daemon is None:
            self.restart()
        return self.daemon is not None

    def keep(self) -> None:
        """The sessions' threads deliver what changed, and repair nodes."""
        self.sent = self.peers()
        sessions = [self.daemon, self.writer.process and self.writer.process.session]
        for session in sessions:
            if session is not None:
                session._keeper.step()  # type: ignore[attr-defined]

    def _on_role(self, read: RoleRead) -> None:
        self.role = read.state

    def ask(self, peer: Site) -> None:
        """What ``ask_who_took_over`` and a refused tail ask."""
        with suppress(ReplicationError):
            for succession in self.world.line(self, peer).successions(self.id, peer.id):
                self.learn(succession, peer.id)

    def learn(self, succession: Succession, source: ClusterId) -> None:
        """As a worker does."""
        try:
            self.takeover.learn(succession, source)
        except SuccessionError as error:
            self.refused.append(str(error))

    def take(self, stored: Stored) -> None:
        """A frame is registered."""
        if stored.key not in self.have:
            self.have.add(stored.key)
            self.store.append(stored)

    def peers(self) -> list[Site]:
        """Clusters that this one sends to."""
        sent = {rule.peer for rule in self.ledger.rules.all()}
        return [self.world.sites[name] for name in sorted(sent)]

    def known(self) -> int:
        """How many successions are known."""
        return len(self.ledger.successions.known().reported)

    def pending(self, peer: Site) -> int:
        """How many frames a peer has yet to get, of what is durable here."""
        self.writer.register()
        held = self.received_by(peer)
        return sum(peer.id not in stored.provenance for stored in self.store[held:])

    def received_by(self, peer: Site) -> int:
        """How many of this cluster's frames are durable and registered at a peer."""
        return peer.received.get(self.id, 0)

    def ship(self) -> None:
        """A few frames to a peer."""
        if self.sent and self.up():
            self.ship_to(self.world.chance.choice(self.sent), self.world.chance.randint(1, 4))

    def ship_to(self, peer: Site, frames: int) -> None:
        """So many frames; the stream is opened again after anything went wrong."""
        self.writer.register()
        try:
            stream = self.streams.get(peer.name)
            if stream is None:
                stream = self.streams[peer.name] = self._open(peer)
            self._send(stream, peer, frames)
        except PeerRefusedError as error:
            self.streams.pop(peer.name, None)
            if error.reason == Reason.STALE_EPOCH.value:
                self.ask(peer)
        except ReplicationError:
            self.streams.pop(peer.name, None)

    def _open(self, peer: Site) -> Outbound:
        hello = Hello(
            self.id,
            peer.id,
            self.role.epoch,
            "1",
            zookeepers=address(self.name),
            successions=tuple(each.encode() for each in self.ledger.successions.known().reported),
        )
        routes = [rule for rule in self.ledger.rules.all() if rule.peer == peer.name]
        carried = carried_onward(self.ledger.landing.routes(), self.id, peer.id, 0)
        with self.world.across(self, peer):
            inbound = peer.opened(hello, routes, carried)
        self.world.did("stream")
        return Outbound(inbound, self.received_by(peer), len(hello.successions))

    def opened(self, hello: Hello, routes: Any, carried: Any) -> Inbound:
        """The receiver's side of opening a stream."""
        Reception._check_hello(SimpleNamespace(_ledger=self.ledger), hello)  # type: ignore[arg-type]
        known = {
            (route.table, route.group): route for route in self.ledger.landing.routes() if route.source == hello.source
        }
        for rule in routes:
            route = known.get((rule.table, rule.group))
            if route is None or {c.origin for c in route.carried} != {c.origin for c in carried}:
                self.ledger.landing.declare_routes(
                    [InboundRoute(hello.source, rule.table, rule.group, rule.generation, {}, carried=carried)]
                )
        self.requests.learn(hello)
        scope: Any = SimpleNamespace(caller=SimpleNamespace(cluster=hello.source, bounded_name=hello.source.name))
        inbound = Inbound(InboundStream(None, _LANDING, None, scope, hello.role_epoch, 0))  # type: ignore[arg-type]
        self.inbounds.append(inbound)
        return inbound

    def refresh(self) -> None:
        """The receiver ends streams of ended epochs."""
        ended = self.ledger.successions.known()
        for inbound in self.inbounds:
            inbound.stream.end_if_older(ended)

    def _send(self, stream: Outbound, peer: Site, most: int) -> None:
        upto = min(len(self.store), stream.sent + most)
        frames = self.store[stream.sent : upto]
        with self.world.across(self, peer):
            if stream.inbound not in peer.inbounds:
                raise PeerUnavailableError("the receiver was restarted")
            if stream.inbound.stream._ended:
                raise PeerRefusedError("ended", "", reason=Reason.STALE_EPOCH.value)
            peer.land(self, stream.sent, upto, [each for each in frames if peer.id not in each.provenance])
        stream.sent = upto

    def land(self, source: Site, begin: int, end: int, frames: list[Stored]) -> None:
        """Frames ``[begin, end)`` of a sender's order are durable, and registered in one transaction."""
        here = self.received.get(source.id, 0)
        assert begin <= here, "a hole"
        frames = [each for each in frames if each.key not in self.have]
        if frames:
            file, at = self.landing.get(source.id) or self._landing_file(source.id)
            claims = []
            for each in frames:
                size = each.view.end - each.view.begin
                claims.append(claim(each.view, at, at + size))
                at += size
            begin_at = claims[0].begin
            landed = Landed(file, begin_at, at, FileId(source.id, HOST, 0), begin_at, at, tuple(claims))
            self.ledger.registration.register([landed])
            self.landing[source.id] = file, at
            for each in frames:
                self.take(Stored(each.view, (*each.provenance, self.id)))
        self.received[source.id] = max(here, end)
        if self.world.chance.random() < 0.2 and (notice := source.notice()) is not None:
            note_closed(self.ledger, source.id, notice)

    def notice(self) -> ClosedNotice | None:
        """What the cluster announces as acked."""
        if not self.writer.acked:
            return None
        last: dict[StreamId, int] = {}
        for each in self.writer.acked:
            last[each.stream] = max(each.sequence, last.get(each.stream, 0))
        return ClosedNotice(max(each.commit for each in self.writer.acked), tuple(sorted(last.items())))

    def _landing_file(self, source: ClusterId) -> tuple[FileId, int]:
        row = self.ledger.files.allocate(HOST, FileKind.LANDING, "landing", "boot", source=FileId(source, HOST, 0))
        return row.file, FILE_HEADER_BYTES

    # Replay.

    def replay(self) -> None:
        """Frames that landed are applied, or kept as lost writes; the order of the two reads is the selector's."""
        self.writer.register()
        waiting = self.store[self.replayed :]
        known = self.ledger.successions.known()
        self.apply(waiting, known)
        self.replayed += len(waiting)

    def apply(self, waiting: list[Stored], known: Successions) -> None:
        """One round."""
        for stored in waiting:
            ended = known.leaving_out(stored.view.header)
            if ended is None:
                self.applied.append(stored)
            else:
                self.lost[stored.key] = stored, str(ended)

    def rows(self) -> Versions:
        """The newest applied version of each key."""
        return newest(self.applied, self.world.keys)

    def lost_keys(self) -> Versions:
        """The newest lost version of each key."""
        return newest([stored for stored, _ in self.lost.values()], self.world.keys)

    def alarms(self) -> list[str]:
        """What ``status`` would say about two clusters that take writes."""
        parts = self.ledger.successions
        return list(map(str, contested(self.id, self.state(), (*parts.known().all, *parts.contradictions()))))

    # The receiver's calls.

    def admit(self, call: str, caller: Caller) -> None:
        """See ``ReceiverService``."""
        CallerRights(self.ledger).admit(call, caller)

    def describe(self, caller: Caller) -> Description:
        """See ``ReceiverService``."""
        peers = {peer.name: peer.zookeepers for peer in self.ledger.rules.peers()}
        role = max(self.role, self.ledger.terms.role(), key=lambda state: state.epoch)
        return Description(self.id, "1", role.role.value, role.epoch, protocol=PROTOCOL, peers=peers)

    def take_over(self, asked: TakeOver, caller: Caller) -> None:
        """See ``ReceiverService``."""
        self.requests.take_over(asked, caller)
        if asked.succession is not None:
            self.world.note_promoted(self, asked.succession)

    def successions(
        self, source: ClusterId, expected: ClusterId, caller: Caller, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        """See ``ReceiverService``."""
        return self.requests.of(source, lease)

    def close(self) -> None:
        """End every session."""
        for session in (self.daemon, self.writer.process and self.writer.process.session):
            if session is not None:
                session.close()
