"""The ``.len`` file beside a WAL: other processes of the host read there, without a system call, how far it is durable.

Four native 64-bit words, mapped shared: tag (ties the counters to the boot in which the WAL was made), durable length,
watermark, state. One writer stores, any number of processes read. The file is never shipped and need not survive a
crash: what it says is then a lower bound. Only that a WAL is poisoned is synced, for the ledger may not know it yet.
Storing a length notifies the worker (``notifier.py``).

The writer stores the length before the watermark, and a reader reads the watermark before the length, so that every
frame with a commit time at or below the watermark lies below the length read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256

from replication.errors import MissingFileError, StorageError
from replication.files.base import Files
from replication.files.local import LocalFiles
from replication.writer.wal.notifier import Notifier

_WORDS = 4
_TAG, _LENGTH, _WATERMARK, _STATE = range(_WORDS)
_MAGIC = 0x314E454C4C415721
_POISONED = 1


def len_path(wal_path: str) -> str:
    """Where the counters of a WAL are: ``….wal`` → ``….len``."""
    return wal_path.removesuffix(".wal") + ".len"


def _tag(boot: str) -> int:
    return _MAGIC ^ int.from_bytes(sha256(boot.encode()).digest()[:8], "little")


class DurableLength:
    """The counters of one WAL. ``close`` releases the mapping.

    Times are microseconds since 1970, lengths bytes from the start of the file.
    """

    def __init__(self, files: Files, path: str, words: memoryview, notifier: Notifier | None = None) -> None:
        self._files = files
        self._path = path
        self._words = words
        self._notifier = notifier

    @staticmethod
    def create(wal_path: str, boot: str, length: int, watermark: int, files: Files | None = None) -> DurableLength:
        """Make the file anew beside ``wal_path``; the tag is stored last."""
        files, path = files or LocalFiles(), len_path(wal_path)
        words = files.map_words(path, _WORDS, create=True)
        made = DurableLength(files, path, words, Notifier(os.path.dirname(wal_path)))
        made.publish(length, watermark)
        made._words[_TAG] = _tag(boot)
        return made

    @staticmethod
    def open(wal_path: str, boot: str, files: Files | None = None) -> DurableLength | None:
        """The counters beside ``wal_path``; None when there are none, or not of ``boot``, the file's in the ledger."""
        files, path = files or LocalFiles(), len_path(wal_path)
        try:
            words = files.map_words(path, _WORDS, create=False)
        except MissingFileError:
            return None
        if words[_TAG] != _tag(boot):
            words.release()
            return None
        return DurableLength(files, path, words)

    @property
    def length(self) -> int:
        """Durable bytes of the WAL, file header included."""
        return int(self._words[_LENGTH])

    @property
    def watermark(self) -> int:
        """Every frame past the length read afterwards has a later commit time than this."""
        return int(self._words[_WATERMARK])

    @property
    def poisoned(self) -> bool:
        """Whether the WAL ends at its durable length, even if the ledger does not know yet."""
        return bool(self._words[_STATE] & _POISONED)

    def publish(self, length: int, watermark: int) -> None:
        """Say that ``length`` bytes are durable, then that later commits are above ``watermark``."""
        self._words[_LENGTH] = length
        self._words[_WATERMARK] = watermark
        if self._notifier is not None:
            self._notifier.notify()

    def raise_watermark(self, watermark: int) -> None:
        """Say that commits not yet published are above ``watermark``."""
        self._words[_WATERMARK] = watermark

    def poison(self) -> None:
        """Say that nothing past the durable length may ever be published, also after a power cut if the disk can."""
        self._words[_STATE] = _POISONED
        with suppress(StorageError):  # it may be the disk that failed; then the ledger has to know
            self._files.sync_words(self._path, self._words)

    def close(self) -> None:
        """Release the mapping. Idempotent."""
        self._words.release()
        if self._notifier is not None:
            self._notifier.close()
