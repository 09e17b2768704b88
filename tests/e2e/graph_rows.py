"""Rows of the clusters of a graph: written to all of them, awaited and compared."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from peer.client.cluster import Cluster
from replication.core.position import Position
from replication.errors import ReplicationError
from replication.tables.base import open_duckdb
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


WAIT_S = 180.0


Handles = dict[str, Cluster]


def rows(**texts: str) -> pa.Table:
    return pa.table({"id": [int(key[1:]) for key in texts], "text": list(texts.values())}, SCHEMA)


def everywhere(handles: Handles, *positions: Position, names: str = "east west north") -> None:
    """Wait until these positions are visible on the clusters, asked at the clusters themselves."""
    for name in names.split():
        for position in positions:
            handles[name].wait(position, until="visible", timeout_s=WAIT_S)


def content(cluster: Cluster, table: str) -> dict[int, str]:
    return {row["id"]: row["text"] for row in cluster.read(table).read_all().to_pylist()}


def change_log(cluster: Cluster, table: str) -> Counter[tuple[str, int, int, str | None, int]]:
    """How often each edit is in a cluster's change log: (WAL of its origin, sequence, key, text, kind)."""
    with open_duckdb() as connection:
        cluster.reader.catalog.attach(connection, "changes", f"{table}__changes")
        query = "select concat(_origin, _wal), _seq, id, text, _op from changes where _op >= 0"
        return Counter(connection.sql(query).fetchall())


def versions_of(cluster: Cluster, table: str, key: int) -> list[str]:
    """The texts of one key in the order in which they came into a cluster's change log."""
    with open_duckdb() as connection:
        cluster.reader.catalog.attach(connection, "changes", f"{table}__changes")
        query = f"select text from changes where id = {key} and _op = 0 order by _replay, _wal, _seq, _row"
        return [text for (text,) in connection.sql(query).fetchall()]


def agree(handles: Handles, table: str, wanted: dict[int, str], names: str = "east west north") -> None:
    """All show exactly these rows, and every edit is once in each change log."""
    logs = [change_log(handles[name], table) for name in names.split()]
    for name, log in zip(names.split(), logs, strict=True):
        assert content(handles[name], table) == wanted, name
        assert set(log.values()) == {1}, name
    assert all(log == logs[0] for log in logs)


class Load:
    """Writes a row at a time on some clusters in turns, from ``first`` on, until it is told to stop."""

    def __init__(self, handles: Handles, table: str, names: Sequence[str], first: int) -> None:
        self._handles, self._table, self._names, self._first = handles, table, names, first
        self._stop = threading.Event()
        self.rows: dict[int, str] = {}
        self.positions: dict[str, Position] = {}
        self.error: ReplicationError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def grows(self) -> bool:
        """Wait for three more rows on each cluster: the load goes on."""
        wanted = len(self.rows) + 3 * len(self._names)
        return bool(wait_until(lambda: self.error or len(self.rows) >= wanted, timeout_s=400, what="the load to go on"))

    def finish(self) -> list[Position]:
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error
        return list(self.positions.values())

    def _run(self) -> None:
        number = self._first
        try:
            while not self._stop.wait(0.15):
                name = self._names[number % len(self._names)]
                text = f"{number} of {name}"
                reached = self._handles[name].upsert(self._table, pa.table({"id": [number], "text": [text]}, SCHEMA))
                known = self.positions.get(name)
                self.positions[name] = reached if known is None else known.join(reached)
                self.rows[number] = text
                number += 1
        except ReplicationError as error:
            self.error = error


@contextmanager
def loading(handles: Handles, table: str, names: Sequence[str], first: int = 0) -> Iterator[Load]:
    load = Load(handles, table, names, first)
    try:
        yield load
    finally:
        load._stop.set()
        load._thread.join()
