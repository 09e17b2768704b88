"""The shell's lines as the design document spells them, against peers behind a quorum of three servers."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from peer.client.connect import connect
from replication import config as configuration
from replication.ledger.sql.ledger import open_ledger
from shell.processes.launched import await_ready
from tests.e2e.conftest import START_TIMEOUT_S, Site, launched
from tests.ensemble import ensemble

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs loopback addresses beside 127.0.0.1")


def site(folder: Path, name: str, servers: str, *roles: str) -> Site:
    """A cluster of some roles that keeps no tables."""
    folder.mkdir()
    keeper = {"embedded": False, "servers": servers}
    text = configuration.default_toml(name, ".", zookeeper=keeper, replay={"enabled": False})
    (folder / "walship.toml").write_text(text)
    return launched(name, folder / "walship.toml", roles, "--roles", ",".join(roles))


def lines(site: Site, *lines: str) -> str:
    return site.shell("shell", stdin="\n".join(lines))


def going(site: Site) -> set[str]:
    with closing(open_ledger(site.config.ledger_url)) as ledger:
        return {f"{rule.group} to {rule.peer} as {rule.remote_table}" for rule in ledger.rules.all()}


def test_the_lines_of_the_document_work_with_any_one_server_of_the_quorum_down(tmp_path: Path) -> None:  # 004-30
    with ExitStack() as stack:
        zk = stack.enter_context(ensemble(tmp_path / "zk"))
        with_ports = ",".join(f"{host}:2181" for host in zk.hosts.values())
        without = ",".join(zk.hosts.values())
        zk.stop(1)
        made = [
            site(tmp_path / "east", "east", with_ports, "master", "worker"),
            *(site(tmp_path / name, name, without, "receiver") for name in ("peer", "peer1")),
        ]
        east, _, peer1 = made
        for each in made:
            stack.callback(each.stop)
        await_ready(made, START_TIMEOUT_S)
        lines(east, f"definecluster peer {with_ports}", f"definecluster peer1 {without}")
        assert [peer["zookeepers"] for peer in east.json("listclusters")] == [
            f"{with_ports}/walship/{name}" for name in ("peer", "peer1")
        ]
        create = "createtable foo 'k long, a string, b string' -k k -g cf1=a -g cf2=b"
        lines(east, create, "enablereplication -t foo -lg cf1 peer1")
        assert going(east) == {"cf1 to peer1 as default.foo"}
        lines(east, "enablereplication -t foo -all-loc-groups peer1")
        assert going(east) == {"cf1 to peer1 as default.foo", "cf2 to peer1 as default.foo"}
        lines(east, "disablereplication -t foo -lg cf1 peer1")
        assert going(east) == {"cf2 to peer1 as default.foo"}
        zk.start(1)
        zk.await_serving()
        zk.stop(2)
        zk.await_serving()
        with east.connect() as here, connect(peer1.file, for_writing=False) as there:
            position = here.upsert("foo", [{"k": 1, "a": "x", "b": "y"}])
            here.wait(position, "peer1", "durable", timeout_s=400)
            covered = there.ledger.landing.coverage(here.table("foo").uuid)
            assert {stream.group for stream in covered} == {"cf2"}
        lines(east, "disablereplication -t foo -all-loc-groups peer1")
        assert going(east) == set()
        lines(east, f"deletecluster peer {with_ports}", f"deletecluster peer1 {without}")
        assert east.json("listclusters") == []
