"""What is left of a salvaged file: made available to read, and kept afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from replication.config import Config
from replication.errors import MissingFileError
from replication.files.base import Files
from replication.files.store import store_of
from replication.ledger.base import FileRow
from replication.writer.wal.durable_length import len_path


@contextmanager
def available(config: Config, row: FileRow) -> Iterator[FileRow]:
    """A file with the path at which what is left of it can be read: of one in the store that of a copy for the while.

    A store is there for every host, so a file in it can be read here even if its own host is gone.

    Raises:
        StorageError: the store does not answer, so what it has is not known.
    """
    if not row.is_stored:
        yield row
        return
    copy = config.run_dir / f"salvage-{os.getpid()}.wal"
    copy.parent.mkdir(parents=True, exist_ok=True)  # without it the file would seem to be lost
    try:
        with suppress(MissingFileError):
            store_of(row.path).get(row.path, str(copy))
        yield replace(row, path=str(copy), host=config.cluster.host)
    finally:
        copy.unlink(missing_ok=True)


def keep_damaged(config: Config, files: Files, row: FileRow, path: str) -> str:
    """Move what is left of a file at ``path``, durably, to where quarantined frames are.

    Returns where it lies then, "" when it is gone. The object of one in a store is removed.
    """
    kept = link_damaged(config, files, row, path)
    remove_original(files, row, path)
    return kept


def link_damaged(config: Config, files: Files, row: FileRow, path: str) -> str:
    """Give what is left of a file a second name, durably, where quarantined frames are; that name, "" for nothing.

    It is then safe when the ledger forgets the file, since files that are not in the ledger are removed.
    """
    if row.is_redundant or not files.exists(path):
        return ""
    directory = str(config.data_dir / "quarantine")
    files.make_directory(directory)
    name, others = f"{directory}/{row.file.slot}-{row.file.number:012d}", 0
    kept = f"{name}.wal"
    while not row.is_stored and files.exists(kept) and not os.path.samefile(kept, path):  # of another file
        others += 1
        kept = f"{name}-{others}.wal"
    files.remove(kept)  # of an attempt that was killed
    files.link(path, kept)
    files.sync_directory(directory)
    return kept


def remove_original(files: Files, row: FileRow, path: str) -> None:
    """Remove a file whose damaged copy is kept, durably, with its object and its counters."""
    if files.exists(path):
        files.remove(path)
        files.sync_directory(str(Path(path).parent))
    if row.is_stored:
        store_of(row.path).remove(row.path)
    files.remove(len_path(path))
