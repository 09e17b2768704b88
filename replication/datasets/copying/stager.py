"""The threads that stage: each takes ranges and files out of the window, has them copied, and fills the journal.

Bounds: as many threads as the carrier serves at once; each waits for one range, one large file or one split.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range, file_digest, ranges_of
from replication.datasets.copying.copier import (
    SMALL_BYTES_MAX,
    CopiedItem,
    CopyItem,
    ItemCopier,
    attempted,
    conversions_of,
)
from replication.datasets.copying.faults import no_space
from replication.datasets.copying.file_sets import FileSets, StagedFile
from replication.datasets.copying.journal import CopyJournal, JournaledRange, JournalEntry, JournalKey
from replication.datasets.copying.progress import CopyProgress
from replication.datasets.copying.staging import Staging
from replication.datasets.copying.transfer import check_digest, digest_of
from replication.datasets.copying.uploading import begun
from replication.datasets.copying.window import CopyWindow
from replication.datasets.stores.base import Parts, SentUpload, Store, Upload, Uploads
from replication.log import get

_log = get(__name__)


class Stager:
    """Has what the window gives copied into the staging folder."""

    def __init__(
        self,
        target: Store,
        configuration: CopyConfiguration,
        staging: Staging,
        journal: CopyJournal,
        window: CopyWindow,
        file_sets: FileSets,
        progress: CopyProgress,
        carry: ItemCopier,
    ) -> None:
        self.target, self.configuration = target, configuration
        self.staging, self.journal = staging, journal
        self.window, self.file_sets, self.progress, self._carry = window, file_sets, progress, carry
        self._stopped = threading.Event()
        self.error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"copy-{n}", daemon=True) for n in range(carry.parallel)
        ]

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
            while not self._stopped.is_set() and (task := self.window.take()) is not None:
                if isinstance(task, tuple):
                    ranged, part = task
                    assert isinstance(ranged, _RangedCopy)
                    ranged.copy(part)
                elif len(task) > 1:
                    self._whole(task)
                else:
                    try:
                        self._alone(task[0])
                    finally:
                        self.window.begun()
        except BaseException as error:
            self.error = self.error or error
            self.window.stop()

    def _alone(self, file: CopyableFile) -> None:
        if not self._is_ranged(file):
            self._whole([file])
        elif (found := self.reused(file)) is not None:
            self.file_sets.staged([found])
        elif (copy := self._ranged(file)) is not None:
            self.window.share(copy)

    def _is_ranged(self, file: CopyableFile) -> bool:
        if file.origin.size <= SMALL_BYTES_MAX or conversions_of(file, self.configuration):
            return False
        return self.target.traits.writes_ranges or self._uploads_of(file) is not None

    def _uploads_of(self, file: CopyableFile) -> Uploads | None:
        uploads = self.target.uploads
        takes = uploads is not None and uploads.takes(file.origin.size, self.configuration.range_bytes)
        return uploads if takes else None

    def _ranged(self, file: CopyableFile) -> _RangedCopy | None:
        """A file whose ranges can be copied; None if it could not be begun, which is told then."""
        if (uploads := self._uploads_of(file)) is None:
            if (path := self.made_path(file)) is None:
                return None
            there = attempted(lambda: self.target.status(path), self.configuration.attempts, self._stopped)
            if isinstance(there, CopiedItem):
                self.failed(file, there)
                return None
            if there is None:
                self.journal.forget([path])  # its ranges are gone with it
            known = self.journal.ranges(self.key_of(file))
            self.journal.begin([self.key_of(file)])
            return _RangedCopy(self, file, path, known)

        def attempt() -> tuple[Upload, dict[int, JournaledRange]]:
            return begun(uploads, self.journal, self.key_of(file), file.destination)

        found = attempted(attempt, self.configuration.attempts, self._stopped)
        if isinstance(found, CopiedItem):
            self.failed(file, found)
            return None
        upload, known = found
        return _RangedCopy(self, file, file.destination, known, upload)

    def _whole(self, files: Sequence[CopyableFile]) -> None:
        staged: list[StagedFile] = []
        entries: list[JournalEntry] = []
        items: list[CopyItem] = []
        for file in files:
            if (found := self.reused(file)) is not None:
                staged.append(found)
            elif (path := self.made_path(file)) is not None:
                items.append(CopyItem(file, path))
        self.journal.begin(self.key_of(item.file) for item in items)
        for item, copied in zip(items, self._carry(items), strict=False):  # fewer are copied once it is stopped
            if copied.has_failed:
                self.failed(item.file, copied)
                continue
            staged.append(StagedFile(item.file, copied.digest, copied.size))
            key = JournalKey.of(item.file, item.staged, self.configuration)
            entries.append(JournalEntry(key, copied.size, copied.digest))
        self.journal.add(entries)
        self.file_sets.staged(staged)

    def carried(self, item: CopyItem) -> CopiedItem | None:
        """What became of one item; None if the copy is stopped."""
        return next(iter(self._carry([item])), None)

    def key_of(self, file: CopyableFile) -> JournalKey:
        """What the journal knows a file by."""
        return JournalKey.of(file, self.staging.path_of(file), self.configuration)

    def made_path(self, file: CopyableFile) -> RelativePath | None:
        """Where a file is staged, with its folder made; None if that failed, which is told then."""
        path = self.staging.path_of(file)
        if (failure := self.tried(lambda: self.staging.make_folder_for(file, path))) is not None:
            self.failed(file, failure)
            return None
        return path

    def tried(self, attempt: Callable[[], None]) -> CopiedItem | None:
        """Do something, again if its error may go away; the failure if there is one."""
        return attempted(attempt, self.configuration.attempts, self._stopped)

    def reused(self, file: CopyableFile) -> StagedFile | None:
        """A file that an earlier run staged and did not publish; None if there is none that is good.

        With ``verify`` it is read back: that run may have run without.
        """
        if self.journal.is_empty:
            return None
        key = self.key_of(file)
        if (entry := self.journal.find(key)) is None:
            return None
        staged, is_trusted = entry
        found = attempted(lambda: self.target.status(key.path), self.configuration.attempts, self._stopped)
        if isinstance(found, CopiedItem) or found is None:  # if the store does not tell, the file is copied anew
            return None
        if found.attributes is None or found.attributes.size != staged.size:
            return None
        if not (is_trusted and not self.configuration.verify) and not self._is_there(staged):
            self.journal.forget([key.path])
            return None
        self.progress.reused(staged.size, files=1)
        _log.info("staged_file_reused", file=file.destination, guid=file.guid)
        return StagedFile(file, staged.digest, staged.size)

    def _is_there(self, staged: JournalEntry) -> bool:
        conf = self.configuration

        def digest() -> str:
            self.target.sync([staged.key.path])  # else the page cache would answer
            return digest_of(self.target, staged.key.path, staged.size, conf.range_bytes)

        return attempted(digest, conf.attempts, self._stopped) == staged.digest  # what cannot be read is copied anew

    def failed(self, file: CopyableFile, copied: CopiedItem) -> None:
        """A file failed. A full target ends the run with NoSpaceError, since every other file would fail, too."""
        if copied.is_full:
            raise no_space(self.target.url, self.staging.root)
        self.progress.failed(file.destination, copied.error)
        self.file_sets.failed(file, copied.error)
        _log.warning("copy_failed", file=file.destination, error=copied.error, attempts=copied.attempts)


class _RangedCopy:
    """A large file whose ranges several threads copy at once; the last one finishes it."""

    def __init__(
        self,
        stager: Stager,
        file: CopyableFile,
        path: RelativePath,
        known: Mapping[int, JournaledRange],
        upload: Upload | None = None,
    ) -> None:
        self._stager, self._file, self._path = stager, file, path
        self._known, self._upload = known, upload
        self._key = stager.key_of(file)
        self._parts = ranges_of(file.origin.size, stager.configuration.range_bytes)
        self._digests: list[bytes] = [b""] * len(self._parts)
        self._lock = threading.Lock()
        self._failed = False
        self._left = len(self._parts)
        self._sent: list[tuple[int, str]] = []
        self._waiting = iter(self._parts)

    def next_range(self) -> Range | None:
        return None if self._failed else next(self._waiting, None)

    def copy(self, part: Range) -> None:
        """Copy one range; the last one that is done finishes the file, the first that fails gives it up."""
        if (found := self._reused(part) or self._copied(part)) is None:
            return
        digest, sent = found
        with self._lock:
            self._digests[part.index] = digest
            self._sent += sent
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._finish()

    def _copied(self, part: Range) -> tuple[bytes, Parts] | None:
        stager = self._stager
        copied = stager.carried(CopyItem(self._file, self._path, part, self._upload))
        if copied is None:
            return None
        if copied.has_failed:
            self._give_up(copied)
            return None
        digest = bytes.fromhex(copied.digest)
        stager.journal.add_range(self._key, part.index, part.size, digest, copied.parts)
        return digest, copied.parts

    def _give_up(self, copied: CopiedItem) -> None:
        with self._lock:
            was, self._failed = self._failed, True
        if not was:
            self._stager.failed(self._file, copied)

    def _reused(self, part: Range) -> tuple[bytes, Parts] | None:
        known = self._known.get(part.index)
        if known is None or known.size != part.size:
            return None
        if not known.is_trusted or (self._stager.configuration.verify and self._upload is None):
            try:
                self._stager.target.sync([self._path])
                check_digest(self._stager.target, self._path, part, known.digest)
            except Exception:  # each driver has its own errors
                return None
        self._stager.progress.reused(part.size)
        return known.digest, known.parts

    def _finish(self) -> None:
        stager = self._stager
        if self._upload is not None:
            sent = SentUpload(self._upload, tuple(sorted(self._sent)))
            digest = file_digest(self._digests)
            stager.file_sets.staged([StagedFile(self._file, digest, self._file.origin.size, sent)])
            return
        if (failure := stager.tried(self._give_attributes)) is not None:
            self._give_up(failure)
            return
        digest = file_digest(self._digests)
        stager.journal.add([JournalEntry(self._key, self._file.origin.size, digest)])
        stager.file_sets.staged([StagedFile(self._file, digest, self._file.origin.size)])

    def _give_attributes(self) -> None:
        with closing(self._stager.target.create(self._path, self._file, self._file.origin.size)) as writer:
            writer.finish()
