"""The threads that copy: each takes ranges and files out of the window, stages them, and notes them in the journal.

Bounds: ``configuration.threads`` threads; each holds one small file or two pieces of a large one in memory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.conversions import applied
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range, file_digest, ranges_of
from replication.datasets.copying.file_sets import FileSets, StagedFile
from replication.datasets.copying.journal import CopyJournal, JournalEntry
from replication.datasets.copying.progress import CopyProgress
from replication.datasets.copying.staging import Staging
from replication.datasets.copying.throttle import CopyThrottle
from replication.datasets.copying.transfer import check_digest, copy_converted, copy_range, copy_small, copy_stream
from replication.datasets.copying.window import CopyWindow
from replication.datasets.stores.base import Store, is_temporary
from replication.errors import ChangedFileError, CopyError, NoSpaceError, one_line
from replication.log import get
from replication.retries import exponential

SMALL_BYTES_MAX = 4 << 20
_THREADS = 8
_WAIT_MIN_S, _WAIT_MAX_S = 0.2, 30.0
_R = TypeVar("_R")
_log = get(__name__)


class Stager:
    """Copies what the window gives into the staging folder.

    Args:
        stores: the source and the target.
        configuration: of the copy.
        staging: of the job.
        journal: of the job.
        window: where the files come from.
        file_sets: told of each file that is staged or failed.
        progress: told of bytes and files.
        throttle: asked before bytes are read.
    """

    def __init__(
        self,
        stores: tuple[Store, Store],
        configuration: CopyConfiguration,
        staging: Staging,
        journal: CopyJournal,
        window: CopyWindow,
        file_sets: FileSets,
        progress: CopyProgress,
        throttle: CopyThrottle,
    ) -> None:
        self._source, self.target = stores
        self.configuration, self.staging, self.journal = configuration, staging, journal
        self.window, self.file_sets, self.progress, self.throttle = window, file_sets, progress, throttle
        self._stopped = threading.Event()
        self._wait = exponential(_WAIT_MIN_S, _WAIT_MAX_S)
        self.error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"copy-{n}", daemon=True) for n in range(self._count())
        ]

    def _count(self) -> int:
        if self.configuration.threads:
            return self.configuration.threads
        if self._source.traits.is_local and self.target.traits.is_local:
            return min(os.cpu_count() or 1, _THREADS)  # more write large files out of order, and are slower
        return _THREADS

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all files were tried; raises what ended a thread."""
        for thread in self._threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End the threads after what they copy now, and join them."""
        self._stopped.set()
        self.window.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        try:
            while (task := self.window.take()) is not None:
                if isinstance(task, tuple):
                    ranged, part = task
                    assert isinstance(ranged, _RangedCopy)
                    ranged.copy(part)
                elif len(task) == 1 and task[0].origin.size > SMALL_BYTES_MAX:
                    self._large(task[0])
                else:
                    self._small(task)
        except BaseException as error:
            self.error = self.error or error
            self.window.stop()

    def _small(self, files: Sequence[CopyableFile]) -> None:
        staged: list[StagedFile] = []
        entries: list[JournalEntry] = []
        for file in files:
            if self._stopped.is_set():
                return
            found = self.reused(file)
            if found is None:
                found = self.tried(file, lambda file=file: self._copy_small(file))  # type: ignore[misc]
                if found is None:
                    continue
                entries.append(JournalEntry(file.guid, self.staging.path_of(file), found.size, found.digest))
            staged.append(found)
        self.journal.add(entries)
        self.file_sets.staged(staged)

    def _copy_small(self, file: CopyableFile) -> StagedFile:
        if self._conversions(file):
            return self._copy_converted(file)
        path = self.staging.path_of(file)
        self.staging.make_folder_for(file, path)
        digest = copy_small(self._source, self.target, file, path, self.throttle)
        if self.configuration.verify:
            self.target.sync([path])
            check_digest(self.target, path, Range(0, 0, file.origin.size), digest)
        self.progress.moved(file.origin.size)
        return StagedFile(file, digest.hex(), file.origin.size)

    def _large(self, file: CopyableFile) -> None:
        found = self.reused(file)
        if found is None and self.target.traits.writes_ranges and not self._conversions(file):
            self.window.share(_RangedCopy(self, file, self._source))
            return
        if found is None:
            copy = self._copy_converted if self._conversions(file) else self._copy_stream
            found = self.tried(file, lambda: copy(file))
            if found is None:
                return
            self.journal.add([JournalEntry(file.guid, self.staging.path_of(file), found.size, found.digest)])
        self.file_sets.staged([found])

    def _conversions(self, file: CopyableFile) -> tuple[str, ...]:
        names = self.configuration.conversions
        return applied(file.origin.path, names) if names else ()

    def _copy_converted(self, file: CopyableFile) -> StagedFile:
        path = self.staging.path_of(file)
        self.staging.make_folder_for(file, path)
        writer = self.target.create(path, file, -1)
        try:
            size, digest = copy_converted(
                self._source, writer, file, self._conversions(file), self.configuration.range_bytes, self.throttle
            )
            writer.finish()
        finally:
            writer.close()
        if self.configuration.verify and self._digest_of(path, size) != digest:
            raise CopyError(f"{path} has other bytes than were written", "Check the disk")
        self.progress.moved(file.origin.size)
        return StagedFile(file, digest, size)

    def _copy_stream(self, file: CopyableFile) -> StagedFile:
        path = self.staging.path_of(file)
        self.staging.make_folder_for(file, path)
        parts = ranges_of(file.origin.size, self.configuration.range_bytes)
        writer = self.target.create(path, file, -1)
        try:
            digests = copy_stream(self._source, writer, file, parts, self.throttle, self.progress.moved)
            writer.finish()
        finally:
            writer.close()
        if self.configuration.verify:
            for part, digest in zip(parts, digests, strict=True):
                check_digest(self.target, path, part, digest)
        return StagedFile(file, file_digest(digests), file.origin.size)

    def reused(self, file: CopyableFile) -> StagedFile | None:
        """A file that an earlier run staged and did not publish; None if there is none that is good."""
        if self.journal.is_empty:
            return None
        guid = file.guid
        if (entry := self.journal.find(guid)) is None:
            return None
        staged, is_trusted = entry
        path = self.staging.path_of(file)
        found = self.target.status(path)
        if found is None or found.attributes is None or found.attributes.size != staged.size or staged.path != path:
            return None
        if not is_trusted and self._digest_of(path, staged.size) != staged.digest:
            self.journal.forget([guid])
            return None
        self.progress.reused(staged.size)
        _log.info("staged_file_reused", file=file.destination, guid=guid)
        return StagedFile(file, staged.digest, staged.size)

    def _digest_of(self, path: RelativePath, size: int) -> str:
        digests = []
        for part in ranges_of(size, self.configuration.range_bytes):
            digest = hashlib.sha256()
            for at in range(part.begin, part.end, 1 << 20):
                digest.update(self.target.reread(path, at, min(1 << 20, part.end - at)))
            digests.append(digest.digest())
        return file_digest(digests)

    def tried(self, file: CopyableFile, attempt: Callable[[], _R], once: Callable[[], bool] | None = None) -> _R | None:
        """The result of an attempt, repeated as the configuration says; None if it failed, which is told then.

        A full target ends the run with NoSpaceError, since every other file would fail, too.

        Args:
            file: that it is about.
            attempt: what to do.
            once: asked before a failure is told; False if another thread has told it.
        """
        failures = 0
        while True:
            try:
                return attempt()
            except Exception as error:  # each driver has its own errors
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoSpaceError(
                        f"no space is left in {self.target.url}", "Make room and run it again: it goes on where it was"
                    ) from error
                failures += 1
                again = is_temporary(error) and not isinstance(error, ChangedFileError)
                if not again or failures >= self.configuration.attempts or self._stopped.is_set():
                    if once is None or once():
                        self._failed(file, getattr(error, "what", "") or one_line(error), failures)
                    return None
                self._stopped.wait(self._wait(failures))

    def _failed(self, file: CopyableFile, reason: str, attempts: int) -> None:
        self.progress.failed(file.destination, reason)
        self.file_sets.failed(file, reason)
        _log.warning("copy_failed", file=file.destination, error=reason, attempts=attempts)


class _RangedCopy:
    """A large file whose ranges several threads copy at once; the last one finishes it."""

    def __init__(self, stager: Stager, file: CopyableFile, source: Store) -> None:
        self._stager, self._file, self._source = stager, file, source
        self._guid = file.guid
        self._path = stager.staging.path_of(file)
        self._parts = ranges_of(file.origin.size, stager.configuration.range_bytes)
        self._digests: list[bytes] = [b""] * len(self._parts)
        self._lock = threading.Lock()
        self._failed = False
        self._left = len(self._parts)
        self._waiting = iter(self._parts)
        self._known = stager.journal.ranges(self._guid) if stager.target.status(self._path) else {}

    def next_range(self) -> Range | None:
        return None if self._failed else next(self._waiting, None)

    def copy(self, part: Range) -> None:
        """Copy one range; the last one that is done finishes the file, the first that fails gives it up."""
        digest = self._stager.tried(self._file, lambda: self._copied(part), once=self._give_up)
        if digest is None:
            return
        with self._lock:
            self._digests[part.index] = digest
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._stager.tried(self._file, self._finish, once=self._give_up)

    def _give_up(self) -> bool:
        with self._lock:
            was, self._failed = self._failed, True
        return not was

    def _copied(self, part: Range) -> bytes:
        stager = self._stager
        if (known := self._reused(part)) is not None:
            return known
        stager.staging.make_folder_for(self._file, self._path)
        reader = self._source.open(self._file.origin)
        try:
            writer = stager.target.create(self._path, self._file, self._file.origin.size)
            try:
                digest = copy_range(reader, writer, self._file, part, stager.throttle, stager.progress.moved)
            finally:
                writer.close()
            reader.check_unchanged()
        finally:
            reader.close()
        if stager.configuration.verify:
            stager.target.sync([self._path])
            check_digest(stager.target, self._path, part, digest)
        stager.journal.add_range(self._guid, part.index, part.size, digest)
        return digest

    def _reused(self, part: Range) -> bytes | None:
        size, digest, is_trusted = self._known.get(part.index, (-1, b"", False))
        if size != part.size:
            return None
        if not is_trusted:
            try:
                check_digest(self._stager.target, self._path, part, digest)
            except CopyError:
                return None
        self._stager.progress.reused(part.size)
        return digest

    def _finish(self) -> None:
        stager = self._stager
        writer = stager.target.create(self._path, self._file, self._file.origin.size)
        try:
            writer.finish()
        finally:
            writer.close()
        digest = file_digest(self._digests)
        stager.journal.add([JournalEntry(self._guid, self._path, self._file.origin.size, digest)])
        stager.file_sets.staged([StagedFile(self._file, digest, self._file.origin.size)])
