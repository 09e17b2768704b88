"""Copies whole files and ranges into the staging folder: by threads of this process or by tasks of Spark, same code.

Only a :class:`CopyItem` travels to whoever copies, which opens the source and the target itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.conversions import Conversion, applied
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range, file_digest, ranges_of
from replication.datasets.copying.faults import is_full
from replication.datasets.copying.throttle import CopyThrottle
from replication.datasets.copying.transfer import (
    Moved,
    check_digest,
    check_file,
    copy_converted,
    copy_range,
    copy_stream,
    digest_of,
    digest_of_content,
    read_small,
)
from replication.datasets.stores.base import Parts, Store, Upload, is_temporary, make_durable
from replication.error_text import one_line
from replication.errors import ChangedFileError
from replication.retries import exponential

SMALL_BYTES_MAX = 4 << 20
_BATCH_FILES_MAX = 1000
_WAIT_MIN_S, _WAIT_MAX_S = 0.2, 30.0
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class CopyItem:
    """A file, where it is staged, and its range that is copied; None for the whole file.

    It is staged in an existing folder, or, with an ``upload``, as parts of that.
    """

    file: CopyableFile
    staged: RelativePath
    part: Range | None = None
    upload: Upload | None = None


@dataclass(frozen=True, slots=True)
class CopiedItem:
    """What became of an item.

    Attributes:
        digest: in hexadecimal, of the range or the file as it is staged.
        size: in bytes, of the same.
        error: why it failed.
        attempts: that failed; 0 if it is copied.
        is_full: the target has no space left.
        parts: of an upload, that the range was sent as.
    """

    digest: str = ""
    size: int = 0
    error: str = ""
    attempts: int = 0
    is_full: bool = False
    parts: Parts = ()

    @property
    def has_failed(self) -> bool:
        """Whether it is not copied."""
        return self.attempts > 0

    @classmethod
    def of(cls, error: Exception, attempts: int) -> CopiedItem:
        """The failure with an error, after ``attempts`` attempts."""
        return cls(error=getattr(error, "what", "") or one_line(error), attempts=attempts, is_full=is_full(error))


class ItemCopier(Protocol):
    """Copies items, by threads or by Spark tasks."""

    @property
    def parallel(self) -> int:
        """The maximum number of parallel calls."""

    def __call__(self, items: Sequence[CopyItem]) -> Iterable[CopiedItem]:
        """Copy them in order; fewer outcomes than items once the copy is stopped."""


class FileCopier:
    """Copies items one after the other, each with retries.

    ``stopped`` ends the waits between attempts, and the copy: after the item at hand, or within it if there is a limit.
    """

    def __init__(
        self,
        stores: tuple[Store, Store],
        configuration: CopyConfiguration,
        throttle: CopyThrottle,
        moved: Moved,
        stopped: threading.Event,
        parallel: int = 1,
    ) -> None:
        self._source, self._target = stores
        self._configuration, self._throttle, self._moved = configuration, throttle, moved
        self._stopped, self.parallel = stopped, parallel

    def __call__(self, items: Sequence[CopyItem]) -> Iterator[CopiedItem]:
        """Copy items; what they wrote is not durable on return unless files are verified."""
        traits = self._target.traits
        if self._configuration.verify and (traits.is_local or traits.batch_bytes) and len(items) > 1:
            yield from self._verified(items)
            return
        for batch in self._batches(items):
            if len(batch) > 1 and not self._stopped.is_set() and (together := self._batch(batch)):
                yield from together
                continue
            for item in batch:
                if self._stopped.is_set():
                    return
                copied = self._tried(item)
                if copied.has_failed and self._stopped.is_set():  # it was given up for that
                    return
                yield copied

    def _batches(self, items: Sequence[CopyItem]) -> Iterator[list[CopyItem]]:
        """Small files that a store best gives or takes in one call; every other item alone."""
        most = max(store.traits.batch_bytes for store in (self._source, self._target))
        batch, total = list[CopyItem](), 0
        for item in items:
            size = item.file.origin.size
            is_small = item.part is None and size < most and not conversions_of(item.file, self._configuration)
            if batch and not (is_small and total + size <= most and len(batch) < _BATCH_FILES_MAX):
                yield batch
                batch, total = [], 0
            batch.append(item)
            total += size if is_small else most
        if batch:
            yield batch

    def _batch(self, items: Sequence[CopyItem]) -> list[CopiedItem]:
        """Copy small files in one call; none if that fails, as each then does or does not on its own."""
        try:
            self._throttle.take(sum(item.file.origin.size for item in items))
            contents = self._source.read_batch([item.file.origin for item in items])
            pairs = zip(items, contents, strict=True)
            self._target.write_batch([(item.staged, item.file, data) for item, data in pairs])
            copied = [
                CopiedItem(digest_of_content(data, self._configuration.range_bytes), len(data)) for data in contents
            ]
            self._moved(sum(map(len, contents)))
            return [self._checked(item, found.size, found.digest) for item, found in zip(items, copied, strict=True)]
        except Exception:  # each driver has its own errors
            return []

    def _verified(self, items: Sequence[CopyItem]) -> Iterator[CopiedItem]:
        """Copy items, and read them back after one sync for all; what differs is copied again."""
        unverified = replace(self._configuration, verify=False)
        stores = (self._source, self._target)
        copied = list(FileCopier(stores, unverified, self._throttle, self._moved, self._stopped)(items))
        staged = [item.staged for item, found in zip(items, copied, strict=False) if not found.has_failed]
        failure = attempted(lambda: make_durable(self._target, staged), self._configuration.attempts, self._stopped)
        for item, found in zip(items, copied, strict=False):  # fewer are copied once it is stopped
            if found.has_failed or (failure is None and self._is_there(item, found)):
                yield found
            else:
                yield failure or self._tried(item)

    def _is_there(self, item: CopyItem, copied: CopiedItem) -> bool:
        try:
            return digest_of(self._target, item.staged, copied.size, self._configuration.range_bytes) == copied.digest
        except Exception:  # each driver has its own errors
            return False

    def _tried(self, item: CopyItem) -> CopiedItem:
        def attempt() -> CopiedItem:
            if item.part is None:
                return self._whole(item)
            if item.upload is not None:
                return self._sent(item, item.part, item.upload)
            return self._range(item, item.part)

        return attempted(attempt, self._configuration.attempts, self._stopped)

    def _whole(self, item: CopyItem) -> CopiedItem:
        if conversions_of(item.file, self._configuration):
            return self._converted(item)
        return self._small(item) if item.file.origin.size <= SMALL_BYTES_MAX else self._stream(item)

    def _small(self, item: CopyItem) -> CopiedItem:
        data = read_small(self._source, item.file, self._throttle)
        self._target.write_small(item.staged, item.file, data)
        self._moved(len(data))
        return self._checked(item, len(data), digest_of_content(data, self._configuration.range_bytes))

    def _checked(self, item: CopyItem, size: int, digest: str) -> CopiedItem:
        if self._configuration.verify:
            check_file(self._target, item.staged, size, self._configuration.range_bytes, digest)
        return CopiedItem(digest, size)

    def _converted(self, item: CopyItem) -> CopiedItem:
        conversions, range_bytes = conversions_of(item.file, self._configuration), self._configuration.range_bytes
        with closing(self._target.create(item.staged, item.file, -1)) as writer:
            size, digest = copy_converted(self._source, writer, item.file, conversions, range_bytes, self._throttle)
            writer.finish()
        self._moved(item.file.origin.size)
        return self._checked(item, size, digest)

    def _stream(self, item: CopyItem) -> CopiedItem:
        file = item.file
        parts = ranges_of(file.origin.size, self._configuration.range_bytes)
        with closing(self._target.create(item.staged, file, -1)) as writer:
            digests = copy_stream(self._source, writer, file, parts, self._throttle, self._moved)
            writer.finish()
        return self._checked(item, file.origin.size, file_digest(digests))

    def _range(self, item: CopyItem, part: Range) -> CopiedItem:
        with closing(self._source.open(item.file.origin)) as reader:
            with closing(self._target.create(item.staged, item.file, item.file.origin.size)) as writer:
                digest = copy_range(reader, writer, item.file, part, self._throttle, self._moved)
            reader.check_unchanged()
        if self._configuration.verify:
            self._target.sync([item.staged])
            check_digest(self._target, item.staged, part, digest)
        return CopiedItem(digest.hex(), part.size)

    def _sent(self, item: CopyItem, part: Range, upload: Upload) -> CopiedItem:
        conf, size, uploads = self._configuration, item.file.origin.size, self._target.uploads
        assert uploads is not None, "only a store that takes uploads is given one"
        with closing(self._source.open(item.file.origin)) as reader:
            with closing(uploads.open(upload, part, size, conf.range_bytes, checked=conf.verify)) as sender:
                digest = copy_range(reader, sender, item.file, part, self._throttle, self._moved)
                parts = sender.flush()
            reader.check_unchanged()
        return CopiedItem(digest.hex(), part.size, parts=parts)


def attempted(attempt: Callable[[], _R], attempts: int, stopped: threading.Event) -> _R | CopiedItem:
    """The result of an attempt, repeated while its error may go away; else the failure.

    ``stopped`` ends the waits between attempts.
    """
    failures = 0
    while True:
        try:
            return attempt()
        except Exception as error:  # each driver has its own errors
            failures += 1
            found = CopiedItem.of(error, failures)
            again = is_temporary(error) and not isinstance(error, ChangedFileError) and not found.is_full
            if not again or failures >= attempts or stopped.is_set():
                return found
            stopped.wait(exponential(_WAIT_MIN_S, _WAIT_MAX_S)(failures))


def conversions_of(file: CopyableFile, configuration: CopyConfiguration) -> tuple[Conversion, ...]:
    """The conversions that a file goes through."""
    return applied(file.origin.path, configuration.conversions) if configuration.conversions else ()
