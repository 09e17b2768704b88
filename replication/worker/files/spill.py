"""Spilling: closed files that peers lack are moved from this host's disk to a store when a peer exceeds its budget.

Workers ship spilled files from the store. The order is: copy the file, record its address in the ledger, delete the
local file. A worker that dies in between leaves an extra copy, which the next worker removes. A spilled file that the
own replay needs again, after a table was rolled back, is copied back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import PurePath

from replication import log
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.retention import past_budget
from replication.errors import StorageError
from replication.files.base import Files
from replication.files.store import RemoteStore
from replication.ledger.base import FileKind, FileRow, Ledger

_PART = ".part"
_FAILING_S = 10.0  # of failures in one run: a store that does not answer is not asked for every file
_NAME = re.compile(r"(\d{12})\.wal(\.part)?\Z")
_log = log.get(__name__)


class Spiller:
    """Keeps the bytes that one host retains for each peer within the budget. For one thread.

    Args:
        budget: bytes that may be on this host's disk for one peer.
        keeps_tables: whether this host replays. While any host replays, only replayed files are moved.
        directories: the directory of local files of each kind; other kinds are not moved.
    """

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        host: str,
        store: RemoteStore,
        budget: int,
        keeps_tables: bool,
        directories: dict[FileKind, str],
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._host = host
        self._store = store
        self._budget = budget
        self._keeps_tables = keeps_tables
        self._directories = directories
        self._swept = False
        self._failed_s: dict[FileId, float] = {}  # when a file's move failed last

    def run_once(self) -> None:
        """Copy back the files that replay needs, then move those over the budget, the oldest first.

        A file that cannot be moved holds up no other.

        Raises:
            StorageError: the first failure, of a file or of the store. Files that can be moved are moved all the same.
        """
        if not self._swept:
            self._sweep()
            self._swept = True
        errors = self._each(self._recalled(), self._recall) + self._each(self._due(), self._spill)
        if errors:
            raise errors[0]
        self._failed_s.clear()

    def _each(self, rows: Sequence[FileRow], move: Callable[[FileRow], None]) -> list[StorageError]:
        """Move files until failures have taken ``_FAILING_S``; return the errors. What failed before comes last."""
        errors: list[StorageError] = []
        failing_s = 0.0
        for row in sorted(rows, key=lambda row: self._failed_s.get(row.file, 0.0)):
            begun_s = time.monotonic()
            try:
                move(row)
            except StorageError as error:
                errors.append(error)
                self._failed_s[row.file] = time.monotonic()
                failing_s += time.monotonic() - begun_s
                if failing_s >= _FAILING_S:
                    break
            else:
                self._failed_s.pop(row.file, None)
        return errors

    def _due(self) -> Sequence[FileRow]:
        if all(backlog.local_bytes <= self._budget for backlog in self._ledger.files.backlogs()):
            return ()  # what each file is missing under each rule takes long to read
        rows = {row.file: row for row in self._ledger.files.all(self._host)}
        due: set[FileId] = set()
        for missing in self._ledger.files.lacked().values():
            local = [(file, rows[file].needed) for file in missing if file in rows and not rows[file].is_stored]
            due |= past_budget(local, self._budget)
        awaited = self._awaits_replay()
        movable = [row for file, row in rows.items() if file in due and self._is_movable(row, awaited)]
        return sorted(movable, key=lambda row: (row.created, row.file))

    def _awaits_replay(self) -> bool:
        return self._keeps_tables or bool(self._ledger.replay.replayers())

    def _is_movable(self, row: FileRow, awaited: bool) -> bool:
        replayed = row.applied >= row.length or not awaited
        return row.closed and row.length >= row.closed_length and replayed and row.kind in self._directories

    def _recalled(self) -> list[FileRow]:
        if not self._awaits_replay():
            return []
        return [row for row in self._ledger.files.all(self._host) if row.is_stored and row.applied < row.length]

    def _spill(self, row: FileRow) -> None:
        address = self._store.put(row.path, f"{self._below(row.file.cluster)}/{row.file.number:012d}.wal")
        if not self._ledger.files.move(row.file, address):
            self._store.remove(address)  # retired meanwhile
            return
        local = PurePath(row.path)
        self._files.remove(row.path)
        self._files.remove(str(local.with_suffix(".len")))
        self._files.sync_directory(str(local.parent))
        _log.info("file_spilled", file=str(row.file), end=row.needed, store=self._store.url)

    def _recall(self, row: FileRow) -> None:
        """Copy a file back from the store, under a ``.part`` name until it is whole: orphan removal skips that name."""
        folder = self._directories[row.kind]
        path = f"{folder}/{row.file.number:012d}.wal"
        try:
            self._store.get(row.path, path + _PART)
            if not self._is_whole(row, path + _PART):
                raise StorageError(f"{row.path} was copied back, but is incomplete; the file stays in the store")
        except StorageError:
            self._files.remove(path + _PART)
            raise
        self._files.rename(path + _PART, path)
        self._files.sync_directory(folder)
        if not self._ledger.files.move(row.file, path):
            return
        if not self._files.exists(path):  # removed as an orphan before the ledger named it
            self._ledger.files.move(row.file, row.path)
            raise StorageError(f"{path} was copied back, but is gone; the file stays in the store")
        self._store.remove(row.path)
        _log.info("file_recalled", file=str(row.file), end=row.needed)

    def _is_whole(self, row: FileRow, path: str) -> bool:
        with closing(self._files.open(path)) as handle:
            return handle.size() == self._store.size(row.path) >= row.needed

    def _sweep(self) -> None:
        """Remove copies left by an earlier worker: unfinished ones, and stored ones that the ledger does not name."""
        for folder in self._directories.values():
            for name in self._files.names(folder):
                if name.endswith(f".wal{_PART}"):
                    self._files.remove(f"{folder}/{name}")
        of_host = [row for row in self._ledger.files.all(self._host) if row.file.slot == self._host]
        for cluster in (self._ledger.cluster, *self._ledger.former):
            rows = {row.file.number: row for row in of_host if row.file.cluster == cluster}
            self._sweep_store(cluster, rows)

    def _sweep_store(self, cluster: ClusterId, rows: Mapping[int, FileRow]) -> None:
        newest = max(rows, default=-1)
        for name in self._store.names(self._below(cluster)):
            match = _NAME.search(name)
            address = self._store.address(name)
            if match is None or int(match[1]) > newest:
                continue  # keep a newer file: the ledger may be from a backup
            row = rows.get(int(match[1]))
            if row is not None and not (row.is_stored or match[2] or self._files.exists(row.path)):
                self._ledger.files.move(row.file, address)  # the only copy: the ledger is from before it was moved
            elif cluster != self._ledger.cluster:
                continue  # of a former id: a rebuilt ledger may not know the file
            elif row is None or not (
                row.is_stored and row.path.endswith(f"/{name}")
            ):  # the store's URL may have changed
                self._store.remove(address)
                _log.info("orphan_removed", file=address)

    def _below(self, cluster: ClusterId) -> str:
        return f"{cluster.name}-{cluster.incarnation}/{self._host}"
