"""Each role, assembled from its parts, for a process or a thread.

A role opens what it needs, reports that it is ready, runs until it is stopped, and closes what it opened.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from uuid import uuid4

from replication import __version__
from replication.config import Config
from replication.coordination.access import keep_access
from replication.coordination.embedded import EmbeddedZookeeper
from replication.coordination.host import host_record
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.session import Coordination
from replication.coordination.tls import ZookeeperTls
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.roles import first_role
from replication.errors import ConfigError, CoordinationError
from replication.ledger.base import Ledger
from replication.log import redact
from shell.cli.interrupting import run_beside
from shell.processes.preflight import check_ledger_age, follow_files

Ready = Callable[[], None]
Role = Callable[[Config, threading.Event, Ready], None]
_CONNECT_TIMEOUT_S = 30.0
_CHECK_S = 0.5


def run_role(role: str, config: Config, stop: threading.Event, ready: Ready) -> None:
    """Run ``role`` until ``stop`` is set; ``ready`` is called once it does its work."""
    ROLES[role](config, stop, ready)


def make_ledger(config: Config) -> ClusterId:
    """Make the ledger, with a new incarnation of the cluster, if there is none; returns the cluster's id.

    Raises:
        ConfigError: the ledger belongs to another cluster, is older than this host's files, or cannot be reached.
    """
    from replication.ledger.sql.ledger import initialise, open_ledger  # deferred: ZooKeeper's role needs no SQLAlchemy

    try:
        ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
    except ConfigError:
        with contextlib.suppress(ConfigError):  # another host may have made it; its owner is checked below
            role = first_role(standby=config.cluster.standby)
            initialise(config.ledger_url, ClusterId(config.cluster.name, uuid4()), role)
        ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
    with closing(ledger):
        if ledger.cluster.name != config.cluster.name:
            raise ConfigError(
                f"the ledger at {redact(config.ledger_url)} belongs to cluster {ledger.cluster.name}, not"
                f" {config.cluster.name}",
                "Give each cluster its own data directory, or correct [cluster] name",
            )
        check_ledger_age(config, ledger)
        follow_files(config, ledger)
        return ledger.cluster


def _zookeeper(config: Config, stop: threading.Event, ready: Ready) -> None:
    section, tls = config.zookeeper, ZookeeperTls.of(config.zookeeper)
    with EmbeddedZookeeper(config.zookeeper_dir, section.port, host=section.listen, tls=tls) as server:
        ready()
        ended = threading.Event()

        def watch() -> None:
            server.wait()
            if not stop.is_set():
                ended.set()
                stop.set()

        thread = threading.Thread(target=watch, name="zookeeper's end", daemon=True)
        thread.start()
        stop.wait()
    thread.join()
    if ended.is_set():
        raise CoordinationError("the embedded ZooKeeper ended by itself", f"See {config.zookeeper_dir}/server.log")


def _master(config: Config, stop: threading.Event, ready: Ready) -> None:
    from replication.master.loop import run_master

    with _world(config) as (ledger, coordination):
        ready()
        run_master(config, ledger, coordination, stop)


def _worker(config: Config, stop: threading.Event, ready: Ready) -> None:
    from replication.coordination.zookeeper import read_public
    from replication.worker.loop import Worker

    public_of = partial(read_public, tls=ZookeeperTls.of(config.zookeeper))
    with (
        _world(config) as (ledger, coordination),
        _ready_when_member(MemberKind.WORKERS, config, coordination, stop, ready),
    ):
        Worker(config, ledger, coordination, public_of, stop).run()


def _receiver(config: Config, stop: threading.Event, ready: Ready) -> None:
    from peer.receive.receiver import Receiver

    with (
        _world(config) as (ledger, coordination),
        _ready_when_member(MemberKind.RECEIVERS, config, coordination, stop, ready),
    ):
        Receiver(config, ledger, coordination, stop).run()


def _replay(config: Config, stop: threading.Event, ready: Ready) -> None:
    from peer.replay.election import await_election
    from peer.replay.loop import run_replay
    from replication.tables.pandas_later import load_pandas_later

    load_pandas_later()
    if not config.replay_asks_receivers:
        with _ledger(config) as ledger:
            run_replay(config, ledger, stop, ready)
        return
    with _world(config) as (ledger, coordination):
        if await_election(coordination, config.cluster.host, stop, ready):
            run_replay(config, ledger, stop, ready, coordination)


def _derive(config: Config, stop: threading.Event, ready: Ready) -> None:
    from peer.client.cluster import Cluster
    from peer.client.granter import lease_terms
    from peer.derive.role import DeriveRole
    from replication.writer.wal.registration import LeaseTerms

    with _world(config) as (ledger, coordination):
        ready()
        cluster = Cluster(config, ledger)

        def wait(position: Position, seconds: float) -> None:
            cluster.wait(position, timeout_s=seconds)

        def lease() -> LeaseTerms:
            return lease_terms(config, ledger)

        DeriveRole(config, ledger, coordination, stop, cluster.reader.catalog, wait, lease).run()


def _timeline(config: Config, stop: threading.Event, ready: Ready) -> None:
    from peer.timeline.serving.configured import serving_timeline

    with serving_timeline(config) as server:
        ready()
        while not stop.wait(_CHECK_S):
            server.check()


def _monitor(config: Config, stop: threading.Event, ready: Ready) -> None:
    from peer.client.cluster import Cluster
    from shell.monitor.sampling import SampledStatus
    from shell.monitor.server import MonitorServer

    with (
        _ledger(config) as ledger,
        Cluster(config, ledger) as cluster,
        SampledStatus(cluster.status) as sampled,
        MonitorServer(sampled, config.monitor.port, "Correct [monitor] port").serving(),
    ):
        ready()
        stop.wait()


def _drill(config: Config, stop: threading.Event, ready: Ready) -> None:
    from shell.processes.drilling import run_drill, run_schedule

    with _ledger(config) as ledger:
        ready()
        run_schedule(config, ledger, stop, lambda schedule, end: run_drill(schedule, config, end))


ROLES: dict[str, Role] = {
    "zookeeper": _zookeeper,
    "master": _master,
    "worker": _worker,
    "receiver": _receiver,
    "replay": _replay,
    "derive": _derive,
    "timeline": _timeline,
    "monitor": _monitor,
    "drill": _drill,
}


def _ledger(config: Config) -> AbstractContextManager[Ledger]:
    from replication.ledger.sql.ledger import open_ledger

    return closing(open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s))


@contextmanager
def _world(config: Config) -> Iterator[tuple[Ledger, Coordination]]:
    """The ledger and a session with ZooKeeper, in which the cluster and this host are registered.

    The ledger keeps what must survive a loss of ZooKeeper's data: the role, and who replays.
    """
    from replication.coordination import zookeeper

    quorum = Quorum(config.zookeeper_servers, config.zookeeper_root)
    with (
        _ledger(config) as ledger,
        zookeeper.connect(
            quorum,
            tls=ZookeeperTls.of(config.zookeeper),
            session_timeout_s=config.zookeeper.session_timeout_s,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            access=keep_access(config.data_dir, quorum.root, config.cluster.name, ledger.terms.keep_credential),
        ) as coordination,
    ):
        coordination.establish(ledger.cluster, __version__, ledger.former, ledger.terms.role())
        ledger.terms.keep_role(coordination.role().state)
        ledger.successions.keep_address(ledger.cluster, str(quorum))
        coordination.put_host(host_record(config))
        ledger.replay.note_replayer(config.cluster.host, config.replay.enabled)
        yield ledger, coordination


def _ready_when_member(
    kind: MemberKind, config: Config, coordination: Coordination, stop: threading.Event, ready: Ready
) -> AbstractContextManager[None]:
    """Call ``ready`` once this process is the host's member of ``kind``, from a thread that ends with the context.

    ZooKeeper keeps the node of a killed process until its session expires.
    """

    def watch(done: threading.Event) -> None:
        while not done.wait(0.05) and not stop.is_set():
            try:
                if coordination.has_enrolled(kind, config.cluster.host):
                    ready()
                    return
            except CoordinationError:
                continue

    return run_beside(watch, "ready")
