"""PostgreSQL, logical (publication and subscription) and physical (slot and hot standby), between two local instances.

Table ``t (k bytea primary key, v bytea)``; binary COPY of 10,000 rows a transaction, encoded before the clock starts.
End to end: first row sent → a marker committed after the load shows at the replica. Catch-up: the replica was away
during the load; ENABLE (or the start of the standby's process) → the marker shows. ``fsync``, ``full_page_writes`` and
``synchronous_commit`` stay on; buffers and checkpoints are tuned as an administrator would.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.bench.measure import Figure, seeded_rows
from tests.bench.peers.peer import PROBES, PeerMissingError, cells, execute, figures, folder, free_port, program, until

PACKAGES = "Debian's postgresql"
BATCH = 10_000
SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "wal_level": "logical",
    "max_wal_senders": 10,
    "max_replication_slots": 10,
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "wal_buffers": "64MB",
}


def run(count: int) -> list[Figure]:
    """Both kinds, one after the other."""
    binaries = Binaries()
    batches = encode(seeded_rows(count))
    return [figure for kind in ("logical", "physical") for figure in _measure(kind, binaries, batches, count)]


class Binaries:
    """PostgreSQL's programs, run as the user ``postgres`` when we are root, since the server refuses root."""

    def __init__(self) -> None:
        newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))[::-1]
        self._paths = {name: program(name, PACKAGES, newest) for name in ("initdb", "pg_ctl", "pg_basebackup")}
        self.user = "postgres" if os.geteuid() == 0 else ""
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise PeerMissingError("there is no psycopg: install the Python package psycopg[binary]") from None

    def __call__(self, name: str, *arguments: str) -> None:
        execute(self._paths[name], *arguments, user=self.user)


def encode(rows: pa.Table) -> list[bytes]:
    """The rows as bodies of binary COPY, ``BATCH`` rows each."""
    data = cells(rows)
    width = data.shape[1] - 16
    heads = [np.frombuffer(head, np.uint8) for head in (b"\0\2\0\0\0\x10", width.to_bytes(4, "big"))]
    wide = [np.broadcast_to(head, (len(data), len(head))) for head in heads]
    body = np.hstack([wide[0], data[:, :16], wide[1], data[:, 16:]])
    start, end = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
    return [start + body[i : i + BATCH].tobytes() + end for i in range(0, len(body), BATCH)]


class _Instance:
    """One server: its folder, its port, a connection."""

    def __init__(self, home: Path, name: str, binaries: Binaries) -> None:
        self.directory, self.port, self.socket = home / name, free_port(), home
        self._binaries = binaries
        self._connection: Any = None

    def make(self) -> None:
        self._binaries("initdb", "-D", str(self.directory), "-U", "postgres", "-A", "trust", "-E", "UTF8")

    def copy_of(self, primary: _Instance) -> None:
        source = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres")
        slot = ("-R", "-X", "stream", "-C", "-S", "standby", "-c", "fast")
        self._binaries("pg_basebackup", *source, "-D", str(self.directory), *slot)

    def configure(self) -> None:
        settings = {**SETTINGS, "port": self.port, "unix_socket_directories": f"'{self.socket}'"}
        with (self.directory / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{key} = {value}\n" for key, value in settings.items())

    def start(self) -> None:
        self._binaries("pg_ctl", "-D", str(self.directory), "-l", f"{self.directory}.log", "-w", "-t", "60", "start")

    def stop(self, mode: str = "immediate") -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if (self.directory / "postmaster.pid").exists():
            self._binaries("pg_ctl", "-D", str(self.directory), "-w", "-m", mode, "stop")

    def sql(self, query: str, *values: object) -> Any:
        """The first row's first value, None without one."""
        if self._connection is None:
            import psycopg

            self._connection = psycopg.connect(
                host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", autocommit=True
            )
        cursor = self._connection.execute(query, values or None, prepare=bool(values))
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    def copy(self, batches: Sequence[bytes]) -> None:
        for batch in batches:
            with self._connection.cursor().copy("COPY t (k, v) FROM STDIN (FORMAT binary)") as sending:
                sending.write(batch)

    def insert(self, key: str) -> bytes:
        self.sql("INSERT INTO t VALUES (%s, %s)", key.encode(), b"m" * 100)
        return key.encode()

    def has(self, key: bytes) -> bool:
        return self.sql("SELECT 1 FROM t WHERE k = %s", key) is not None


@contextmanager
def sites(kind: str, binaries: Binaries) -> Iterator[tuple[_Instance, _Instance]]:
    with folder(f"postgres-{kind}") as home:
        if binaries.user:
            shutil.chown(home, binaries.user, binaries.user)
        primary, replica = _Instance(home, "a", binaries), _Instance(home, "b", binaries)
        try:
            primary.make()
            primary.configure()
            primary.start()
            primary.sql("CREATE TABLE t (k bytea PRIMARY KEY, v bytea NOT NULL)")
            if kind == "logical":
                replica.make()
                replica.configure()
                replica.start()
                replica.sql("CREATE TABLE t (k bytea PRIMARY KEY, v bytea NOT NULL)")
                primary.sql("CREATE PUBLICATION p FOR TABLE t")
                source = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
                replica.sql(f"CREATE SUBSCRIPTION s CONNECTION '{source}' PUBLICATION p")
            else:
                replica.copy_of(primary)
                replica.configure()
                replica.start()
            yield primary, replica
        finally:
            replica.stop()
            primary.stop()


def _measure(kind: str, binaries: Binaries, batches: Sequence[bytes], count: int) -> list[Figure]:
    with sites(kind, binaries) as (primary, replica):
        _empty(primary, replica)
        began = time.perf_counter()
        primary.copy(batches)
        end_to_end = _arrived(primary, replica, count) - began
        _empty(primary, replica)
        lags = [_lag(primary, replica, f"probe {i}") for i in range(PROBES)]
        _empty(primary, replica)
        back = _away(kind, primary, replica)
        primary.copy(batches)
        began = time.perf_counter()
        back()
        catch_up = _arrived(primary, replica, count) - began
    return figures(f"postgres {kind}", count / end_to_end, count / catch_up, lags)


def _arrived(primary: _Instance, replica: _Instance, count: int) -> float:
    marker = primary.insert("end")
    seen = until(lambda: replica.has(marker), "PostgreSQL's marker at the replica")
    found = replica.sql("SELECT count(*) FROM t") - 2  # less the marks of the emptying and of the end
    assert found == count, f"the replica has {found} rows of {count}"
    return seen


def _lag(primary: _Instance, replica: _Instance, key: str) -> float:
    marker = primary.insert(key)
    acked = time.perf_counter()
    seen = until(lambda: replica.has(marker), "a probe at PostgreSQL's replica", poll_s=0)
    time.sleep(0.01)
    return seen - acked


def _empty(primary: _Instance, replica: _Instance) -> None:
    primary.sql("TRUNCATE t")
    marker = primary.insert("empty")
    until(lambda: replica.sql("SELECT count(*) FROM t") == 1 and replica.has(marker), "PostgreSQL's emptied table")
    primary.sql("CHECKPOINT")
    replica.sql("CHECKPOINT")


def _away(kind: str, primary: _Instance, replica: _Instance) -> Callable[[], object]:
    """Send the replica away; returns what brings it back."""
    if kind == "logical":
        replica.sql("ALTER SUBSCRIPTION s DISABLE")
        until(lambda: primary.sql("SELECT count(*) FROM pg_stat_replication") == 0, "the subscription's end")
        return lambda: replica.sql("ALTER SUBSCRIPTION s ENABLE")
    replica.stop("fast")
    return replica.start
