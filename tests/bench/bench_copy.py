"""Copies local to local, durable on return: one large file, and 10,000 files of 10 KiB, beside cp, rsync and rclone.

Each tool runs in rotated order into an empty folder, from the page cache; the time counts until the copy is on stable
storage. rsync and rclone are used when they are installed. Prints the median of each and the ratios to the fastest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SMALL_FILES, SMALL_BYTES = 10_000, 10 << 10


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

    walship = [sys.executable, "-c", "from shell.main import main; main()", "copy", str(source), str(target)]
    found = {
        "walship copy": call(*walship, sync=False),
        "cp -r + sync": call("cp", "-r", str(source), str(target), sync=True),
    }
    if shutil.which("rsync"):
        found["rsync --fsync"] = call("rsync", "-rt", "-W", "--fsync", f"{source}/", f"{target}/", sync=False)
    if shutil.which("rclone"):
        found["rclone + sync"] = call("rclone", "copy", str(source), str(target), sync=True)
    return found


def measured(source: Path, target: Path, rounds: int) -> dict[str, float]:
    runs = tools(source, target)
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run(["sync"], check=True)
            began = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large-mib", type=int, default=2048)
    parser.add_argument("--files", type=int, default=SMALL_FILES)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_SCRATCH")) as scratch:
        base = Path(scratch)
        make_large(base / "large", given.large_mib << 20)
        make_small(base / "small", given.files)
        for part in ("large", "small"):
            found = measured(base / part, base / "target", given.rounds)
            others = min(seconds for name, seconds in found.items() if not name.startswith("walship"))
            for name, seconds in sorted(found.items(), key=lambda each: each[1]):
                print(f"{part:<6} {name:<16} {seconds:7.2f} s")
            print(f"{part:<6} ratio to the fastest other: {others / found['walship copy']:.2f}")


if __name__ == "__main__":
    main()
