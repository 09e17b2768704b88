"""The ``.len`` file beside a WAL: other processes of the host read its durable length there without a system call.

Four native 64-bit words, mapped shared: tag (identifies the boot in which the WAL was created), durable length,
watermark, state. One process writes, any number read. The file is never shipped. It need not survive a crash: older
values are lower bounds. Only the poisoned state is synced, because the ledger may not have it yet. Storing a length
notifies the worker (``notifier.py``).

The writer stores the length before the watermark. A reader reads the watermark before the length. So every frame with
a commit time at or below the watermark read lies below the length read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256

from replication.errors import MissingFileError, StorageError
from replication.files.base import Files
from replication.files.local import LocalFiles
from replication.files.notifier import Notifier

_WORDS = 4
_TAG, _LENGTH, _WATERMARK, _STATE = range(_WORDS)
_MAGIC = 0x314E454C4C415721
_POISONED = 1


def len_path(wal_path: str) -> str:
    """Return the path of a WAL's counters: ``….wal`` → ``….len``."""
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
        """Create or reset the file beside ``wal_path``; the tag is stored last. StorageError when that fails."""
        files, path = files or LocalFiles(), len_path(wal_path)
        words = files.map_words(path, _WORDS, create=True)
        try:
            notifier = Notifier(os.path.dirname(wal_path))
        except OSError as error:  # no descriptor is left for its socket
            words.release()
            raise StorageError(f"{path} cannot be used: {error.strerror}", "Close files of this process") from None
        counters = DurableLength(files, path, words, notifier)
        counters.publish(length, watermark)
        counters._words[_TAG] = _tag(boot)
        return counters

    @staticmethod
    def open(wal_path: str, boot: str, files: Files | None = None) -> DurableLength | None:
        """Open the counters beside ``wal_path``; None when they do not exist or were created in another boot."""
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
        """The watermark: every frame past a length read after it has a later commit time."""
        return int(self._words[_WATERMARK])

    @property
    def poisoned(self) -> bool:
        """Whether the WAL ends at its durable length for good; the ledger may not have it CLOSED yet."""
        return bool(self._words[_STATE] & _POISONED)

    def publish(self, length: int, watermark: int) -> None:
        """Store the durable length, then the watermark: later commits are above it."""
        self._words[_LENGTH] = length
        self._words[_WATERMARK] = watermark
        if self._notifier is not None:
            self._notifier.notify()

    def raise_watermark(self, watermark: int) -> None:
        """Store the watermark: unpublished commits are above it."""
        self._words[_WATERMARK] = watermark

    def poison(self) -> None:
        """Store and sync that nothing past the durable length may be published. A failed sync is ignored."""
        self._words[_STATE] = _POISONED
        with suppress(StorageError):  # the disk may have failed; closing the WAL in the ledger then suffices
            self._files.sync_words(self._path, self._words)

    def close(self) -> None:
        """Release the mapping. Idempotent."""
        self._words.release()
        if self._notifier is not None:
            self._notifier.close()
