"""Retiring files (rule 2): first the row goes, in a transaction of the ledger, then the bytes.

A master may die between the two, and cannot reach the files of other hosts. ``orphans.py`` removes what is left.
"""

from __future__ import annotations

from pathlib import PurePath

from replication import log
from replication.core.shipping.retention import RetentionPolicy
from replication.errors import RequestError, StorageError
from replication.files.base import Files
from replication.files.store import store_of
from replication.ledger.base import KEEP, FileRow, Ledger

_log = log.get(__name__)


def retire(ledger: Ledger, files: Files, row: FileRow, term: int, host: str, policy: RetentionPolicy = KEEP) -> bool:
    """Drop the row under ``term``, and delete the file when it is on ``host``; False when something holds it after all.

    Idempotent: what is not deleted now, ``orphans.py`` deletes later.

    Raises:
        StaleTermError: a newer master was elected; nothing happened.
    """
    try:
        ledger.files.retire(row.file, term, policy)
    except RequestError as error:
        _log.info("file_held", file=str(row.file), error=str(error))
        return False
    if row.is_stored:
        try:
            store_of(row.path).remove(row.path)
        except StorageError as error:  # the worker of its host finds it when it starts
            _log.warning("object_left", file=row.path, error=str(error))
    elif row.host == host:
        try:
            delete(files, row.path)
        except StorageError as error:
            _log.warning("file_left", file=row.path, error=str(error))
    _log.info("file_retired", file=str(row.file), end=row.length, epoch=term)
    return True


def delete(files: Files, path: str) -> None:
    """Delete a file and its counters, durably; nothing happens when they are gone."""
    files.remove(path)
    files.remove(str(PurePath(path).with_suffix(".len")))
    files.sync_directory(str(PurePath(path).parent))
