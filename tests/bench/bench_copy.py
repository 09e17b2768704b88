"""Copies local to local, durable on return: one large file, and 10,000 files of 10 KiB, beside other tools.

Each tool runs in rotated order into an empty folder, from the page cache; the time counts until the copy is on stable
storage. rsync and rclone are used when they are on PATH; Debian's packages suffice. DistCp runs in one JVM, by Hadoop's
local job runner, once, with Spark's jars of Hadoop. ``BENCH_SCRATCH`` names a disk.

With rclone and versitygw (``go install github.com/versity/versitygw/cmd/versitygw@latest``) on PATH the same trees also
go to an S3 server on this host and back, beside rclone.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from replication.tables.spark.jars import Jar, fetched, java_home_check
from tests.bench.measure import QUICK, Figure, at_least, at_most
from tests.bench.peers.peer import free_port, until

WALSHIP, BY_DISTCP = "walship copy", "DistCp + sync"
LARGE_MIB = 256 if QUICK else 2048
SMALL_FILES, SMALL_BYTES = 2_000 if QUICK else 10_000, 10 << 10
ROUNDS = 5
DISTCP = Jar(
    "org.apache.hadoop",
    "hadoop-distcp",
    "3.4.2",
    "669ce9633269611ba2abdcda6251b6f030a48f3480f0727856c64a97d8ec7986",
)


def walship(source: Path | str, target: Path | str, *options: str) -> list[str]:
    line = [sys.executable, "-c", "from shell.entry import main; main()", "copy"]
    return [*line, str(source), str(target), *options]


def make_large(folder: Path, size: int) -> None:
    folder.mkdir(parents=True)
    with (folder / "large").open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))


def make_small(folder: Path, count: int) -> None:
    noise = os.urandom(1 << 20)
    for number in range(count):
        below = folder / f"{number // 100:03}"
        if number % 100 == 0:
            below.mkdir(parents=True)
        begin = number * 7919 % (len(noise) - SMALL_BYTES)
        (below / f"{number:05}").write_bytes(noise[begin : begin + SMALL_BYTES])


def tools(source: Path, target: Path) -> dict[str, Callable[[], None]]:
    def call(*line: str, sync: bool) -> Callable[[], None]:
        def run() -> None:
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            if sync:
                subprocess.run(["sync", "-f", target.parent], check=True)

        return run

    found = {
        WALSHIP: call(*walship(source, target), sync=False),
        "cp -r + sync": call("cp", "-r", str(source), str(target), sync=True),
    }
    if shutil.which("rsync"):
        found["rsync --fsync"] = call("rsync", "-rt", "-W", "--fsync", f"{source}/", f"{target}/", sync=False)
    if shutil.which("rclone"):
        found["rclone + sync"] = call("rclone", "copy", str(source), str(target), sync=True)
    found[BY_DISTCP] = call(*distcp(), source.as_uri(), target.as_uri(), sync=True)
    return found


def distcp() -> list[str]:
    """DistCp with a map for each core; it copies the contents of a folder into one that does not exist."""
    spark = find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    jars = os.pathsep.join([*map(str, fetched([DISTCP])), f"{Path(spark.origin).parent}/jars/*"])
    line = [f"{java_home_check()}/bin/java", "-Xmx1g", "-cp", jars, "org.apache.hadoop.tools.DistCp"]
    return [*line, f"-Dmapreduce.local.map.tasks.maximum={os.cpu_count()}"]


def measured(source: Path, target: Path, rounds: int) -> dict[str, float]:
    runs = tools(source, target)
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name == BY_DISTCP and number:
                continue  # it takes minutes for small files
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run(["sync"], check=True)
            began = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def run() -> list[Figure]:
    """Both parts beside the other tools; small files that are read back; what a killed copy copies again; S3."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_SCRATCH")) as scratch:
        base = Path(scratch)
        make_large(base / "large", LARGE_MIB << 20)
        make_small(base / "small", SMALL_FILES)
        for part, bar in (("large", 0.9), ("small", 1.2)):
            found = measured(base / part, base / "target", ROUNDS)
            others = {name: seconds for name, seconds in found.items() if name != WALSHIP}
            fastest = min(others, key=others.__getitem__)
            figures += [Figure(f"{part} files: {name}", seconds, "s") for name, seconds in found.items()]
            figures.append(at_least(f"{part} files, against {fastest}", others[fastest] / found[WALSHIP], "×", bar))
        shutil.rmtree(base / "target")
        began = time.perf_counter()
        subprocess.run(walship(base / "small", base / "target", "--verify"), check=True, stdout=subprocess.DEVNULL)
        rate = SMALL_FILES / (time.perf_counter() - began)
        figures.append(at_least("small files copied and verified", rate, "files/s", 5000))
        shutil.rmtree(base / "target")
        figures.append(copied_again(base / "large", base / "target"))
        if shutil.which("rclone") and shutil.which("versitygw"):
            figures += through_s3(base)
    return figures


