"""Copies to a folder that a peer shares, through its receiver: one large file, and small ones, durable on return.

Beside it rsync sends the same trees with ``--fsync`` to its daemon on this host, where it is on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.bench_copy import LARGE_MIB, ROUNDS, SMALL_FILES, make_large, make_small, walship
from tests.bench.clusters import pair
from tests.bench.measure import Figure
from tests.bench.peers.peer import free_port, until

_FOLDERS = "WALSHIP_RECEIVER_FOLDERS"


def run() -> list[Figure]:
    """Both trees to the peer; against rsync, turn by turn, where it is there."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_SCRATCH")) as scratch:
        base = Path(scratch)
        make_large(base / "large", LARGE_MIB << 20)
        make_small(base / "small", SMALL_FILES)
        os.environ[_FOLDERS] = json.dumps({"inbox": {"path": str(base / "walship"), "clusters": ["east"]}})
        with pair() as both, rsync_server(base / "rsync") as address:
            cluster = ("--cluster", str(both.sites[0].file))
            for part in ("large", "small"):
                lines = {"walship": walship(base / part, f"walship://west/inbox/{part}", *cluster)}
                if address:
                    lines["rsync"] = ["rsync", "-r", "--times", "--fsync", f"{base / part}/", f"{address}/{part}/"]
                times: dict[str, list[float]] = {tool: [] for tool in lines}
                for tool in [*lines] * ROUNDS:
                    shutil.rmtree(base / tool / part, ignore_errors=True)
                    subprocess.run(["sync"], check=True)
                    began = time.perf_counter()
                    subprocess.run(lines[tool], check=True, stdout=subprocess.DEVNULL)
                    times[tool].append(time.perf_counter() - began)
                medians = {tool: statistics.median(found) for tool, found in times.items()}
                figures += [Figure(f"{part} files to a peer: {tool}", s, "s") for tool, s in medians.items()]
                if "rsync" in medians:
                    ratio = medians["rsync"] / medians["walship"]
                    figures.append(Figure(f"{part} files to a peer, against rsync's daemon", ratio, "×"))
    return figures


@contextmanager
def rsync_server(folder: Path) -> Iterator[str]:
    """rsync's daemon with that folder; its address, "" where there is no rsync."""
    folder.mkdir()
    if not shutil.which("rsync"):
        yield ""
        return
    port, settings = free_port(), folder.with_suffix(".conf")
    settings.write_text(f"use chroot = no\nuid = {os.getuid()}\n[inbox]\npath = {folder}\nread only = no\n")
    line = ["rsync", "--daemon", "--no-detach", "--address", "127.0.0.1", "--port", str(port), f"--config={settings}"]
    address = f"rsync://127.0.0.1:{port}/inbox"

    def answers() -> bool:
        return subprocess.run(["rsync", address], capture_output=True, check=False).returncode == 0

    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as server:
        try:
            until(answers, "rsync's daemon", 0.05, 10)
            yield address
        finally:
            server.terminate()
