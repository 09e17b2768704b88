"""The world of a simulated schedule of role changes: clusters, links, time, and what may go wrong at any step.

One seeded generator decides everything, so a schedule can be repeated. A person's command runs as it does in the
shell; at each call that it makes of a ledger, a ZooKeeper or a peer, others may move, the call may fail before or after
it took effect, and the command may be killed.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.frame import Codec
from replication.core.grants import Caller
from replication.core.ids import ClusterId
from replication.core.roles import Role
from replication.core.rows.batch import EncodedBatch
from replication.core.rows.convert import upserts_from_arrow
from replication.core.succession import Succession
from replication.errors import CoordinationError, PeerRefusedError, PeerUnavailableError, ReplicationError
from replication.ledger.base import Peer
from replication.ledger.sql.ledger import SqlLedger
from replication.link.base import AskedLease, Description, Reason, TakeOver
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.fakes.link import MemoryLink
from tests.simulation.successions import remembered
from tests.simulation.successions.frames import Acked, address
from tests.simulation.successions.granting import WITNESS
from tests.simulation.successions.site import Site

SCHEMA = pa.schema([("id", pa.int64())])
KEYS = 4
#: Which clusters send to which from the start. The first one is ACTIVE, the others are STANDBY.
GRAPHS = {
    "two": (("east", "west"),),
    "chain": (("east", "west"), ("west", "north")),
    "three": (("east", "west"), ("east", "north"), ("west", "north"), ("north", "west")),
}
#: Commands that run at once.
_COMMANDS_MAX = 2
LEASES = "own", "peer", "witness"
#: How fast the clocks of commands' hosts are.
_FAST = 1.004
_STRANGER = ClusterId("stranger", UUID(int=999))
_T = TypeVar("_T")


class Killed(BaseException):
    """The process of a command died."""


class World:
    """See the module.

    Attributes:
        cuts: pairs of clusters between which nothing passes, in that direction.
        lease: who confirms leases, in all clusters alike.
        fenced: the role epochs under which a cluster was said to ack nothing any more, when another one took over.
        trouble: how much goes wrong, from 0 to 1.
        events: what happened, to see that a schedule was worth something.
    """

    def __init__(self, graph: str, seed: int, patched: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(f"{graph} {seed}")
        self.lease = self.chance.choice(LEASES)
        self.witness = MemoryEnsemble()
        self.now_us = 1_700_000_000_000_000
        patched.setattr("replication.wall_clock.time", self)
        self.trouble = 0.0
        self.cuts: set[tuple[str, str]] = set()
        self.events = Counter[str]()
        self.commanding = 0
        self.turning = False
        self.command: Callable[[], None] | None = None
        self.stopped: dict[str, int] = {}
        self.fenced: dict[str, int] = {}
        self.keys = _keys()
        self.checked: set[tuple[ClusterId, int]] = set()
        self.problems: list[str] = []
        self.sites: dict[str, Site] = {}
        for ledger in _ledgers(graph):
            ledger.fault = ledger.fault_after = self.point
            site = self.sites[ledger.cluster.name] = Site(self, ledger)
            site.zookeeper.fault = site.zookeeper.fault_after = lambda call, path: self.point(f"{call} {path}")
        for site in self.sites.values():
            site.restart()

    # Time, as the modules under test ask for it.

    def monotonic(self) -> float:
        """A clock of the command's host, a little fast."""
        return self.now_us * _FAST / 1e6

    def sleep(self, seconds: float) -> None:
        """Others move while a command waits."""
        self.now_us += int(seconds / _FAST * 1e6)
        self.turn(None, "sleep")

    def time_ns(self) -> int:
        """The wall clock."""
        return self.now_us * 1000

    def pass_time(self) -> None:
        """A while passes."""
        self.now_us += self.chance.choice((100, 1000, 50_000, 500_000, 3_000_000))

    # Chance.

    def happens(self, odds: float) -> bool:
        """A fault, while there is trouble."""
        return self.trouble > 0 and self.chance.random() < odds * self.trouble

    def did(self, what: str) -> None:
        """Count what happened."""
        self.events[what] += 1

    def batch(self, key: int | None) -> EncodedBatch:
        """A row with one of a few keys."""
        return _batches()[self.chance.randrange(KEYS) if key is None else key]

    # What goes wrong.

    def point(self, call: str) -> None:
        """A call of a command: others move first, or it fails, or the command dies."""
        if not self.commanding or self.turning or not self.trouble:
            return
        drawn = self.chance.random()
        if drawn < 0.03:
            self.turn(None, call)
        elif drawn < 0.034:
            self.did("call failed")
            raise CoordinationError(f"{call}: no answer")
        elif drawn < 0.039:
            self.did("command killed")
            raise Killed

    def turn(self, without: Site | None, why: str) -> None:
        """Others move, while a command or a sync waits; nobody does once everything settles."""
        if self.turning or self.command is None:
            return
        with self.undisturbed():
            for _ in range(self.chance.randint(1, 3)):
                self.move(without)
            may = self.commanding < _COMMANDS_MAX and (self.commanding > 0 or why == "sync")
            if may and self.chance.random() < 0.1:
                self.turning = False
                self.command()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Calls in the block neither fail nor let others move."""
        before, self.turning = self.turning, True
        try:
            yield
        finally:
            self.turning = before

    def move(self, without: Site | None = None) -> None:
        """One process does one thing."""
        self.pass_time()
        site = self.chance.choice(list(self.sites.values()))
        moves: list[Callable[[], None]] = [site.ship] * 6 + [site.replay] * 2 + [site.keep] * 2 + [site.refresh]
        if site is not without:
            moves += [site.writer.write] * 4 + [site.writer.renew] * 3
        if self.happens(0.06):
            moves = [lambda: self.disturb(site, without)]
        self.do(self.chance.choice(moves))

    def do(self, move: Callable[[], Any]) -> None:
        """What a process does; it logs errors, or ends and starts again."""
        try:
            move()
        except ReplicationError as error:
            self.did(type(error).__name__)

    def disturb(self, site: Site, without: Site | None = None) -> None:
        """Something breaks, or is whole again."""
        others = [other.name for other in self.sites.values() if other is not site] + [WITNESS]
        other = self.chance.choice(others)
        link = self.chance.choice(((site.name, other), (other, site.name)))
        happenings: list[Callable[[], Any]] = [
            lambda: self.cuts.add(link),
            lambda: self.cuts.update((link, link[::-1])),
            self.cuts.clear,
            self.cuts.clear,
            site.restart,
            lambda: self.cut_zookeeper(site),
            site.zookeeper.heal,
            site.zookeeper.heal,
            lambda: self.lose_zookeeper(site),
            lambda: self.forge(site),
        ]
        if site is not without:
            happenings += [site.writer.kill]
        self.chance.choice(happenings)()

    def cut_zookeeper(self, site: Site) -> None:
        """A process loses its ZooKeeper; its session ends there after a while."""
        process = site.writer.process
        session = process.session if process is not None and self.chance.random() < 0.7 else site.daemon
        if session is not None and (number := session._tree.session()):
            site.zookeeper.cut(number)
            if self.chance.random() < 0.3:
                self.now_us += 11_000_000
                site.zookeeper.expire(number)
        self.did("zookeeper cut off")

    def lose_zookeeper(self, site: Site) -> None:
        """The servers lose their data, and every session."""
        for tree in list(site.zookeeper._trees):
            site.zookeeper.expire(tree.number)
        for path in [path for path in site.zookeeper._nodes if path]:
            del site.zookeeper._nodes[path]
        site.restart()
        self.did("zookeeper lost")

    def forge(self, site: Site) -> None:
        """A cluster that nobody here knows says that it took over."""
        origin = self.chance.choice(list(self.sites.values())).id
        site.learn(Succession(origin, _STRANGER, 90, self.now_us, is_planned=False), _STRANGER)

    # Links.

    @contextmanager
    def across(self, source: Site, peer: Site) -> Iterator[None]:
        """A call: it does not arrive when the way there is cut, and has no answer when the way back is."""
        if (source.name, peer.name) in self.cuts or not peer.up():
            raise PeerUnavailableError(f"{peer.name} cannot be reached")
        try:
            yield
        except Killed:
            self.did("receiver killed")
            peer.stop()
            raise PeerUnavailableError(f"{peer.name} died meanwhile") from None
        except (PeerRefusedError, PeerUnavailableError):
            raise
        except CoordinationError as error:
            raise PeerRefusedError(error.what, error.hint, reason=Reason.NOT_READY.value) from error
        if (peer.name, source.name) in self.cuts:
            raise PeerUnavailableError(f"{peer.name} did not answer")

    def line(self, source: Site, peer: Site) -> Line:
        """A connection, for calls."""
        return Line(self, source, peer)

    # What is checked as it happens.

    def note_ack(self, site: Site, acked: Acked) -> None:
        """A writer acked."""
        self.did("acked")
        if acked.epoch < self.stopped.get(site.name, 0):
            self.problems.append(f"{site.name} acked {acked} after writers were stopped for {self.stopped[site.name]}")
        if acked.epoch < self.fenced.get(site.name, 0):
            self.problems.append(f"{site.name} acked {acked} although {self.fenced[site.name]} had taken over")

    def note_promoted(self, site: Site, succession: Succession) -> None:
        """A planned succession happened: everything acked before is here."""
        if (succession.origin, succession.epoch) in self.checked:
            return
        self.checked.add((succession.origin, succession.epoch))
        self.did("switched over")
        origin = self.sites[succession.origin.name]
        missing = [each for each in origin.writer.acked if (each.stream, each.sequence) not in site.have]
        if missing:
            self.problems.append(f"{site.name} took writes without {len(missing)} that were acked: {succession}")

    def active(self) -> list[Site]:
        """Clusters that take writes."""
        return [site for site in self.sites.values() if site.state().role is Role.ACTIVE]

    def close(self) -> None:
        """End everything."""
        for site in self.sites.values():
            site.close()


class Line:
    """A ``PeerLink`` for the calls of role changes; see ``World.across``."""

    def __init__(self, world: World, source: Site, peer: Site) -> None:
        self._world = world
        self._source = source
        self._peer = peer
        self._link = MemoryLink(peer, caller=Caller(source.id, is_same_user=True))  # type: ignore[arg-type]

    def __enter__(self) -> Line:
        """The connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""

    def describe(self) -> Description:
        """See ``PeerLink``."""
        return self._call(self._link.describe)

    def take_over(self, asked: TakeOver) -> None:
        """See ``PeerLink``."""
        self._call(lambda: self._link.take_over(asked))

    def successions(
        self, source: ClusterId, expected: ClusterId, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        """See ``PeerLink``."""
        return self._call(lambda: self._link.successions(source, expected, lease))

    def _call(self, act: Callable[[], _T]) -> _T:
        self._world.point("call")
        with self._world.across(self._source, self._peer):
            answer = act()
        self._world.point("answer")
        return answer


# Ledgers are made once, and set back to how they were at first for each schedule.


@cache
def _table() -> Any:
    numbers = count(1)
    return typed_table("ops.t", SCHEMA, ["id"], uuids=(UUID(int=number) for number in numbers))


@cache
def _batches() -> tuple[EncodedBatch, ...]:
    rows = [pa.table({"id": [key]}, schema=SCHEMA) for key in range(KEYS)]
    return tuple(EncodedBatch.encode(upserts_from_arrow(row, _table())[0], Codec.NONE) for row in rows)


@cache
def _keys() -> dict[bytes, int]:
    """The key of a row, by its payload's hash."""
    return {batch.sha256: key for key, batch in enumerate(_batches())}


@cache
def _made(graph: str) -> tuple[tuple[MemoryLedger, sqlite3.Connection], ...]:
    names = list(dict.fromkeys(name for route in GRAPHS[graph] for name in route))
    ids = {name: ClusterId(name, UUID(int=1000 + number)) for number, name in enumerate(names)}
    made = []
    for name in names:
        ledger = MemoryLedger(ids[name])
        ledger.tables.create(_table())
        ledger.successions.keep_address(ids[name], address(name))
        for source, peer in GRAPHS[graph]:
            if source == name:
                ledger.rules.define(Peer(peer, address(peer), ids[peer]), 0)
                ledger.rules.enable(peer, _table().uuid, ["default"], "ops.t", 0)
        if name != names[0]:
            ledger.terms.keep_role(ledger.terms.role().becomes(Role.STANDBY))
        first = sqlite3.connect(":memory:", check_same_thread=False)
        _raw(ledger).backup(first)
        made.append((ledger, first))
    return tuple(made)


def _ledgers(graph: str) -> Iterator[MemoryLedger]:
    for ledger, first in _made(graph):
        first.backup(_raw(ledger))
        ledger._real = SqlLedger(ledger._real._store, ledger.cluster)  # type: ignore[attr-defined]
        remembered.forget(ledger)
        yield ledger


def _raw(ledger: MemoryLedger) -> sqlite3.Connection:
    connection = ledger._real._store._writer.raw_connection()  # type: ignore[attr-defined]
    raw: sqlite3.Connection = connection.driver_connection
    connection.close()
    return raw
