"""Two clusters of two hosts each, as people run them: hosts are network namespaces, everything off loopback is TLS.

PostgreSQL and each cluster's ZooKeeper are on a host of their own. Writers on both hosts of east go on all the while.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from peer.status.role_processes import ProcessState
from replication import config as configuration
from replication.tables.spark.jars import POSTGRESQL, ensure_jars
from tests import netns
from tests import postgresql as pg
from tests.certificates import Authority
from tests.e2e.commands import ROOT
from tests.waiting import wait_until

TABLE = "ops.rows"
CLUSTERS = (("east", 2181), ("west", 2182))  # and the ports of their ZooKeepers
START_S = 300.0
MOMENT_S = 180.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.linux,
    pytest.mark.skipif(not pg.BINARIES, reason=pg.MISSING),
]


@dataclass
class Host:
    """One host: its ``walship up``, and commands on it."""

    slot: str
    file: Path
    inside: tuple[str, ...]
    roles: str = ""
    process: subprocess.Popen[bytes] | None = None
    lifeline: int = -1
    loads: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def up(self) -> None:
        """Start it; it ends with this process."""
        self._release()
        readable, self.lifeline = os.pipe()
        command = [*self.inside, sys.executable, "-m", "shell.main", "up", "--config", str(self.file)]
        command += ["--lifeline", str(readable)] + (["--roles", self.roles] if self.roles else [])
        with self.file.with_name("up.out").open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=ROOT, start_new_session=True, pass_fds=(readable,)
            )
        os.close(readable)

    def _release(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def is_up(self, *roles: str) -> bool:
        assert self.process is not None and self.process.poll() is None, self.said()
        run = configuration.load(self.file, environ={}).run_dir
        states = [ProcessState.read(run, role) for role in roles]
        return all(state is not None and state.state == "ready" and _lives(state.pid) for state in states)

    def kill(self, role: str) -> None:
        state = ProcessState.read(configuration.load(self.file, environ={}).run_dir, role)
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)

    def die(self) -> None:
        """As when its power goes: every process of it is killed, the supervisor first."""
        assert self.process is not None
        run = configuration.load(self.file, environ={}).run_dir
        pids = [json.loads(file.read_text())["pid"] for file in run.glob("*.json") if file.stem in ROLES]
        self.process.kill()
        self.process.wait()
        for pid in pids:
            if _lives(pid):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        for load in self.loads:
            load.kill()
            load.wait()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(400)
            except subprocess.TimeoutExpired:
                self.die()
        self._release()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on this host; its output and status."""
        command = [*self.inside, sys.executable, "-m", "shell.main", "--cluster", str(self.file), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)

    def shell(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{self.slot}: {arguments}: {done.stdout}\n{done.stderr}\n{self.said()}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.shell(*arguments, "--json"))

    def rows(self) -> int:
        """How many rows its cluster shows, read on this host; each key once. 0 before there is a table."""
        done = self.run("sql", f"select count(*) as n, count(distinct id) as keys from {TABLE}", "--json")
        if done.returncode:
            assert "no Iceberg table" in done.stderr or "does not exist" in done.stderr, done.stderr
            return 0
        found = json.loads(done.stdout)
        assert found["n"] == found["keys"]
        return int(found["n"])

    def load(self, first: int) -> Path:
        """Start a writer here; the folder where it says how far it is."""
        folder = self.file.with_name(f"load-{first}")
        folder.mkdir()
        script = str(Path(__file__).with_name("host_load.py"))
        command = [*self.inside, sys.executable, script, str(self.file), TABLE, str(first), str(folder)]
        with (folder / "out").open("wb") as out:
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.loads.append(subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=env))
        return folder

    def runs(self, word: str) -> bool:
        """Whether a process here has a word in its command line."""
        found = subprocess.run(["ip", "netns", "pids", self.inside[-1]], capture_output=True, text=True, check=True)
        lines = (Path(f"/proc/{pid}/cmdline") for pid in found.stdout.split())
        return any(word.encode() in line.read_bytes() for line in lines if line.exists())

    def said(self) -> str:
        return self.file.with_name("up.out").read_text(errors="replace")[-4000:]

    def hosts(self) -> dict[str, Any]:
        """The hosts of its cluster, as ``status`` tells them."""
        return {host["slot"]: host for host in self.json("status")["members"]["hosts"]}


EVERY = ("master", "worker", "receiver", "replay")
ROLES = (*EVERY, "zookeeper")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Lab:
    switch: netns.Switch
    e1: Host
    e2: Host
    w1: Host
    w2: Host


