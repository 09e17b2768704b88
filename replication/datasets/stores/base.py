"""The protocol of a store: a tree of files below one root.

All paths are :class:`RelativePath`, so none leaves the root. A store is safe for threads. Its methods raise OSError or
the errors of its driver; :func:`is_temporary` tells which may go away by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from replication.core.copying.attributes import EntryKind as EntryKind
from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.core.copying.ranges import Range
from replication.errors import ChangedFileError, CopyError, UnsafeNameError


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder; ``attributes`` of a folder have size 0.

    A link and a special file have a ``path`` only. A name that is refused has the reason, and a path for people only.
    An archive that is a folder has its own ``path``, which filters may exclude, too.
    """

    kind: EntryKind
    attributes: FileAttributes | None
    refused: str = ""
    path: RelativePath = ROOT


@dataclass(frozen=True, slots=True)
class StoreTraits:
    """What a store can do.

    Attributes:
        is_local: files of this host.
        writes_ranges: ranges of a file may be written in any order and by several threads.
        keeps_times: a file can be given a modification time.
        keeps_permissions: a file can be given mode bits, owner and group.
        mode_bits: those that it keeps.
        has_cheap_status: one file's attributes cost no more than its share of a listing.
        moves_folders: a folder is moved in one step that others see whole.
        moves_by_copying: a file is moved by a copy and a removal.
        is_secure: what goes there is encrypted on its way, or stays on this host.
        precision_ns: of its times.
        threads: that it serves well at once.
        batch_bytes: of whole small files that are best written in one call; 0 if each has its own.
    """

    is_local: bool = False
    writes_ranges: bool = False
    keeps_times: bool = False
    keeps_permissions: bool = False
    mode_bits: int = 0o7777
    has_cheap_status: bool = False
    moves_folders: bool = False
    moves_by_copying: bool = False
    is_secure: bool = True
    precision_ns: int = 1_000_000_000
    threads: int = 8
    batch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TreeChanges:
    """What differs between a tree and an older snapshot of it; nothing else does.

    Attributes:
        folders: those in which a name is new or gone, or a file is another; some may be gone. None is in ``new``.
        new: what is new under its name, be it made or renamed, each with all below it.
    """

    folders: frozenset[RelativePath]
    new: frozenset[RelativePath]

    @classmethod
    def of(cls, changed: Iterable[tuple[str, bool]]) -> TreeChanges:
        """Of paths that differ, and whether each is new. One that is refused is met where its folder is listed."""
        folders, new = set[RelativePath](), set[RelativePath]()
        for text, is_new in changed:
            try:
                path = RelativePath(text)
            except UnsafeNameError:
                folders.add(_safe_above(text))
                continue
            folders.add(path.parent)
            if is_new:
                new.add(path)
        return cls(frozenset(path for path in folders if new.isdisjoint(path.with_folders())), frozenset(new))


def _safe_above(text: str) -> RelativePath:
    """The deepest folder above a path that is refused, which is not."""
    while text := text.rpartition("/")[0]:
        with suppress(UnsafeNameError):
            return RelativePath(text)
    return ROOT


@runtime_checkable
class HasSnapshots(Protocol):
    """A store that may know what changed since a snapshot."""

    def changes_since(self, snapshot: str) -> TreeChanges:
        """What changed below the root. RequestError if the store cannot tell, or has no such snapshot."""


class FileReader(Protocol):
    """An open file of a store, for one thread."""

    def read(self, begin: int, size: int) -> bytes:
        """At most ``size`` bytes from ``begin`` on; fewer only at the end of the file."""

    def read_into(self, begin: int, view: memoryview) -> int:
        """Fill ``view`` from ``begin`` on; the number of bytes, fewer only at the end of the file."""

    def check_unchanged(self) -> None:
        """Raise ChangedFileError if the file is not what the listing had."""

    def close(self) -> None:
        """Release it."""


class FileWriter(Protocol):
    """A new file of a store. Closed without ``finish`` it may stay in part."""

    def write(self, begin: int, data: bytes | memoryview) -> None:
        """Write at ``begin``: anywhere if the store writes ranges, else where the last write ended."""

    def finish(self) -> None:
        """Make the file whole, with its attributes."""

    def close(self) -> None:
        """Release it."""


#: Where a small file is written, what it is, and its content.
SmallFile = tuple[RelativePath, CopyableFile, bytes]

