"""Peers that run on Java: their jars by Maven, their programs compiled and run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.measure import Figure, seeded_rows
from tests.bench.peers.peer import PROBES, PeerFailedError, PeerMissingError, cells, execute, folder, program

HERE = Path(__file__).parent / "java"
PACKAGES = "Debian's openjdk-17-jdk-headless and maven"
WARM_ROWS = 100_000


def class_path(name: str, home: Path) -> str:
    """The jars that ``<name>/pom.xml`` asks for, fetched by Maven where they are not yet."""
    maven, target = program("mvn", PACKAGES), home / "class_path.txt"
    program("java", PACKAGES)
    pom = HERE / name / "pom.xml"
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
    try:
        execute(maven, "-q", "-B", "-f", str(pom), goal, "-Dmdep.includeScope=runtime", f"-Dmdep.outputFile={target}")
    except PeerFailedError as error:
        raise PeerMissingError(f"Maven cannot get the packages of {pom.relative_to(HERE.parent)}: {error}") from None
    return target.read_text().strip()


def replication_bench(name: str, count: int, options: Sequence[str] = ()) -> list[Figure]:
    """Compile and run ``<name>/ReplicationBench.java``, which prints one JSON object at its end."""
    with folder(name) as home:
        classes, rows = home / "classes", home / "rows"
        jars = class_path(name, home)
        sources = [str(HERE / name / "ReplicationBench.java"), *map(str, sorted((HERE / name).glob("Queueing*.java")))]
        compiler = program("javac", PACKAGES)
        execute(compiler, "-nowarn", "-d", str(classes), "-cp", jars, str(HERE / "Common.java"), *sources)
        cells(seeded_rows(count)).tofile(rows)
        settings = [f"-D{key}={value}" for key, value in _settings(home, rows, count).items()]
        log = home / "log"
        with log.open("wb") as errors:
            done = subprocess.run(
                ["java", *options, *settings, "-cp", f"{classes}{os.pathsep}{HERE / name}{os.pathsep}{jars}"]
                + ["peers.ReplicationBench"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                check=False,
            )
        if done.returncode:
            raise PeerFailedError(f"{name} ended with {done.returncode}: {log.read_text(errors='replace')[-2000:]}")
        return _figures(name, json.loads(done.stdout.splitlines()[-1]))


def _settings(home: Path, rows: Path, count: int) -> dict[str, object]:
    return {
        "rows": rows,
        "cells": count,
        "warmCells": min(WARM_ROWS, count),
        "probes": PROBES,
        "workdir": home / "data",
        "java.io.tmpdir": home,
    }


def _figures(name: str, said: dict[str, Any]) -> list[Figure]:
    load, drain, lag = said["load"], said["drain"], said["probe"]["ack_to_visible"]
    for phase in (load, drain):
        if not phase.get("samples_ok") or phase["count_at_peer"] < phase["cells"]:
            raise PeerFailedError(f"{name}'s peer lacks rows: {phase}")
    return [
        Figure(f"peer {name}: end to end", load["e2e_cells_s"], "rows/s"),
        Figure(f"peer {name}: catch-up", drain["drain_cells_s"], "rows/s"),
        Figure(f"peer {name}: ack → visible, p50", lag["p50_ms"], "ms"),
        Figure(f"peer {name}: ack → visible, p99", lag["p99_ms"], "ms"),
    ]
