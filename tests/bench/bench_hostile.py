"""Hostile clients: what an honest sender ships beside three that call as fast as they can, against without them.

One has a certificate and no grant, one a grant for another table, one forwards frames of an origin that it may not. The
receiver and the hostile clients are processes: ``python -m tests.bench.bench_hostile ROLE FOLDER …``.

The clients run at the lowest priority: what they take for themselves would be another machine's. The honest sender
begins when they do, so it also ships beside the first messages, which nobody slows down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from replication import log
from replication.core.definition.schema import TableSpec
from replication.core.grants import Grant
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.errors import TransferError
from replication.link.base import Data, Hello, PeerLink, Route
from replication.link.tls import LinkTls
from shell.processes.heap import keep_freed
from tests.bench.bench_ship import closed_wal, ship_once
from tests.bench.measure import QUICK, Figure, at_least, at_most, pairs
from tests.certificates import tls_section
from tests.hostile import calling, of_other_users
from tests.integration.test_link_tls import Authority
from tests.sites import Site, rows, table

HOSTILE = ("printer", "granted", "forwarder")
_STEADY_S, _MEASURED_S = 3.0, 5.0


def run() -> list[Figure]:
    """The honest sender's share."""
    folder = Path(tempfile.mkdtemp(prefix="walship-hostile-"))
    authority = Authority()
    site, wal, length = closed_wal(folder)
    try:

        def receiving(hostile: bool, measured: Callable[[ClusterId, int, psutil.Process], float]) -> float:
            west = ClusterId(f"west{uuid4().hex[:8]}", uuid4())
            home = folder / west.name
            home.mkdir()
            tls_section(home, authority.issue(west.name))
            for name in HOSTILE:
                tls_section(home, authority.issue(name), f"{name}.")
            with _process("receiver", str(home), str(west), str(site.cluster)) as receiver:
                assert receiver.stdout is not None
                port = receiver.stdout.readline().strip()
                with _attackers(hostile, str(home), str(west), port):
                    found = measured(west, int(port), psutil.Process(receiver.pid))
            shutil.rmtree(home)
            return found

        def shipped(west: ClusterId, port: int, _: psutil.Process) -> float:
            return ship_once(site, wal, length, west, port, authority.issue("east"))

        count = 1 if QUICK else 3
        share, spread = pairs(lambda: receiving(True, shipped), lambda: receiving(False, shipped), count)
        taken = receiving(True, _processors)
    finally:
        site.close()
        shutil.rmtree(folder)
    name = "hostile: an honest sender beside three hostile clients, against without them"
    took = "hostile: what they take of the receiver's processors, without an honest sender"
    return [at_least(name, share, "×", 0.9, spread), at_most(took, taken, "cores", 0.2)]


def _processors(_west: ClusterId, _port: int, receiver: psutil.Process) -> float:
    """How many processors the receiver keeps busy, once its callers have used up what nobody slows down."""
    time.sleep(_STEADY_S)
    before = receiver.cpu_times()
    time.sleep(_MEASURED_S)
    after = receiver.cpu_times()
    return (after.user + after.system - before.user - before.system) / _MEASURED_S


@contextmanager
def _attackers(wanted: bool, *arguments: str) -> Iterator[None]:
    if not wanted:
        yield
        return
    with _process("clients", *arguments) as clients:
        assert clients.stdout is not None
        clients.stdout.readline()
        yield


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bench_hostile", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        yield process
    finally:
        process.communicate(timeout=60)  # closes its standard input, with which it ends


def _receive(home: Path, west: ClusterId, honest: ClusterId) -> None:
    section = {name: str(home / name) for name in ("ca", "cert", "key")}
    site = Site(home, west.name, cluster=west, tls=section)
    site.send_to_cluster(honest)
    for name in HOSTILE[1:]:
        site.ledger.grants.put(Grant(ClusterId(name, NIL_UUID), ("ops.other",)), 1)
    with pytest.MonkeyPatch.context() as patch:
        of_other_users(patch)
        with site.receiver() as receiver:
            print(receiver.port, flush=True)
            sys.stdin.read()
    site.close()


def _attack(home: Path, west: ClusterId, port: int) -> None:
    """Every hostile client in a thread of its own, until the standard input ends."""
    spec, ended = table("ops.other"), threading.Event()
    own_ids = {name: ClusterId(name, uuid4()) for name in HOSTILE}
    frames = {
        "granted": _frames(table("ops.flights"), own_ids["granted"]),
        "forwarder": _frames(spec, ClusterId("north", uuid4())),
    }

    def client(name: str, attack: Callable[[PeerLink, Hello], None]) -> None:
        own = own_ids[name]
        tls = LinkTls(*((home / f"{name}.{part}").read_bytes() for part in ("ca", "cert", "key")))
        route = Route(spec, "default", spec.name, 1, {}, tuple(spec.versions.values()))
        with calling(port, west.name, own, tls) as link:
            while not ended.is_set():
                with suppress(TransferError):
                    attack(link, Hello(own, west, 1, "test", (route,)))

    def opens(link: PeerLink, hello: Hello) -> None:
        link.ship(hello).close()

    def sends(link: PeerLink, hello: Hello) -> None:
        session = link.ship(hello)
        try:
            for number in range(1, 1 << 30):
                if ended.is_set():
                    return
                file = FileId(hello.source, "h0", number)
                sent = frames[hello.source.name]
                session.send(Data(file, 256, 256 + len(sent), 256, 1, sent))
                session.receive(1.0)
        finally:
            session.close()

    attacks = (opens, sends, sends)
    threads = [threading.Thread(target=client, args=each) for each in zip(HOSTILE, attacks, strict=True)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()


def _frames(spec: TableSpec, origin: ClusterId) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        made = Site(Path(scratch), origin.name, cluster=origin)
        made.ledger.tables.create(spec)
        wal = made.wal()
        end = wal.append(spec, rows(0, 1000))
        content = Path(wal.path).read_bytes()[256:end]
        made.close()
        return content


def main(arguments: list[str]) -> None:
    """Be the role of the first argument."""
    keep_freed()
    log.configure("error")  # standard output is for what the bench reads
    role, home, west, rest = arguments
    if role == "receiver":
        _receive(Path(home), ClusterId.parse(west), ClusterId.parse(rest))
    else:
        os.nice(19)
        _attack(Path(home), ClusterId.parse(west), int(rest))


if __name__ == "__main__":
    main(sys.argv[1:])
