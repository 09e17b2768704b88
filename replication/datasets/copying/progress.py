"""Counts of a running copy, for progress bars, metrics and the summary."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from replication.log import redact

_FAILURES_KEPT = 1000
_RATE_OVER_S = 10.0


@dataclass
class CopyCounts:
    """What a copy did.

    Attributes:
        files_listed: that needed copying.
        bytes_listed: the size of these files.
        bytes_copied: that were read and written, those of repeated attempts included.
        bytes_reused: that an earlier run had staged.
        files_reused: files that an earlier run had staged whole.
        files_published: that are in place, durable.
        file_sets_published: file sets that are in place, durable.
        skipped: files that were not copied and need not be, by reason.
        failures: files with the reason why they failed; the first 1,000.
        failed: how many failed.
        deleted: files of the target that were removed.
        waiting: files that are staged and not published, since another one of their file set failed.
    """

    files_listed: int = 0
    bytes_listed: int = 0
    bytes_copied: int = 0
    bytes_reused: int = 0
    files_reused: int = 0
    files_published: int = 0
    file_sets_published: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    failed: int = 0
    deleted: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class ProgressView:
    """Where a copy is.

    Attributes:
        counts: what it has done by now.
        is_listing: more files may be found, so nobody knows how much is left.
        bytes_done: that were copied or reused.
        bytes_per_s: over the last seconds.
        left_s: the expected time left; None while that is not known.
        seconds: since the begin.
    """

    counts: CopyCounts
    is_listing: bool
    bytes_done: int
    bytes_per_s: float
    left_s: float | None
    seconds: float


class CopyProgress:
    """Counts from several threads. ``told`` is called with each path that failed, and why."""

    def __init__(self) -> None:
        self.counts = CopyCounts()
        self.told: Callable[[str, str], None] = lambda path, reason: None
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._is_listing = True
        self._recent: deque[tuple[float, int]] = deque([(self._began, 0)], maxlen=64)

    def listed(self, files: int, size: int) -> None:
        """Files that need copying."""
        with self._lock:
            self.counts.files_listed += files
            self.counts.bytes_listed += size

    def listing_ended(self) -> None:
        """All files have been found."""
        self._is_listing = False

    def moved(self, size: int) -> None:
        """Bytes that were copied."""
        with self._lock:
            self.counts.bytes_copied += size

    def reused(self, size: int, files: int = 0) -> None:
        """Bytes that need not be copied, since an earlier run did it; of whole files, or of a range."""
        with self._lock:
            self.counts.bytes_reused += size
            self.counts.files_reused += files

    def published(self, files: int) -> None:
        """A file set that is in place."""
        with self._lock:
            self.counts.files_published += files
            self.counts.file_sets_published += 1

    def skipped(self, reason: str) -> None:
        """A file that need not be copied."""
        with self._lock:
            self.counts.skipped[reason] = self.counts.skipped.get(reason, 0) + 1

    def failed(self, path: str, reason: str) -> None:
        """A file that could not be copied or published."""
        reason = redact(reason)  # drivers quote addresses
        with self._lock:
            if path in self.counts.failures:
                return
            self.counts.failed += 1
            if len(self.counts.failures) < _FAILURES_KEPT:
                self.counts.failures[path] = reason
        self.told(path, reason)

    def waiting(self, files: int) -> None:
        """Files of a file set that is not published, since one of it failed."""
        with self._lock:
            self.counts.waiting += files

    def deleted(self) -> None:
        """A file of the target that was removed."""
        with self._lock:
            self.counts.deleted += 1

    def view(self) -> ProgressView:
        """Where the copy is now."""
        now = time.monotonic()
        with self._lock:
            counts = self.counts
            done = counts.bytes_copied + counts.bytes_reused
            self._recent.append((now, counts.bytes_copied))
            while len(self._recent) > 2 and now - self._recent[0][0] > _RATE_OVER_S:
                self._recent.popleft()
            began, before = self._recent[0]
            rate = (counts.bytes_copied - before) / (now - began) if now > began else 0.0
            left_s = max(counts.bytes_listed - done, 0) / rate if rate > 0 and not self._is_listing else None
            seen = replace(counts, skipped=dict(counts.skipped))
            return ProgressView(seen, self._is_listing, done, rate, left_s, now - self._began)
