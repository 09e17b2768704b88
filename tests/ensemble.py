"""A ZooKeeper ensemble of three real servers, each on a loopback address of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replication.coordination.embedded import MAIN, find_jars, four_letter_word
from replication.coordination.paths import PORT
from replication.tables.spark.jars import java_home_check
from tests.waiting import wait_until


class Ensemble:
    """Servers 1, 2 and 3 on port 2181, of which any may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        net = f"127.{os.getpid() % 251 + 2}.{os.getpid() // 251 % 251}"
        self.hosts = {number: f"{net}.{number}" for number in (1, 2, 3)}
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        home = self._folder / str(number)
        (home / "data").mkdir(parents=True, exist_ok=True)
        (home / "data" / "myid").write_text(str(number))
        members = [f"server.{each}={host}:2888:3888" for each, host in self.hosts.items()]
        own = [f"clientPort={PORT}", f"clientPortAddress={self.hosts[number]}", "dataDir=./data"]
        rest = [
            "tickTime=500",
            "initLimit=20",
            "syncLimit=10",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
        ]
        (home / "zoo.cfg").write_text("\n".join([*own, *rest, *members, ""]))
        java = str(Path(java_home_check()) / "bin" / "java")
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true"]
        with (home / "server.log").open("ab") as log:
            self._running[number] = subprocess.Popen(
                [java, *options, "-cp", f"{find_jars()}/*", MAIN, "zoo.cfg"], cwd=home, stdout=log, stderr=log
            )

    def stop(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def serves(self, number: int) -> bool:
        return "Mode:" in four_letter_word(self.hosts[number], PORT, "srvr")

    def await_serving(self) -> None:
        """Wait until every server that runs is in the quorum."""
        wait_until(lambda: all(map(self.serves, self._running)), what=f"a quorum of {sorted(self._running)}")

    def close(self) -> None:
        for number in list(self._running):
            self.stop(number)


@contextmanager
def ensemble(folder: Path) -> Iterator[Ensemble]:
    made = Ensemble(folder)
    try:
        for number in made.hosts:
            made.start(number)
        made.await_serving()
        yield made
    finally:
        made.close()
