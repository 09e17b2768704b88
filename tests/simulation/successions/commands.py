"""The commands of a person in the simulation of successions: the real ones, over handles of simulated clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from peer.failover import failover as failing
from peer.failover import switchover as switching
from peer.failover.failover import EVERYTHING, FailoverPlan
from peer.failover.loss import Loss
from peer.failover.lost_writes import discard_refusal
from peer.failover.role_change import RoleChange
from peer.status.members import await_writers
from replication.commit.leases import Leases
from replication.coordination.session import Coordination
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId
from replication.core.roles import Role
from replication.errors import ReplicationError, WaitTimeoutError
from replication.ledger.base import Ledger, Peer
from replication.roles.takeover import change_role
from tests.simulation.successions.granting import HOST, witness
from tests.simulation.successions.site import Site
from tests.simulation.successions.world import Killed, Line, World

_DRAIN_TURNS = 25


@dataclass
class Handle:
    """What a command has of a cluster in place of ``Cluster``."""

    site: Site
    coordination: Coordination

    @property
    def contacts(self) -> Handle:
        """Calls to other clusters."""
        return self

    def __getattr__(self, name: str) -> Any:
        """The ledger, the id and the name are the cluster's."""
        return getattr(self.site, name)

    @contextmanager
    def link(self, peer: Peer) -> Iterator[Line]:
        """See ``Contacts``."""
        yield self.site.world.line(self.site, self.site.world.sites[peer.name])

    def reach(self, name: str, zookeepers: str) -> SimpleNamespace:
        """See ``Contacts``."""
        return SimpleNamespace(described=self.site.world.line(self.site, self.site.world.sites[name]).describe())

    def drain(self, peer: str, timeout_s: float) -> None:
        """Others move until the peer has everything."""
        world = self.site.world
        for _ in range(_DRAIN_TURNS):
            if not self.site.pending(world.sites[peer]):
                return
            world.do(self.site.ship)
            world.turn(None, "drain")
        raise WaitTimeoutError(f"{peer} has not got everything", "")

    def tables(self) -> list[Any]:
        """See ``Cluster``."""
        return self.site.ledger.tables.all()

    def status(self) -> SimpleNamespace:
        """See ``Cluster``."""
        return SimpleNamespace(peers=[], members=SimpleNamespace(workers=(HOST,)))


