"""Copy tools: one 1 GiB file made durable at its target by an rsync daemon on loopback, cp, rclone and a sendfile loop.

The source is in the page cache. Tools take turns; the target is removed and synced between runs, outside the clock,
and compared with the source after each. rclone is measured when it is there.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.measure import QUICK, Figure
from tests.bench.peers.peer import execute, folder, free_port, program, stop, until

PACKAGES = "Debian's rsync (3.2.4 or newer, for --fsync)"
BYTES = (256 if QUICK else 1024) << 20
ROUNDS = 3


def run(_: int) -> list[Figure]:
    """MiB/s of each tool, median of the rounds."""
    rsync = program("rsync", PACKAGES)
    with folder("copytools") as home:
        source, target = home / "source" / "file", home / "target"
        source.parent.mkdir()
        target.mkdir()
        _fill(source)
        with daemon(rsync, home, target) as url:
            tools = _tools(rsync, url, source, target)
            times: dict[str, list[float]] = {name: [] for name in tools}
            for _ in range(ROUNDS):
                for name, copy in tools.items():
                    times[name].append(_timed(copy, source, target))
    rates = {name: [BYTES / (1 << 20) / seconds for seconds in each] for name, each in times.items()}
    return [
        Figure(f"peer {name}: 1 file", statistics.median(each), "MiB/s", spread=f"{min(each):,.0f}–{max(each):,.0f}")
        for name, each in rates.items()
    ]


def _fill(path: Path) -> None:
    noise = os.urandom(8 << 20)
    with path.open("wb") as file:
        for _ in range(BYTES // len(noise)):
            file.write(noise)
        os.fsync(file.fileno())


@contextmanager
def daemon(rsync: str, home: Path, target: Path) -> Iterator[str]:
    """An rsync daemon on loopback that writes into ``target``; its URL."""
    port = free_port()
    configuration = home / "rsyncd.conf"
    configuration.write_text(
        f"use chroot = no\nuid = {os.geteuid()}\ngid = {os.getegid()}\n[m]\npath = {target}\nread only = no\n"
    )
    process = subprocess.Popen(
        [rsync, "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}"]
        + [f"--config={configuration}", f"--log-file={home / 'rsyncd.log'}"],
        stdin=subprocess.DEVNULL,
    )

    def listens() -> bool:
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "the rsync daemon", 0.05, 10)
        yield f"rsync://127.0.0.1:{port}/m/"
    finally:
        stop(process)


def _tools(rsync: str, url: str, source: Path, target: Path) -> dict[str, Callable[[], object]]:
    copied = target / source.name

    def cp() -> None:
        execute("cp", str(source), str(copied))
        _sync(copied)

    def sendfile() -> None:
        with source.open("rb") as reading, copied.open("wb") as writing:
            left = BYTES
            while left:
                left -= os.sendfile(writing.fileno(), reading.fileno(), None, left)
        _sync(copied)

    tools: dict[str, Callable[[], object]] = {
        "rsync daemon --fsync": lambda: execute(rsync, "-W", "--fsync", str(source), url),
        "cp + fsync": cp,
        "sendfile + fsync (no tool: the floor)": sendfile,
    }
    if rclone := shutil.which("rclone"):

        def copy() -> None:
            execute(rclone, "--config", os.devnull, "copy", str(source), str(target))
            _sync(copied)

        tools["rclone copy + fsync"] = copy
    return tools


def _sync(file: Path) -> None:
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _timed(copy: Callable[[], object], source: Path, target: Path) -> float:
    for path in target.iterdir():
        path.unlink()
    execute("sync", "-f", str(target))
    began = time.perf_counter()
    copy()
    took = time.perf_counter() - began
    execute("cmp", str(source), str(target / source.name))
    return took
