"""The rows of the bench ``light`` for other systems: commands that only answer, and two idle sites.

Programs that are not installed are left out: rclone, patronictl (Patroni 3 or newer, with kazoo), PostgreSQL.
ZooKeeper's command line is in PySpark's jars.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replication.coordination.embedded import EmbeddedZookeeper, find_jars
from tests.bench.bench_light import idle_figures, medians
from tests.bench.measure import Figure
from tests.bench.peers import postgres
from tests.bench.peers.peer import PeerMissingError, folder

ZOOKEEPER_SHELL = "org.apache.zookeeper.ZooKeeperMain"


def run(_: int) -> list[Figure]:
    """Median seconds of the commands; memory and CPU of PostgreSQL's primary and hot standby."""
    with _commands() as commands:
        found = medians(commands)
    figures = [Figure(f"peer {name}", seconds, "s") for name, seconds in found.items()]
    try:
        return [*figures, *_idle_postgres()]
    except PeerMissingError:
        return figures


@contextmanager
def _commands() -> Iterator[dict[str, tuple[str, ...]]]:
    with folder("light") as home, EmbeddedZookeeper(home / "zookeeper", 0) as zookeeper:
        shell = ("java", "-cp", f"{find_jars()}/*", ZOOKEEPER_SHELL, "-server", zookeeper.servers, "ls", "/")
        commands: dict[str, tuple[str, ...]] = {"zkCli ls /": shell}
        if rclone := shutil.which("rclone"):
            commands["rclone version"] = (rclone, "--config", os.devnull, "version")
        if patronictl := shutil.which("patronictl"):
            commands["patronictl version"] = (patronictl, "version")
            commands["patronictl list"] = (patronictl, "-c", str(_patroni(home, zookeeper.servers)), "list")
        yield commands


def _patroni(home: Path, zookeeper: str) -> Path:
    file = home / "patroni.yml"
    file.write_text(f"scope: pair\nzookeeper:\n  hosts: ['{zookeeper}']\n")
    return file


def _idle_postgres() -> list[Figure]:
    with postgres.sites("physical", postgres.Binaries()) as (primary, replica):
        return idle_figures("an idle pair of peer postgres physical", [primary.directory, replica.directory])
