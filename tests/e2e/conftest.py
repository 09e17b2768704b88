"""Two whole clusters as processes, east sending to west, for all end-to-end tests of a test process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import psutil
import pytest

from peer.client.cluster import Cluster
from peer.client.connect import connect
from peer.status.role_processes import ProcessState
from replication import config as configuration
from replication.config import Config
from shell.processes.launched import Launched, await_ready
from tests.e2e.commands import COMMANDS
from tests.waiting import wait_until

PLUGINS = Path(__file__).parent / "plugins"
ROLES = ("zookeeper", "master", "worker", "receiver", "replay")
START_TIMEOUT_S = 400.0
RANGE_BYTES = 2 << 20  # so that files of a test are cut as large ones are
_STARTED: list[Site] = []
_WRONG = re.compile(r'"level": "(warning|error)"')


def await_fold(cluster: Cluster, table: str) -> None:
    """Wait until all that a table shows by now is folded; the replay process folds every few seconds."""
    ledger, uuid = cluster.ledger, cluster.table(table).uuid
    now = time.time_ns() // 1000
    try:
        wait_until(
            lambda: ledger.replay.folds().get(uuid, 0) >= now,
            timeout_s=400,
            what=f"the fold of {table} at {cluster.name}",
        )
    except AssertionError as error:
        times, told = ledger.time.replicated(uuid), ledger.replay.last_report()
        error.add_note(f"now {now}, folded {ledger.replay.folds().get(uuid)}, replicated {times}, replay says {told}")
        error.add_note(threads_of(cluster.config, "replay"))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """A failed test says where the logs of the clusters are that run, and what is wrong by them."""
    report: Any = yield
    if report.failed:
        running = [site for site in _STARTED if site.process is not None and site.process.poll() is None]
        lines = [line for site in running for line in (f"{site.name}: {site.config.log_dir}", *told(site.config))]
        report.sections.append(("Logs of clusters, and their last errors", "\n".join(lines)))
    return report


def told(config: Config) -> list[str]:
    """The last warnings and errors in each log of a cluster."""
    logs = [log.read_text(errors="replace").splitlines() for log in sorted(config.log_dir.glob("*.log"))]
    return [line for lines in logs for line in [each for each in lines if _WRONG.search(each)][-3:]]


def threads_of(config: Config, role: str) -> str:
    """Where the threads of a role's process are."""
    state, out = ProcessState.read(config.run_dir, role), config.log_dir / f"{role}.out"
    if state is None:
        return f"{role} never ran"
    size = out.stat().st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(state.pid, signal.SIGUSR1)
    threading.Event().wait(1)
    return out.read_text()[size:]


def processes_below(top: int) -> dict[int, str]:
    """The command lines of the processes started by a process, at any depth, by their ids."""
    found: dict[int, str] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(top).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # zombies, too: they have no command line
                found[each.pid] = command_line(each)
    return found


def command_line(process: psutil.Process) -> str:
    """Its command line; "" for a zombie."""
    try:
        return " ".join(process.cmdline())
    except psutil.ZombieProcess:
        return ""


def _can_write(config: Config) -> bool:
    if config.shares_ledger:
        return True
    with contextlib.closing(sqlite3.connect(config.data_dir / "ledger.db", timeout=1.0)) as ledger:
        try:
            ledger.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        ledger.rollback()
    return True


def _stop(pid: int) -> None:
    """Stop a process and wait until all its threads are: on busy cores one may go on for a while."""
    os.kill(pid, signal.SIGSTOP)
    states = f"/proc/{pid}/task/*/stat"  # none elsewhere than on Linux
    wait_until(
        lambda: all(" T " in Path(each).read_text() for each in glob(states)), what=f"{pid} to stop", despite=OSError
    )


