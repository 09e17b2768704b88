"""The demo's clusters as processes: makes their configurations, clears earlier runs, kills a role."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from peer.client.cluster import Cluster
from peer.polling import polls
from replication import config as configuration
from replication.errors import ConfigError, LockedFileError, ReplicationError
from shell.demo.data import DemoTable
from shell.processes.launched import Launched
from shell.processes.preflight import running_pid
from shell.processes.spark_cluster import SparkCluster, end_leftovers, free_ports
from shell.processes.up import chosen_roles

MARK = ".walship-demo"
SPARK = "spark-cluster"
#: So that the load goes through Spark's jobs; Spark starts at once, since the load would be over before.
_JOBS = {"driver_bytes_max": 64 << 10, "spark_idle_s": 0.0}
#: Queries read what is not folded yet, too. A fold would start Spark for a cluster that is about to end.
_FOLD_S = 60.0
#: What the JVM's second compiler costs, a Spark of seconds does not earn back.
_SHORT_LIVED = {"SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")}
_STOP_TIMEOUT_S = 40.0


class DemoSite(Launched):
    """One cluster of the demo."""

    __slots__ = ()

    def gets(self, tables: Iterable[DemoTable], source: Cluster) -> None:
        """Have another cluster send it tables, from now on."""
        source.peering.define(self.name, f"{self.config.zookeeper_servers}{self.config.zookeeper_root}")
        for table in tables:
            source.peering.enable(table.name, [], self.name, count_rows=lambda _: 0)

    def kill(self, role: str) -> int:
        """SIGKILL a role's process; returns its id."""
        state = self.state(role)
        if state is None:
            raise ReplicationError(f"{self.name} has no {role} to kill", f"See {self.output}")
        os.kill(state.pid, signal.SIGKILL)
        return state.pid

    def freeze(self, role: str) -> int:
        """SIGSTOP a role's process, until ``kill_all``; returns its id.

        Not while it has the ledger locked: then every process of the cluster would hang, and the application with them.
        """
        state = self.state(role)
        assert state is not None, f"{self.name} has no {role}"
        for _ in polls(_STOP_TIMEOUT_S, 0.05):
            os.kill(state.pid, signal.SIGSTOP)
            if self._is_ledger_free():
                return state.pid
            os.kill(state.pid, signal.SIGCONT)
        raise LockedFileError(f"{self.name}'s ledger was locked for {_STOP_TIMEOUT_S:.0f} s", f"See {self.output}")

    def _is_ledger_free(self) -> bool:
        with contextlib.closing(sqlite3.connect(self.config.data_dir / "ledger.db", timeout=1.0)) as ledger:
            try:
                ledger.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            return True

    def kill_all(self) -> int:
        """SIGKILL ``walship up`` and everything that it started; returns how many processes that were."""
        import psutil  # deferred: only the failover demo needs it

        assert self.process is not None, f"{self.name} was started"
        top = psutil.Process(self.process.pid)
        killed = [*top.children(recursive=True), top]
        for each in reversed(killed):  # first what would start the others again
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.stop()
        self.process.wait()
        return len(killed)


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Make a folder and lock it against other demos; LockedFileError when one runs there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = (folder / MARK).open("ab")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}", "Give another folder: --dir DIR") from None
    with mark:
        _lock(mark, folder)
        yield


def _lock(mark: BinaryIO, folder: Path) -> None:
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LockedFileError(
            f"Another demo is running in {folder}", "Wait until it ends, or give another folder: --dir DIR"
        ) from None


def make_sites(
    folder: Path,
    names: Sequence[str],
    spark: SparkCluster | None = None,
    standby: Sequence[str] = (),
    jobs: Sequence[str] = (),
) -> list[DemoSite]:
    """Write the clusters' configurations; with ``spark`` they all replay on it. Those in ``standby`` begin as STANDBY.

    Those in ``jobs`` replay all but the smallest rounds by Spark jobs; the others start Spark by need only.
    """
    ports, sites = free_ports(2 * len(names)), list[DemoSite]()
    for n, name in enumerate(names):
        cluster = {"standby": True} if name in standby else {}
        replay = {**(_JOBS if name in jobs else {}), **({} if spark is None else _on_spark(name, spark))}
        environment = _SHORT_LIVED if spark is None else _SHORT_LIVED | spark.environment
        sites.append(_site(folder / name, ports[2 * n : 2 * n + 2], cluster, replay, environment))
    return sites


def clear_earlier(folder: Path) -> str:
    """Make room for a new run; says what was found. Only a folder that a demo made is removed.

    Raises:
        ConfigError: the folder holds something else.
        LockedFileError: another demo runs in it, or an earlier one's clusters do and do not stop.
    """
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return ""
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}", "Give another folder: --dir DIR") from None
    if not (folder / MARK).exists():
        raise ConfigError(f"{folder} is there and was not made by the demo", "Give another folder: --dir DIR")
    with (folder / MARK).open("rb") as mark:
        _lock(mark, folder)
    stopped = []
    for name in sorted(each.name for each in folder.iterdir() if each.is_dir()):
        run_dir = folder / name / "run"
        pid = running_pid(run_dir) if run_dir.is_dir() else None
        if pid is not None:
            stopped.append(name)
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGTERM)
    left = list(stopped)
    for _ in polls(_STOP_TIMEOUT_S, 0.1):
        left = [name for name in left if running_pid(folder / name / "run") is not None]
        if not left:
            break
    else:
        raise LockedFileError(f"Cluster {left[0]} of an earlier demo still runs in {folder}", "walship down")
    end_leftovers(folder / SPARK)
    shutil.rmtree(folder)
    return f"stopped {' and '.join(stopped)} of" if stopped else "removed what was left of"


def _site(
    directory: Path,
    ports: Sequence[int],
    cluster: Mapping[str, object],
    replay: Mapping[str, object],
    environment: Mapping[str, str],
) -> DemoSite:
    zookeeper_port, receiver_port = ports
    name = directory.name
    directory.mkdir()
    file = directory / "walship.toml"
    text = configuration.default_toml(
        name,
        ".",
        zookeeper={"port": zookeeper_port},
        receiver={"listen": f"127.0.0.1:{receiver_port}"},
        cluster=cluster,
        replay={"driver_memory": "768m", "fold_interval_s": _FOLD_S, **replay},
    )
    file.write_text(text, encoding="utf-8")
    config = configuration.load(file)
    return DemoSite(name, file, config, chosen_roles(config, ""), environment)


def _on_spark(name: str, spark: SparkCluster) -> dict[str, object]:
    """Settings of replay on a Spark cluster that another cluster replays on, too: an application takes one core."""
    properties = {"spark.app.name": f"walship replay of {name}", "spark.cores.max": "1"}
    return {"spark_master": spark.url, "spark": properties}