#: Parts of an upload: the number of each, from 1 on, and what the store calls its content.
Parts = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file on its way to ``path`` in parts, which nobody sees there before it is completed.

    Attributes:
        path: where it will be.
        id: what the store calls it.
        token: the completed file tells it, so that it is known to be of this upload.
    """

    path: str
    id: str
    token: str


@dataclass(frozen=True, slots=True)
class SentUpload:
    """An upload all of whose parts the store has."""

    upload: Upload
    parts: Parts


class PartsWriter(Protocol):
    """Takes the bytes of one range of an upload, front to back."""

    def write(self, begin: int, data: bytes | memoryview) -> None:
        """Add bytes."""

    def flush(self) -> Parts:
        """Send what is left; the parts of the range, which the store keeps."""

    def close(self) -> None:
        """Release it."""


class Uploads(Protocol):
    """What a store can do that keeps the parts of a file apart and makes it whole, where it goes, in one step."""

    def takes(self, size: int, range_bytes: int) -> bool:
        """Whether a file of ``size`` bytes can be uploaded in ranges of that size."""

    def begin(self, path: RelativePath) -> Upload:
        """Begin an upload."""

    def open(self, upload: Upload, part: Range, size: int, range_bytes: int, *, checked: bool) -> PartsWriter:
        """Send a range, in place of what was sent of it before.

        ``checked``: the store compares what it has with a digest of what was sent.
        """

    def parts(self, upload: Upload) -> Parts | None:
        """The parts that the store has; None if it does not know the upload, or has completed it."""

    def complete(self, sent: SentUpload) -> None:
        """Make the file whole, in place of one that may be there; it may be completed already.

        Raises:
            MissingFileError: the store has not, or no longer, what was sent.
        """

    def is_completed(self, upload: Upload, size: int) -> bool:
        """Whether what is at its path is the file of this upload, with that size."""

    def abort(self, upload: Upload) -> None:
        """Give an upload up, so that the store keeps none of its parts; one that is over is left as it is."""

    def found(self, path: RelativePath, since: datetime, until: datetime) -> list[Upload]:
        """The uploads to a path that began between two times, by the store's clock; without their tokens."""


class Store(Protocol):
    """Files below one root."""

    @property
    def url(self) -> str:
        """The address of the root, without a password."""

    @property
    def traits(self) -> StoreTraits:
        """What it can do."""

    @property
    def uploads(self) -> Uploads | None:
        """How it takes a file in parts that it makes whole in one step; None if it does not."""

    def boot(self) -> str:
        """An id that changes when the host restarts that has what was written and not synced."""

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        """The entries of one folder, streamed. FileNotFoundError if it does not exist."""

    def status(self, path: RelativePath) -> Entry | None:
        """What is at a path; None if nothing is."""

    def open(self, file: FileAttributes) -> FileReader:
        """Open a file for reading."""

    def create(self, path: RelativePath, file: CopyableFile, size: int) -> FileWriter:
        """A new file at ``path`` in an existing folder, in place of one that may be there.

        Args:
            path: where.
            file: for the attributes that it gets when it is finished.
            size: in bytes; -1 when unknown. A store that writes ranges keeps what is there of a file of that size.
        """

    def write_small(self, path: RelativePath, file: CopyableFile, data: bytes) -> None:
        """A whole new file in one call."""

    def write_batch(self, files: Sequence[SmallFile]) -> None:
        """Write several, of ``batch_bytes`` at most; if it fails, some may be there."""

    def read_batch(self, files: Sequence[FileAttributes]) -> list[bytes]:
        """The contents of several, of ``batch_bytes`` at most. ChangedFileError or OSError if one is not as listed."""

    def make_folder(self, path: RelativePath) -> None:
        """Make a folder and those above it that are missing."""

    def move(self, origin: RelativePath, destination: RelativePath) -> None:
        """Move a file, replacing one at ``destination``; or a folder, if nothing or an empty one is there."""

    def keep(self, path: RelativePath, kept: RelativePath) -> None:
        """Give a file a second name, or copy it; where the store can do neither, move it there."""

    def give_folder(self, path: RelativePath, like: FileAttributes) -> None:
        """Give a new folder the mode bits, owner and group of another, as far as the store has them."""

    def remove_files(self, paths: Sequence[RelativePath]) -> None:
        """Remove the files of these that exist."""

    def remove_folder(self, path: RelativePath) -> None:
        """Remove a folder and all in it, if it exists."""

    def remove_folder_if_empty(self, path: RelativePath) -> None:
        """Remove a folder that has nothing in it; nothing happens if it has, or does not exist."""

    def sync(self, paths: Iterable[RelativePath]) -> None:
        """Make files and folders durable: content, attributes and, of a folder, its names."""

    def sync_all(self) -> None:
        """Make everything that was written durable."""

    def reread(self, path: RelativePath, begin: int, size: int) -> bytes:
        """What the store has at a place, past the caches of this host."""

    def close(self) -> None:
        """Close its connections."""

    def __enter__(self) -> Store:
        """The store itself."""

    def __exit__(self, *_: object) -> None:
        """Close it."""


SYNCED_ONE_BY_ONE = 32  # more paths are made durable by one sync of the whole file system


def make_durable(store: Store, paths: Collection[RelativePath], *, may_be_gone: bool = False) -> None:
    """Make files and folders durable, each, or by one sync of everything if they are many."""
    if len(paths) > SYNCED_ONE_BY_ONE:
        with suppress(NotImplementedError):  # macOS has none
            return store.sync_all()
    store.sync([path for path in paths if not may_be_gone or store.status(path) is not None])


def read_whole(store: Store, file: FileAttributes) -> bytes:
    """A file that fits in memory. ChangedFileError if it is not what the listing had."""
    with closing(store.open(file)) as reader:
        data = reader.read(0, file.size + 1)
        if len(data) != file.size:
            raise ChangedFileError(f"{file.path} changed while it was copied", "It is copied by the next run")
        reader.check_unchanged()
    return data


_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def is_temporary(error: BaseException) -> bool:
    """Whether a failed call may succeed when it is repeated."""
    if isinstance(error, CopyError):
        return error.retryable
    return isinstance(error, Exception) and not isinstance(error, (*_FINAL, AssertionError, TypeError))
