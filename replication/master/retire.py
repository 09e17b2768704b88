"""Retiring files (rule 2): the ledger's row is deleted first, in a transaction, then the file.

A master may die in between, and cannot reach other hosts' files. ``ledger/orphans.py`` removes what is left.
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
    """Drop the row under ``term`` and delete the file if it is on ``host``. False when the file must stay after all.

    Idempotent. ``ledger/orphans.py`` later deletes a file that was not deleted now.

    Raises:
        StaleTermError: a newer master was elected; nothing was changed.
    """
    try:
        ledger.files.retire(row.file, term, policy)
    except RequestError as error:
        _log.info("file_held", file=str(row.file), error=str(error))
        return False
    if row.is_stored:
        try:
            store_of(row.path).remove(row.path)
        except StorageError as error:  # its host's worker removes it on its next start
            _log.warning("object_left", file=row.path, error=str(error))
    elif row.host == host:
        try:
            delete(files, row.path)
        except StorageError as error:
            _log.warning("file_left", file=row.path, error=str(error))
    _log.info("file_retired", file=str(row.file), end=row.length, term=term)
    return True


def delete(files: Files, path: str) -> None:
    """Delete a file and its published length, durably; no effect when they do not exist."""
    files.remove(path)
    files.remove(str(PurePath(path).with_suffix(".len")))
    files.sync_directory(str(PurePath(path).parent))