class Site(Launched):
    """One cluster, run by ``walship up`` in a process of its own."""

    def start(self, *arguments: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shell.processes.launched.spawn", COMMANDS.spawn)
            super().start(*arguments)

    def ready(self, role: str, other_than: int = 0) -> bool:
        state = self.state(role)
        return state is not None and state.state == "ready" and state.pid != other_than

    def kill(self, role: str) -> int:
        """SIGKILL a role; its process id."""
        state = self.state(role)
        assert state is not None, f"{self.name} has no {role}"
        os.kill(state.pid, signal.SIGKILL)
        return state.pid

    def kill_all(self) -> None:
        """SIGKILL ``walship up`` and everything below it."""
        assert self.process is not None
        for pid in (*processes_below(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):  # it ended with the one above it
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def below(self, role: str, word: str) -> list[int]:
        """The processes started by a role, at any depth, whose command line has a word."""
        state = self.state(role)
        assert state is not None, f"{self.name} has no {role}"
        return [pid for pid, line in processes_below(state.pid).items() if word in line]

    def kill_below(self, role: str, word: str) -> int:
        """SIGKILL the processes started by a role, at any depth, whose command line has a word; how many."""
        found = self.below(role, word)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    @contextmanager
    def frozen(self, role: str) -> Iterator[None]:
        """A role that neither works nor ends, nor is started again."""
        state = self.state(role)
        assert state is not None, f"{self.name} has no {role}"
        _stop(state.pid)
        while not _can_write(self.config):  # it was stopped in a transaction
            os.kill(state.pid, signal.SIGCONT)
            time.sleep(0.05)
            _stop(state.pid)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it may have been killed meanwhile
                os.kill(state.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End ``walship up`` and everything it started. Idempotent."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(400)
        super().stop()

    def await_roles(self, *roles: str) -> None:
        """Wait until these roles, or all, are ready in the ``up`` that runs now."""
        wait_until(lambda: all(map(self.is_up, roles or self.roles)), timeout_s=START_TIMEOUT_S)

    def connect(self) -> Cluster:
        return connect(self.file)

    def shell(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """Run ``walship ARGUMENTS`` for this cluster; standard output, or standard error when it was to fail."""
        done = self._run(arguments, (code,), stdin)
        return done.stderr if code else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.shell(*arguments, "--json"))

    def plan(self, *arguments: str, codes: Collection[int] = (0,)) -> Any:
        """The plan that ``walship ARGUMENTS --plan --json`` prints; it exits with one of the codes."""
        return json.loads(self._run((*arguments, "--plan", "--json"), codes).stdout)

    def _run(
        self, arguments: Sequence[str], codes: Collection[int], stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = COMMANDS.run(["--cluster", str(self.file), *arguments], stdin, 900)
        assert done.returncode in codes, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done


def start(folder: Path, name: str, *, arguments: Sequence[str] = (), **sections: dict[str, Any]) -> Site:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    file = folder / "walship.toml"
    replay = {
        "interval_s": 0.5,  # who waits for rows does not wait for it; else loads make files enough for compactions
        "fold_interval_s": 5.0,
        "maintenance_interval_s": 300.0,  # each time Spark looks at every table
        "driver_memory": "768m",
        "driver_bytes_max": 8 << 20,
        **sections.pop("replay", {}),
    }
    file.write_text(configuration.default_toml(name, ".", zookeeper={"port": port}, replay=replay, **sections))
    return launched(name, file, ROLES, *arguments)


def second_host(site: Site, folder: Path) -> Site:
    """A worker and a receiver of the same cluster on a host of their own, with the same ledger and ZooKeeper."""
    folder.mkdir()
    file, of = folder / "walship.toml", site.config
    file.write_text(
        configuration.default_toml(
            site.name,
            ".",
            cluster={"host": "h1"},
            zookeeper={"embedded": False, "servers": of.zookeeper_servers, "root": of.zookeeper_root},
            ledger={"url": of.ledger_url},
        )
    )
    return launched(site.name, file, ("worker", "receiver"), "--roles", "worker,receiver")


def launched(name: str, file: Path, roles: tuple[str, ...], *arguments: str) -> Site:
    """A configured cluster whose ``walship up`` has begun."""
    site = Site(name, file, configuration.load(file), roles)
    _STARTED.append(site)
    site.start(*arguments)
    return site


@contextmanager
def configured(sites: Sequence[Site], role: str, line: str) -> Iterator[None]:
    """A role of each site starts again with another line in its configuration file; the next time with its own."""
    texts = [(site, site.file.read_text()) for site in sites]
    for site, text in texts:
        (old,) = (each for each in text.splitlines() if each.startswith(f"{line.split()[0]} "))
        site.file.write_text(text.replace(old, line))
    try:
        for site, old in [(site, site.kill(role)) for site in sites]:
            wait_until(lambda s=site, o=old: s.ready(role, other_than=o), timeout_s=400, what=f"{site.name}'s {role}")
        yield
    finally:
        for site, text in texts:
            site.file.write_text(text)


@contextmanager
def plugged_in(clock: Path | None = None) -> Iterator[None]:
    """Processes that are started meanwhile find the hooks of ``plugins``, and have the clock that a file sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PLUGINS), prepend=os.pathsep)
        if clock is not None:
            patch.setenv("TEST_CLOCK", str(clock))
        yield


@pytest.fixture(scope="package", autouse=True)
def commands() -> Iterator[None]:
    """Their server ends with the tests."""
    yield
    COMMANDS.close()


@pytest.fixture(scope="package")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """East and west, up; west is defined as east's peer."""
    folder = tmp_path_factory.mktemp("clusters")
    with plugged_in():
        made = (
            start(folder / "east", "east", replay={"driver_bytes_max": 64 << 20}, master={"range_bytes": RANGE_BYTES}),
            start(folder / "west", "west", receiver={"folders": {"inbox": {"path": "inbox", "clusters": ["east"]}}}),
        )
    try:
        await_ready(made, START_TIMEOUT_S)
        define(*made)
        yield made
    finally:
        for site in made:
            site.process.terminate()
        for site in made:
            site.stop()


@pytest.fixture(scope="module")
def north(sites: tuple[Site, Site], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A third cluster, with small WALs; it and west send to each other and to east, until a module's tests are over."""
    east, west = sites
    made = start(tmp_path_factory.mktemp("third") / "north", "north", writer={"wal_bytes_max": 1 << 20})
    routes = ((west, east), (west, made), (made, east), (made, west))
    try:
        await_ready([made], START_TIMEOUT_S)
        with ThreadPoolExecutor(len(routes)) as threads:
            list(threads.map(lambda route: define(*route), routes))
            yield made
            list(threads.map(lambda route: route[0].shell("deletecluster", route[1].name), routes))
    finally:
        made.stop()


def define(source: Site, peer: Site) -> None:
    source.shell("definecluster", peer.name, f"{peer.config.zookeeper_servers}{peer.config.zookeeper_root}")


@pytest.fixture(scope="module")
def masters(sites: tuple[Site, Site]) -> Iterator[tuple[Site, Site]]:
    """East and west, each the other's peer until a module's tests are over."""
    east, west = sites
    define(west, east)
    yield sites
    west.shell("deletecluster", east.name)


@pytest.fixture(scope="package")
def east(sites: tuple[Site, Site]) -> Site:
    return sites[0]


@pytest.fixture(scope="package")
def west(sites: tuple[Site, Site]) -> Site:
    return sites[1]
