"""What every peer's measurement is made of: programs or the reason they are missing, a folder, waits, figures."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.bench.measure import Figure, percentile

PROBES = 300
LIMIT_S = 300.0


class PeerMissingError(Exception):
    """A peer's programs are not installed; says which packages have them."""


class PeerFailedError(Exception):
    """A peer's program ended badly or never came as far as was waited for."""


def program(name: str, packages: str, folders: Sequence[Path] = ()) -> str:
    """The path of a program, looked for in ``folders`` after the search path."""
    found = shutil.which(name) or next((str(f / name) for f in folders if (f / name).exists()), None)
    if found is None:
        raise PeerMissingError(f"there is no {name}: install {packages}")
    return found


def execute(*command: str, user: str = "") -> str:
    """Run to the end and return what it printed; as another user when one is named."""
    if user:
        command = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-1200:]
        raise PeerFailedError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return done.stdout


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """A new folder, removed at the end."""
    made = Path(tempfile.mkdtemp(prefix=f"walship-peer-{name}-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def stop(process: subprocess.Popen[bytes], limit_s: float = 25.0) -> None:
    """End a process that was started here."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def until(there: Callable[[], bool], what: str, poll_s: float = 0.005, limit_s: float = LIMIT_S) -> float:
    """Poll until ``there``; the moment it was seen (``perf_counter``)."""
    deadline = time.perf_counter() + limit_s
    while not there():
        if time.perf_counter() > deadline:
            raise PeerFailedError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(poll_s)
    return time.perf_counter()


def cells(rows: pa.Table) -> np.ndarray:
    """The rows as bytes, one line each: key, then value."""
    columns = []
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        columns.append(np.frombuffer(column.buffers()[2], np.uint8).reshape(len(column), -1))
    return np.hstack(columns)


def figures(peer: str, end_to_end: float, catch_up: float | None, lags_s: Sequence[float] = ()) -> list[Figure]:
    """A peer's rows of the table: rows/s both paths, and milliseconds from ack to visible at the other site."""
    result = [Figure(f"peer {peer}: end to end", end_to_end, "rows/s")]
    if catch_up is not None:
        result.append(Figure(f"peer {peer}: catch-up", catch_up, "rows/s"))
    for q in (0.5, 0.99) if lags_s else ():
        name = f"peer {peer}: ack → visible, p{q * 100:.0f}"
        result.append(Figure(name, percentile(list(lags_s), q) * 1e3, "ms"))
    return result