def through_s3(base: Path) -> list[Figure]:
    """Both trees to a bucket, and from it, against rclone."""
    figures, bucket, target = list[Figure](), base / "s3" / "files", base / "target"
    with s3_server(bucket) as environment:
        for part in ("large", "small"):
            names = {WALSHIP: f"s3://files/{part}-walship", "rclone": f"s3:files/{part}-rclone"}
            for way in ("to", "from"):
                times: dict[str, list[float]] = {tool: [] for tool in names}
                for tool in [*names] * ROUNDS:
                    ends = (str(base / part), names[tool]) if way == "to" else (names[tool], str(target))
                    line = walship(*ends) if tool == WALSHIP else ["rclone", "copy", *ends]
                    shutil.rmtree(
                        target if way == "from" else bucket / names[tool].rpartition("/")[2], ignore_errors=True
                    )
                    subprocess.run(["sync"], check=True)
                    began = time.perf_counter()
                    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=environment)
                    subprocess.run(["sync", "-f", base], check=True)
                    times[tool].append(time.perf_counter() - began)
                ours, theirs = (statistics.median(found) for found in times.values())
                figures.append(Figure(f"{part} files {way} S3: walship", ours, "s"))
                figures.append(at_least(f"{part} files {way} S3, against rclone", theirs / ours, "×", 1.0))
    return figures


@contextmanager
def s3_server(bucket: Path) -> Iterator[dict[str, str]]:
    """An S3 server with that bucket; the environment in which both tools reach it."""
    bucket.mkdir(parents=True)
    port, secrets = free_port(), {"ROOT_ACCESS_KEY": "bench", "ROOT_SECRET_KEY": "bench-secret"}
    url = f"http://127.0.0.1:{port}"
    given = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_DEFAULT_REGION": "us-east-1"}
    of_rclone = {"TYPE": "s3", "PROVIDER": "Other", "ENV_AUTH": "true", "REGION": "us-east-1", "ENDPOINT": url}
    environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"} | given
    environment |= {"AWS_ENDPOINT_URL": url, "RCLONE_CONFIG": os.devnull}
    environment |= {f"RCLONE_CONFIG_S3_{name}": value for name, value in of_rclone.items()}
    line = ["versitygw", "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", str(bucket.parent)]
    with subprocess.Popen(line, env=os.environ | secrets, stdout=subprocess.DEVNULL) as server:
        try:
            until(lambda: _listens(port), "the S3 server", 0.05, 10)
            yield environment
        finally:
            server.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def copied_again(source: Path, target: Path) -> Figure:
    """The share of a large file that is copied again after a kill at nine tenths of it."""
    size = LARGE_MIB << 20
    options = ("--range-size", str(size // 64))
    with subprocess.Popen(walship(source, target, *options, "--limit", "200MB"), stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and staged(target) < 0.9 * size:
            time.sleep(0.05)
        process.kill()
    again = subprocess.run(walship(source, target, *options, "--json"), check=True, capture_output=True, text=True)
    lost = max(0.0, json.loads(again.stdout)["bytes_copied"] - 0.1 * size)
    return at_most("copied again after a kill at 90 %", 100 * lost / size, "%", 2)


def staged(target: Path) -> int:
    """The bytes of the ranges that a copy's journal has."""
    for journal in target.glob(".walship/*/journal.db"):
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT total(size) FROM ranges").fetchone()[0])
    return 0