class Commands:
    """Runs commands at random; ``told`` is what each failover said to lose, ``fenced`` whether writers stop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: dict[tuple[ClusterId, ClusterId, int], Loss] = {}
        self.fenced: dict[tuple[ClusterId, ClusterId, int], bool] = {}
        world.command = self.any

    def any(self) -> None:
        """A person runs a command at one of the clusters."""
        world = self.world
        site = world.chance.choice(list(world.sites.values()))
        active = world.active()
        commands: list[Callable[[], None]] = [lambda: self.again(site)] * 3 + [lambda: self.cancel(site)]
        if active:
            commands += [lambda: self.switchover(active[0])] * 5
            if site is not active[0] and any(route.source == active[0].id for route in site.ledger.landing.routes()):
                commands += [lambda: self.failover(site, active[0].name)] * 4
        self.run(world.chance.choice(commands))

    def run(self, command: Callable[[], Any]) -> bool:
        """Run one; whether it ended well."""
        self.world.commanding += 1
        try:
            command()
        except (ReplicationError, Killed) as error:
            self.world.did(f"command: {type(error).__name__}")
            return False
        finally:
            self.world.commanding -= 1
        return True

    @contextmanager
    def at(self, site: Site) -> Iterator[RoleChange]:
        """A command's context, with its own session."""
        with site.session() as session:
            yield RoleChange(Handle(site, session))  # type: ignore[arg-type]

    def switchover(self, site: Site) -> None:
        """``walship switchover``."""
        peers = site.peers()
        if peers:
            with self.at(site) as context:
                switching.switchover(context, self.world.chance.choice(peers).name)
            self.world.did("switchover")

    def failover(self, site: Site, origin: str) -> None:
        """``walship failover``."""
        with self.at(site) as context:
            force = self.world.chance.random() < 0.7
            plan = failing.plan_failover(context, origin, at=EVERYTHING, force=force)
            self._fail_over(context, plan)

    def _fail_over(self, context: RoleChange, plan: FailoverPlan) -> None:
        origin = self.world.sites[plan.origin].id
        ended = context.cluster.ledger.successions.known().of(origin)
        if ended is None or ended.epoch < plan.epoch:
            self.told[context.own, origin, plan.epoch] = plan.loss
            self.fenced[context.own, origin, plan.epoch] = "have stopped" in plan.fence
        done = failing.failover(context, plan)
        if self.fenced.get((context.own, origin, done.epoch)):
            self.world.fenced[origin.name] = max(done.epoch, self.world.fenced.get(origin.name, 0))
            self.world.did("fenced failover")
        self.world.did("failover")

    def cancel(self, site: Site) -> None:
        """``walship switchover --cancel``."""
        with self.at(site) as context:
            switching.cancel(context)
        self.world.did("cancelled")

    def again(self, site: Site) -> None:
        """Run what is unfinished again."""
        with self.at(site) as context:
            steps = context.unfinished_steps()
            if not steps:
                return
            last: Any = steps[-1]
            if isinstance(last, switching.PromotePeer):
                switching.switchover(context, last.peer)
            else:
                origin = ClusterId.parse(last.origin).name
                self._fail_over(context, failing.plan_failover(context, origin, at=EVERYTHING, force=True))
        self.world.did("finished")

    def unfinished(self, site: Site) -> bool:
        """Whether a role change of the cluster is unfinished."""
        return bool(site.ledger.steps.sequences(site.name, "role"))

    def abandon(self, site: Site) -> None:
        """``walship ops abandon``."""
        site.ledger.steps.remove(site.name, "role")

    def readonly(self, site: Site, role: Role) -> None:
        """``walship readonly on|off``."""
        with site.session() as session:
            change_role(site.ledger, session, lambda state: state.becomes(role))

    # Lost writes.

    def merge(self, site: Site) -> None:
        """``walship lostwrites merge``."""
        for stored, name in site.lost.values():
            succession = next(each for each in site.ledger.successions.known().all if str(each) == name)
            header = stored.view.header
            cut = {header.stream: Ranges.of((header.sequence, header.sequence + 1))}
            site.ledger.successions.record(replace(succession, cut=cut))
            site.applied.append(stored)
        site.lost.clear()

    def discard(self, site: Site) -> None:
        """``walship lostwrites discard``: an ACTIVE cluster writes its own rows again, a STANDBY may be refused."""
        known = site.ledger.successions.known()
        names = {name for _, name in site.lost.values()}
        lost = [each for each in known.all if str(each) in names]
        if site not in self.world.active() and any(discard_refusal(known, each) for each in lost):
            self.merge(site)
            return
        if site in self.world.active():
            older = {key for key, (order, _) in site.lost_keys().items() if site.rows().get(key, ((), None))[0] < order}
            for key in sorted(older):
                site.writer.renew()
                site.writer.write(key)
        site.lost.clear()


def patch(patched: pytest.MonkeyPatch, world: World) -> None:
    """Commands of this world wait and look at its clocks."""

    def stopped(ledger: Ledger, coordination: Coordination, epoch: int, lease_s: float) -> None:
        await_writers(ledger, coordination, epoch, lease_s)
        if coordination.role().state.epoch == epoch:
            world.stopped[coordination.paths.root.strip("/")] = epoch

    for module in ("failover", "switchover", "lease"):
        patched.setattr(f"peer.failover.{module}.time", world)
    patched.setattr("peer.failover.lease.witness_of", lambda config: witness(world.sites[config.cluster.name]))
    patched.setattr("peer.polling.time", world)
    patched.setattr(switching, "await_writers", stopped)
    patched.setattr(switching, "await_registered", lambda *_: None)
    patched.setattr(switching, "pending_bytes", lambda context, peer: context.cluster.site.pending(world.sites[peer]))
    end = Leases.__exit__

    def ended(leases: Leases, *of: Any) -> None:
        end(leases, *of)
        with world.undisturbed():  # others see that the process is gone, however it ended
            held = [each.id for each in leases.store.sequences() if each.owner == leases.owner]
            leases.store.release(leases.owner, held)

    patched.setattr(Leases, "__exit__", ended)
