"""``python -m tests.bench.loader FILE TABLE ROWS FIRST_KEY``: a program that writes rows, in a process of its own.

For the benches, so that a writer's memory and share of the machine are those of a user's program. It makes its rows,
writes one batch to be warm, says so in one line of JSON, waits for a line, writes, and says how it went.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import walship
from replication.core.position import Position
from tests.bench.measure import PeakMemory, seeded_rows

BATCH = 10_000
IN_FLIGHT = 4
MADE_BEFORE_MAX = 2_000_000  # more rows than this are made as they are written
_WARM_KEY = 1 << 40


@dataclass(frozen=True, slots=True)
class Loaded:
    """How a load went; moments are monotonic and hold across processes of one machine."""

    began: float
    acked: float
    position: Position
    over_idle_mib: float


class Loader:
    """The program, started and ready to write."""

    def __init__(self, file: Path, table: str, rows: int, first_key: int = 0) -> None:
        command = [sys.executable, "-m", "tests.bench.loader", str(file), table, str(rows), str(first_key)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2]
        )
        self.warm = Position.from_json(self._line()["position"])

    def _line(self) -> dict[str, str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the loader ended with {self._process.wait()}")
        said: dict[str, str] = json.loads(line)
        return said

    def go(self) -> None:
        """Start writing."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def finish(self) -> Loaded:
        """Wait until everything is acked."""
        said = self._line()
        self._process.communicate()
        position = Position.from_json(said["position"])
        return Loaded(float(said["began"]), float(said["acked"]), position, float(said["over_idle_mib"]))

    def close(self) -> None:
        """End the program when it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def main(file: str, table: str, rows: int, first_key: int) -> None:
    """Be the program."""
    begins = range(0, rows, BATCH)

    def make(begin: int) -> pa.Table:
        return seeded_rows(min(BATCH, rows - begin), seed=begin + 1, first_key=first_key + begin)

    made = {begin: make(begin) for begin in begins} if rows <= MADE_BEFORE_MAX else {}
    with walship.connect(file) as cluster:
        position = cluster.upsert(table, seeded_rows(BATCH, first_key=_WARM_KEY))
        print(json.dumps({"position": position.to_json()}), flush=True)
        sys.stdin.readline()
        with PeakMemory() as memory:
            began = time.monotonic()
            flying: deque[Future[Position]] = deque()
            for begin in begins:
                flying.append(cluster.upsert_async(table, made[begin] if made else make(begin)))
                if len(flying) > IN_FLIGHT:
                    position = position.join(flying.popleft().result())
            for future in flying:
                position = position.join(future.result())
            acked = time.monotonic()
        said = {"began": began, "acked": acked, "position": position.to_json(), "over_idle_mib": memory.over_idle_mib}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
