"""A standalone Spark cluster on this machine, from PySpark's jars: a master and workers of one core, as processes.

For the demo and for tests. Everything listens on loopback, and takes only applications that know the cluster's secret.
The secret is in ``conf/spark-defaults.conf``, for this user alone; programs find it by ``SPARK_CONF_DIR``. The master
keeps what it knows in ``recovery/``, so that workers and applications go on when it is killed and started again.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replication.coordination.embedded import command_line, dying_with_parent, find_jars
from replication.errors import CoordinationError
from replication.tables.spark.jars import allow_any_path, java_home_check

_HOST = "127.0.0.1"
_HEAP_MB = 128
_DEADLINE_S = 60.0
_END_S = 10.0
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{ISO8601} %p %c{1} %m%n%ex
"""


@dataclass(slots=True)
class Daemon:
    """One process of the cluster."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None


@dataclass
class SparkCluster:
    """The cluster. ``start`` returns when every worker is registered, ``stop`` when every process has ended.

    The processes do not outlive their owner. On Linux the kernel kills them with the thread that started them, unless
    ``left_running``. Executors end with their application, or with their worker.

    Args:
        folder: for configuration, logs, the master's memory and executors' files.
        memory_mb: what a worker has for its executors.
        properties: further Spark properties of the daemons, and defaults of the applications.
        left_running: the processes may outlive this one.
    """

    folder: Path
    workers: int = 2
    memory_mb: int = 512
    properties: Mapping[str, str] = field(default_factory=dict)
    left_running: bool = False

    def __post_init__(self) -> None:
        """Choose the ports; nothing is started yet."""
        self.folder = self.folder.resolve()
        port, page = map(str, free_ports(2))
        self.url = f"spark://{_HOST}:{port}"
        self.page = f"http://{_HOST}:{page}"
        place = ("--host", _HOST)
        self.master = Daemon("master", self._command("master.Master", *place, "--port", port, "--webui-port", page))
        self.worker = [
            Daemon(
                f"worker{number}",
                self._command(
                    "worker.Worker",
                    *(*place, "--webui-port", "0", "--cores", "1", "--memory", f"{self.memory_mb}m"),
                    *("--work-dir", str(self.folder / f"worker{number}"), self.url),
                ),
            )
            for number in range(self.workers)
        ]

    def __enter__(self) -> SparkCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def daemons(self) -> list[Daemon]:
        """The master and the workers."""
        return [self.master, *self.worker]

    @property
    def environment(self) -> dict[str, str]:
        """What an application's process needs in its environment."""
        return {"SPARK_CONF_DIR": str(self._conf)}

    def start(self) -> None:
        """Start the master, then the workers; wait until they are registered.

        Raises:
            ConfigError: Java or PySpark is missing.
            CoordinationError: a process ended, or was not ready in time; has the last lines of its log.
        """
        self._configure()
        try:
            self.start_master()
            for each in self.worker:
                self.launch(each)
            self._await(*self.worker, condition=lambda: len(self.alive_workers()) == self.workers)
        except BaseException:
            self.stop()
            raise

    def start_master(self) -> None:
        """Start the master, also again after it was killed; wait until it answers."""
        self.launch(self.master)
        self._await(self.master, condition=lambda: self.state().get("status") == "ALIVE")

    def launch(self, daemon: Daemon) -> None:
        """Start a process of the cluster, whose earlier one has ended."""
        assert not daemon.runs, f"{daemon.name} runs"
        command = daemon.command if self.left_running else dying_with_parent(daemon.command)
        environment = {**os.environ, **self.environment, "SPARK_HOME": str(find_jars().parent)}
        environment |= {"JAVA_HOME": java_home_check(), "SPARK_LOCAL_IP": _HOST}
        environment |= {"SPARK_LOCAL_DIRS": str(self.folder / "local")}
        environment |= {"SPARK_SCALA_VERSION": "2.13"}  # else a worker looks for Spark's build
        allow_any_path(environment)
        with self.log(daemon).open("ab") as log:
            daemon.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.folder / f"{daemon.name}.pid").write_text(str(daemon.pid))

    def state(self) -> dict[str, Any]:
        """What the master shows on its page; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):  # also an answer, as 404 while it starts
                error.close()
            return {}

    def alive_workers(self) -> list[str]:
        """The ids of the workers that the master hears from."""
        return [worker["id"] for worker in self.state().get("workers", ()) if worker["state"] == "ALIVE"]

    def log(self, daemon: Daemon) -> Path:
        """The log of a process."""
        return self.folder / f"{daemon.name}.log"

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop the workers, which end their executors, then the master. Idempotent."""
        deadline = time.monotonic() + timeout_s
        for group in (self.worker, [self.master]):
            started = [daemon.process for daemon in group if daemon.process is not None]
            for process in started:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # else a frozen one would not notice
            for process in started:
                try:
                    process.wait(max(1.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    @property
    def _conf(self) -> Path:
        return self.folder / "conf"

    def _command(self, main: str, *arguments: str) -> list[str]:
        return [
            str(Path(java_home_check()) / "bin" / "java"),
            f"-Xmx{_HEAP_MB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            os.pathsep.join((str(self._conf), f"{find_jars()}/*")),
            f"org.apache.spark.deploy.{main}",
            *arguments,
        ]

    def _configure(self) -> None:
        for folder in (self._conf, self.folder / "recovery", self.folder / "local"):
            folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self.folder / "recovery"),
            "spark.ui.killEnabled": "false",
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            **self.properties,
        }
        file = self._conf / "spark-defaults.conf"
        file.touch(mode=0o600)
        text = "".join(f"{key} {value}\n" for key, value in settings.items()).replace("\\", r"\\")  # a property file
        file.write_text(text, encoding="utf-8")
        (self._conf / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")

    def _await(self, *daemons: Daemon, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            ended = next((daemon for daemon in daemons if not daemon.runs), None)
            if ended is not None or time.monotonic() > deadline:
                late = ended or daemons[0]
                what = "ended" if ended is not None else f"was not ready within {_DEADLINE_S:.0f} s"
                raise CoordinationError(
                    f"Spark's {late.name} {what}: {self._last_lines(late)}", f"See {self.log(late)}"
                )
            time.sleep(0.05)

    def _last_lines(self, daemon: Daemon) -> str:
        lines = self.log(daemon).read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-3:]) or "its log is empty"


def end_leftovers(folder: Path) -> None:
    """End the processes of a cluster in ``folder`` whose owner has left them running, or was killed."""
    left = [int(file.read_text()) for file in sorted(folder.glob("*.pid"), reverse=True)]  # workers, then the master
    sent = signal.SIGTERM
    deadline = time.monotonic() + _END_S
    while left := [pid for pid in left if str(folder.resolve() / "conf") in command_line(pid)]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        time.sleep(0.1)
        sent = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM


def free_ports(count: int) -> list[int]:
    """Ports of loopback that no program uses."""
    probes = [socket.create_server((_HOST, 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
