"""Two whole clusters on this machine, east sending ``bench.t`` to west, each a ``walship up`` with a process per role.

For the benches. Everything is started as a user would start it, but for west's receiver when a bench wants to stop it:
then it is a process of its own, outside the supervision that would bring it back at once. All processes end with the
context, and supervised ones with this process when it is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import walship
from tests.bench.measure import SCHEMA
from tests.bench.peers.peer import free_port

TABLE = "bench.t"
START_S, STOP_S = 120.0, 60.0
ROOT = Path(__file__).resolve().parents[2]


class ClusterFailedError(Exception):
    """A cluster did not do what a bench asked of it in time; says what its processes last printed."""


@dataclass
class Site:
    """One cluster: its folder and the processes started for it."""

    name: str
    home: Path
    port: int
    _up: subprocess.Popen[bytes] | None = None
    _lifeline: int = -1
    _alone: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Its configuration."""
        return self.home / "walship.toml"

    @property
    def address(self) -> str:
        """As other clusters name it."""
        return f"127.0.0.1:{self.port}/walship/{self.name}"

    def make(self, settings: Mapping[str, Mapping[str, object]]) -> None:
        """``walship init``, and then the settings that a bench wants otherwise."""
        self.walship("init", str(self.home), "--name", self.name, "--port", str(self.port))
        self.set(settings)

    def set(self, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Change settings that still have their defaults."""
        text = self.file.read_text()
        for section, values in settings.items():
            head, found, tail = text.partition(f"\n[{section}]")
            assert found, f"no section {section}"
            for key, value in values.items():
                tail, count = re.subn(rf"(?m)^# {key} = \S+", f"{key} = {json.dumps(value)}", tail, count=1)
                assert count, f"no key {section}.{key}"
            text = head + found + tail
        self.file.write_text(text)

    def walship(self, *arguments: str) -> str:
        """Run one command to its end and return what it printed."""
        command = [sys.executable, "-c", "from shell.entry import main; main()", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ClusterFailedError(f"walship {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, roles: Sequence[str] = ()) -> None:
        """``walship up``, not waiting until it is ready."""
        readable, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "shell.main", "--json", "up", "--config", str(self.file)]
        command += ["--lifeline", str(readable), *(["--roles", ",".join(roles)] if roles else [])]
        self._up = self._spawn("up", command, (readable,))
        os.close(readable)

    def start_alone(self, role: str) -> None:
        """Start one role without supervision."""
        command = [sys.executable, "-m", "shell.main", "_role", role, "--config", str(self.file)]
        self._alone[role] = self._spawn(role, command, ())
        until(lambda: self.pid(role) == self._alone[role].pid, f"{self.name}'s {role}", START_S, self._alive)

    def _spawn(self, name: str, command: Sequence[str], keep: tuple[int, ...]) -> subprocess.Popen[bytes]:
        with (self.home / f"bench-{name}.out").open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT, pass_fds=keep)

    def wait_ready(self) -> None:
        """Until ``walship up`` says that every role is ready."""
        printed = self.home / "bench-up.out"
        until(lambda: _said_ready(printed), f"{self.name} to be ready", START_S, self._alive)

    def _alive(self) -> None:
        for name, process in {"up": self._up, **self._alone}.items():
            if process is not None and process.poll() is not None:
                said = (self.home / f"bench-{name}.out").read_text(errors="replace")[-2000:]
                raise ClusterFailedError(f"{self.name}'s {name} ended with {process.returncode}: {said}")

    def roles(self) -> tuple[str, ...]:
        """Those that ``walship up`` runs when none are named."""
        from replication import config
        from shell.processes.up import chosen_roles

        return chosen_roles(config.load(self.file), "")

    def pid(self, role: str) -> int:
        """The process of a role that is ready; 0 when none is."""
        try:
            state = json.loads((self.home / "run" / f"{role}.json").read_text())
        except (OSError, ValueError):
            return 0
        return int(state["pid"]) if state["state"] == "ready" else 0

    def stop_alone(self, role: str) -> None:
        """Stop what ``start_alone`` started."""
        if (process := self._alone.pop(role, None)) is not None:
            _end(process)

    def stop(self) -> None:
        """Stop everything of this cluster."""
        for role in [*self._alone]:
            self.stop_alone(role)
        if self._up is not None:
            _end(self._up)
            os.close(self._lifeline)
            self._up = None

    def disk_bytes(self) -> dict[str, int]:
        """Bytes of allocated blocks per part of the data directory."""
        sizes: dict[str, int] = {}
        for part in ("wal", "landing", "warehouse", "ledger.db", "catalog.db"):
            files = [self.home / part, self.home / f"{part}-wal"] if "." in part else [*(self.home / part).rglob("*")]
            sizes[part.removesuffix(".db")] = sum(_blocks(file) for file in files)
        return sizes


@dataclass(frozen=True)
class Pair:
    """Both sites, running, and a handle on each."""

    sites: tuple[Site, Site]
    east: walship.Cluster
    west: walship.Cluster

    def enable(self, table: str) -> None:
        """Create a table like ``bench.t`` at east and send it to west."""
        self.east.create_table(table, SCHEMA, key=["k"])
        self.east.peering.enable(table, (), "west", from_now=True, count_rows=lambda _: 0)


@contextmanager
def pair(
    settings: Mapping[str, Mapping[str, object]] | None = None,
    *,
    receiver_alone: bool = False,
    of_east: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Pair]:
    """East and west, up, with ``bench.t (k binary, v binary)``, key ``k``, going from east to west.

    Args:
        settings: section → key → value, for both.
        receiver_alone: west's receiver is a process that a bench can stop and start.
        of_east: for east alone.
    """
    home = Path(tempfile.mkdtemp(prefix="walship-bench-", dir=os.environ.get("WALSHIP_BENCH_DIR")))
    sites = tuple(Site(name, home / name, free_port()) for name in ("east", "west"))
    try:
        for site in sites:
            site.make(settings or {})
            if site.name == "east":
                site.set(of_east or {})
            others = receiver_alone and site.name == "west"
            site.start([role for role in site.roles() if role != "receiver"] if others else ())
        for site in sites:
            site.wait_ready()
        if receiver_alone:
            sites[1].start_alone("receiver")
        with walship.connect(sites[0].file) as east, walship.connect(sites[1].file) as west:
            until(lambda: defined(east, sites[1]), "east to know west", START_S, *(site._alive for site in sites))
            both = Pair((sites[0], sites[1]), east, west)
            both.enable(TABLE)
            yield both
    finally:
        for site in sites:
            site.stop()
        if os.environ.get("WALSHIP_BENCH_KEEP"):
            sys.stderr.write(f"kept {home}\n")
        else:
            shutil.rmtree(home, ignore_errors=True)


def defined(east: walship.Cluster, west: Site) -> bool:
    """Define west as a peer of east, once; False while its receiver's address is not public yet."""
    try:
        east.peering.define(west.name, west.address)
    except walship.PeerUnavailableError:
        return False
    return True


def until(
    there: Callable[[], bool], what: str, limit_s: float, *checks: Callable[[], None], poll_s: float = 0.05
) -> float:
    """Poll until ``there``; the moment (monotonic) it was seen. ``checks`` may raise in between."""
    deadline = time.monotonic() + limit_s
    while not there():
        for check in checks:
            check()
        if time.monotonic() > deadline:
            raise ClusterFailedError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(poll_s)
    return time.monotonic()


def _said_ready(file: Path) -> bool:
    """Whether ``walship up --json`` has printed its last word before it only supervises."""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.startswith("{")]
    return any("seconds" in json.loads(line) for line in lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _blocks(file: Path) -> int:
    try:
        status: Any = file.stat()
    except OSError:
        return 0
    return int(status.st_blocks) * 512 if file.is_file() else 0