@dataclass(frozen=True)
class Site:
    """What the hosts have in common: a folder, an authority, a network, and the address of PostgreSQL and ZooKeeper."""

    folder: Path
    authority: Authority
    switch: netns.Switch
    services: str

    def host(self, slot: str, cluster: str, port: int) -> Host:
        """A host, configured; its cluster's ZooKeeper at ``port`` if the slot ends with zk."""
        is_keeper = slot.endswith("zk")
        address = self.services if is_keeper else self.switch.plug(slot)
        issued = self.authority.tls(slot, address, cluster)
        pem = {"ca": issued.ca, "cert": issued.certificate, "key": issued.key}
        where = {"listen": address} if is_keeper else {"embedded": False, "servers": f"{self.services}:{port}"}
        folder = self.folder / slot
        folder.mkdir()
        text = configuration.default_toml(
            cluster,
            ".",
            cluster={"host": slot},
            zookeeper={"port": port, "session_timeout_s": 6.0, **where, **pem},
            ledger={"url": f"postgresql://walship@{self.services}/{cluster}?sslmode=verify-ca&sslrootcert={issued.ca}"},
            receiver={"listen": f"{address}:7070"},
            tls=pem,
            catalog={"warehouse": f"file://{self.folder}/shared/{cluster}"},
            replay={
                "fold_interval_s": 10.0,
                "driver_memory": "512m",
                "spark_idle_s": 0.0,
                "driver_bytes_max": 1,  # executors decode everything, and fetch what lies on the other host
                "enabled": not is_keeper,
            },
            worker={"retry_max_s": 3.0},
        )
        (folder / "walship.toml").write_text(text)
        inside = self.switch.inside("svc" if is_keeper else slot)
        return Host(slot, folder / "walship.toml", inside, "zookeeper" if is_keeper else "")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    if why := netns.why_not():
        pytest.skip(why)
    ensure_jars(also=POSTGRESQL)  # the hosts reach nothing to fetch them from
    os.chmod(tmp_path, 0o755)
    authority = Authority(tmp_path / "authority")
    with ExitStack() as stack:
        switch = stack.enter_context(netns.Switch())
        services = switch.plug("svc")
        files = authority.tls("svc", services)
        inside = switch.inside("svc")
        server = stack.enter_context(pg.server(listen=services, inside=inside, tls=(files.certificate, files.key)))
        with psycopg.connect(f"host={server.home} user=walship dbname=postgres", autocommit=True) as connection:
            for name, _ in CLUSTERS:
                connection.execute(f"CREATE DATABASE {name}")
        site = Site(tmp_path, authority, switch, services)
        for cluster, port in CLUSTERS:
            keeper = site.host(f"{cluster}-zk", cluster, port)
            stack.callback(keeper.stop)
            keeper.up()
            wait_until(
                lambda host=keeper: host.is_up("zookeeper"), timeout_s=START_S, what=f"{keeper.slot}'s ZooKeeper"
            )
        made = [site.host(f"{cluster[0]}{n}", cluster, port) for cluster, port in CLUSTERS for n in (1, 2)]
        for host in made:
            stack.callback(host.stop)
            host.up()
        for host in made:
            wait_until(lambda host=host: host.is_up(*EVERY), timeout_s=START_S, what=f"{host.slot}'s roles")
        yield Lab(switch, *made)


def test_two_hosts_a_side_through_crashes_and_partitions(lab: Lab) -> None:
    e1, e2, w1, w2 = lab.e1, lab.e2, lab.w1, lab.w2
    _route(lab)
    load = Load([e1.load(0), e2.load(10_000_000)])
    load.arrives(w2, "rows of both writers, read on w2")
    for one, other in ((e1, e2), (w1, w2)):
        leads = one if _first(one, "replay") == one.slot else other
        wait_until(
            lambda host=leads: host.runs("pyspark.worker"), timeout_s=MOMENT_S, what="executors to decode on both hosts"
        )
    _kill_the_active_master(lab)
    load.arrives(w1, "rows under the other master")
    replays, other = (w1, w2) if _first(w1, "replay") == "w1" else (w2, w1)
    _cut_between(lab, replays, other)
    load.arrives(w1, "rows that had waited")
    _go_dark(lab, replays, other)
    load.arrives(replays, "rows after it came back")
    # the replaying host loses its power: the other one replays, and has all of it once the first is back
    replays.die()
    wait_until(lambda: _first(other, "replay") == other.slot, timeout_s=MOMENT_S, what="the other host to replay")
    replays.up()
    wait_until(lambda: replays.is_up(*EVERY), timeout_s=START_S, what="the first host again")
    load.arrives(other, "rows, replayed on the other host")
    _ends_equal(lab, load)


