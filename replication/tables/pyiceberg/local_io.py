"""Local files for PyIceberg, with nothing but the operating system; on the disk before a catalog names them.

A catalog must never name a file that a power cut can still take: replay counts as applied what is committed, and then
the WALs go. PyIceberg's own paths to files sync nothing; they also load Arrow's datasets with pandas, or an HTTP stack:
two to three tenths of a second, of which a command that reads a local table needs none.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from replication.errors import EngineLostError, MissingFileError, StorageError
from replication.files.local import LocalFiles, sync_path


def local_path(location: str) -> str:
    """``file:///a``, ``file:/a`` and ``/a`` as ``/a``; other locations as they are."""
    return "/" + location[len("file:") :].lstrip("/") if location.startswith("file:") else location


class LocalFileIO(FileIO):
    """Files of the local file system, by path or ``file:`` address."""

    def new_input(self, location: str) -> LocalInput:
        """A file to read; looked at only when opened."""
        return LocalInput(location)

    def new_output(self, location: str) -> LocalOutput:
        """A file to write; made only by ``create``."""
        return LocalOutput(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; FileNotFoundError when there is none."""
        os.remove(local_path(location if isinstance(location, str) else location.location))


class LocalInput(InputFile):
    """A local file to read."""

    def __len__(self) -> int:
        """Its size in bytes."""
        return os.stat(local_path(self.location)).st_size

    def exists(self) -> bool:
        """Whether it is there."""
        return os.path.exists(local_path(self.location))

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes from the beginning."""
        return cast(InputStream, open(local_path(self.location), "rb"))


class LocalOutput(OutputFile):
    """A local file to write."""

    def __len__(self) -> int:
        """Its size in bytes."""
        return os.stat(local_path(self.location)).st_size

    def exists(self) -> bool:
        """Whether it is there."""
        return os.path.exists(local_path(self.location))

    def to_input_file(self) -> LocalInput:
        """The same file to read."""
        return LocalInput(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Make it, and its folder; FileExistsError when it is there and ``overwrite`` is False."""
        path = local_path(self.location)
        _make_directory(os.path.dirname(path))
        if not overwrite:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return cast(OutputStream, _Written(path, "wb"))


class _Written(pa.OSFile):  # type: ignore[misc]  # Arrow has no types
    """A file that Arrow writes natively, noted when it is closed; closing a metadata file syncs all that were."""

    def __init__(self, path: str, mode: str) -> None:
        self._path = path

    def close(self) -> None:
        """Idempotent."""
        if not self.closed:
            super().close()
            _unsynced.add(self._path)
            if self._path.endswith(_NAMED_NEXT):
                sync_written()


def _make_directory(path: str) -> None:
    if path and not os.path.isdir(path):
        _make_directory(os.path.dirname(path))
        with _syncing, contextlib.suppress(FileExistsError):  # nobody syncs what is in it before it is noted itself
            os.mkdir(path)
            _unsynced.add(path)


_NAMED_NEXT = ".metadata.json"  # the catalog's database names it next, and by it all files before
_unsynced: set[str] = set()
_lost: list[str] = []
_syncing = threading.Lock()


def sync_written() -> None:
    """Have the disk hold every file that was closed in this process before, and the folders that were made for them.

    All at once they cost one commit of the file system's journal, and not one each.

    Raises:
        EngineLostError: the disk failed, now or before: the kernel tells that once only, so this process must end.
    """
    with _syncing:  # held meanwhile: what another thread is about to sync is not there yet
        paths = tuple(_unsynced)
        _sync_or_end(paths)
        _unsynced.difference_update(paths)


def _sync_or_end(paths: Sequence[str]) -> None:
    try:
        if not _lost:
            _sync_all(paths)
    except StorageError as error:
        _lost.append(error.what)
    if _lost:
        raise EngineLostError(f"a table's file may not be on the disk: {_lost[0]}", "Look at the disk")


def _sync_all(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(MissingFileError):  # of an attempt that failed, and removed it
            sync_path(path)
    for directory in {os.path.dirname(path) for path in paths}:
        with contextlib.suppress(MissingFileError):
            LocalFiles().sync_directory(directory)


def sync_commits(table: Table, known: frozenset[int], branch: str = MAIN_BRANCH) -> None:
    """Have the disk hold what commits of another engine wrote, which syncs nothing: the table as it was just loaded.

    Args:
        table: its metadata file, and what its current snapshot has of snapshots that are not ``known``.
        known: snapshots whose files are on the disk.
        branch: whose snapshot counts as the current one.

    Raises:
        EngineLostError: as ``sync_written``.
    """
    written, snapshot = [table.metadata_location], table.snapshot_by_name(branch)
    made = {each.snapshot_id for each in table.metadata.snapshots} - known
    if snapshot is not None and snapshot.snapshot_id in made:
        written.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id in made:
                written.append(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io)
                written += [entry.data_file.file_path for entry in entries if entry.snapshot_id in made]
    _sync_or_end([path for path in map(local_path, written) if path.startswith("/")])
