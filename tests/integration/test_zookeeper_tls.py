"""TLS to ZooKeeper by configuration: every place that connects uses it, and nobody else gets in."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.client.cluster import Cluster
from peer.client.connect import connect, find_config
from peer.client.contacts import read_public
from replication import config as configuration
from replication.config import Config
from replication.coordination.embedded import EmbeddedZookeeper
from replication.coordination.paths import MemberKind
from replication.coordination.tls import ZookeeperTls
from replication.coordination.zookeeper import connect_public
from replication.core.shipping.chunk import Assignment
from replication.errors import ConfigError, CoordinationError, PeerUnavailableError
from replication.ledger.base import Peer
from replication.ledger.sql.ledger import open_ledger
from shell.processes.roles import make_ledger, run_role
from tests.certificates import Authority
from tests.sites import table
from tests.waiting import wait_until


class Processes:
    """Roles of clusters as threads, all stopped at the end, ZooKeeper last."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def run(self, role: str, config: Config) -> None:
        stop, ready, failed = threading.Event(), threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                run_role(role, config, stop, ready.set)
            except BaseException as error:
                failed.append(error)
                ready.set()

        thread = threading.Thread(target=work, name=f"{role} {config.cluster.name}")
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(stop.set)
        assert ready.wait(60) and not failed, failed


@pytest.fixture
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def made(folder: Path, name: str, files: dict[str, str]) -> Config:
    """A cluster with a ledger and a configuration file that says TLS."""
    home = folder / name
    (home / "run").mkdir(parents=True)
    text = configuration.default_toml(name, ".", zookeeper={"port": free_port(), **files})
    (home / "walship.toml").write_text(text)
    config = configuration.load(home / "walship.toml", environ={})
    make_ledger(config)
    return config


def address(config: Config) -> str:
    return f"{config.zookeeper_servers}{config.zookeeper_root}"


def in_time(condition: Callable[[], object]) -> None:
    def holds() -> object:
        try:
            return condition()
        except CoordinationError:
            return None

    wait_until(holds, timeout_s=30)


def test_roles_handles_and_masters_of_other_clusters_speak_tls_and_nobody_else_gets_in(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    east, west = (made(tmp_path, name, ours.section(name)) for name in ("east", "west"))
    for config in (west, east):
        processes.run("zookeeper", config)
        processes.run("worker", config)
    processes.run("receiver", west)
    processes.run("master", west)

    foreign = theirs.tls("east")
    mixed = ours.tls("mixed")
    for refused in (None, foreign, ZookeeperTls(mixed.ca, foreign.certificate, foreign.key)):
        with pytest.raises(CoordinationError, match="did not answer"):
            connect_public(east.zookeeper_servers, east.zookeeper_root, tls=refused, timeout_s=1.0)

    with Cluster(east, open_ledger(east.ledger_url)) as cluster:
        assert [member.name for member in cluster.coordination.members(MemberKind.WORKERS)] == ["h0"]
        _, shown = read_public(address(west), ZookeeperTls.of(east.zookeeper))
        in_time(lambda: cluster.contacts.reach("west", address(west)).public.receivers)
        peer, granted = cluster.peering.define("west", address(west))
        assert peer.cluster == shown.cluster and granted, "by the same user"
        spec = table()
        cluster.ledger.tables.create(spec)
        cluster.peering.enable("ops.flights", [], "west", count_rows=lambda _: 0)
        processes.run("master", east)

        def tails() -> list[str]:
            read = cluster.coordination.assignments().get("h0")
            return [] if read is None else [tail.peer for tail in Assignment.decode(read.content).tails]

        in_time(lambda: tails() == ["west"])

    for key, file in ours.section("person").items():
        monkeypatch.setenv(f"WALSHIP_ZOOKEEPER_{key.upper()}", file)
    with connect(address(east)) as found:
        assert found.config.zookeeper.port == east.zookeeper.port and found.coordination.role()
    (east.data_dir / "walship.toml").unlink()
    told = find_config(address(east))
    assert told.zookeeper.secured and told.zookeeper_servers == east.zookeeper_servers
    for key in ("CA", "CERT", "KEY"):
        monkeypatch.delenv(f"WALSHIP_ZOOKEEPER_{key}")
    with pytest.raises(PeerUnavailableError, match="did not answer"):
        connect(address(east))
    with connect(address(east), east.zookeeper) as found:
        assert found.config.zookeeper.secured


def test_a_plain_cluster_does_not_get_at_a_secured_peer(tmp_path: Path, processes: Processes) -> None:
    west = made(tmp_path, "west", Authority(tmp_path / "ours").section("west"))
    east = made(tmp_path, "east", {})
    processes.run("zookeeper", west)
    processes.run("zookeeper", east)
    with Cluster(east, open_ledger(east.ledger_url)) as cluster:
        cluster.ledger.rules.define(Peer("west", address(west), cluster.id), 0)
        began = time.monotonic()
        with pytest.raises(PeerUnavailableError, match="did not answer.*TLS"):
            cluster.contacts.reach("west", address(west))
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_an_embedded_server_whose_certificate_does_not_name_its_address_says_so_at_once(
    tmp_path: Path, address: str
) -> None:
    tls = Authority(tmp_path / "ours").tls("east", "10.0.0.11")
    began = time.monotonic()
    with pytest.raises(ConfigError, match=f"cannot be used on {address}: IP address mismatch") as refused:
        EmbeddedZookeeper(tmp_path / "zookeeper", free_port(), host=address, tls=tls).start(timeout_s=60)
    assert time.monotonic() - began < 30 and "[zookeeper] cert, ca or listen" in refused.value.hint