@dataclass(frozen=True)
class Load:
    """The writers that go on all the while."""

    folders: list[Path]

    def written(self) -> int:
        """The rows that they have had acked by now."""
        return sum(int((folder / "rows").read_text()) for folder in self.folders)

    def arrives(self, host: Host, what: str) -> None:
        """The cluster of ``host`` shows, on that host, all that was acked by now."""
        wait_until(
            lambda: all((folder / "rows").exists() for folder in self.folders),
            timeout_s=MOMENT_S,
            what="both writers to write",
        )
        wanted = self.written()
        wait_until(lambda: host.rows() >= wanted, timeout_s=MOMENT_S, what=what)


def _route(lab: Lab) -> None:
    """From east to west, by an invitation, since nobody here is one user on one machine."""
    west = configuration.load(lab.w1.file, environ={})
    servers = f"{west.zookeeper_servers}{west.zookeeper_root}"
    invitation = lab.w1.json("invite", "east")["invitation"]
    lab.e1.shell("definecluster", "west", servers, "--invitation", invitation)
    lab.e1.shell("createtable", TABLE, "id long, host string", "--key", "id")
    lab.e1.shell("enablereplication", "-t", TABLE, "west")
    told = lab.e2.hosts()
    assert told.keys() == {"e1", "e2"}
    for host in told.values():
        assert {role.split()[0] for role in host["roles"]} == set(EVERY)


def _kill_the_active_master(lab: Lab) -> None:
    """The other host's takes over."""
    leader = _first(lab.e1, "master")
    (lab.e1 if leader == "e1" else lab.e2).kill("master")
    wait_until(lambda: _first(lab.e1, "master") != leader, timeout_s=MOMENT_S, what="another master")


def _cut_between(lab: Lab, replays: Host, other: Host) -> None:
    """They cannot reach each other, but all else: what lands where replay is not waits, and the rest goes on."""
    lab.switch.part("w1", "w2")
    wait_until(
        lambda: _held(replays.hosts()[other.slot]),
        timeout_s=MOMENT_S,
        what="status to say what waits on the other host",
    )
    assert f"of host {other.slot} and cannot read them" in replays.run("status").stderr
    lab.switch.join()
    wait_until(
        lambda: not _held(replays.hosts()[other.slot]), timeout_s=MOMENT_S, what="the other host to be had again"
    )


def _go_dark(lab: Lab, replays: Host, other: Host) -> None:
    """The host that does not replay, with what it has landed; senders take the other one until it is back."""
    lab.switch.pull(other.slot)
    wait_until(lambda: not replays.hosts()[other.slot]["roles"], timeout_s=MOMENT_S, what="its sessions to end")
    before = replays.rows()
    wait_until(lambda: replays.rows() > before, timeout_s=MOMENT_S, what="rows by the receiver that is left")
    lab.switch.plug_in(other.slot)
    wait_until(lambda: len(replays.hosts()[other.slot]["roles"]) == 4, timeout_s=MOMENT_S, what="it to come back")


def _ends_equal(lab: Lab, load: Load) -> None:
    """The writers stop; every host shows all rows, and ``verify`` finds no difference."""
    for folder in load.folders:
        (folder / "stop").touch()
    for host, folder in zip((lab.e1, lab.e2), load.folders, strict=True):
        assert host.loads[0].wait(300) == 0, (folder / "out").read_text()
    total = load.written()
    assert [host.rows() for host in (lab.e1, lab.e2, lab.w1, lab.w2)] == [total] * 4
    (verdict,) = lab.e1.json("verify", "west", TABLE)
    assert verdict["differing"] == 0 and verdict["left"]["content"] == verdict["right"]["content"], verdict
    assert verdict["left"]["rows"] == verdict["right"]["rows"] == total
    assert not any(host.json("status")["quarantined"] for host in (lab.e1, lab.w1))


def _first(host: Host, election: str) -> str:
    """The host that has an election."""
    return next((slot for slot, each in host.hosts().items() if f"{election} (leads)" in each["roles"]), "")


def _held(host: dict[str, Any]) -> bool:
    return bool(host["away"] and host["unapplied_bytes"])
