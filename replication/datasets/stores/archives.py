"""A source in which tar and zip archives are folders, so that copying it unpacks them.

``a/day.tar.gz`` is the folder ``a/day``; a folder that holds all members of an archive is left out. An archive is read
into an unnamed temporary file of this host: once, or once more if it is copied after ``_OPEN_MAX`` others were listed.
Names of members are checked as any other names. Links and special files are skipped. An archive is refused whole if it
unpacks to far more than it is, or has a file and a folder of one name.
"""

from __future__ import annotations

import errno
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import IO, Any

from cachetools import LRUCache

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.converters.base import MEMBERS_MAX, UNREADABLE, ArchiveMember
from replication.datasets.converters.compression import check_ratio, gunzip, unzstd
from replication.datasets.converters.plugins import unpacker_of
from replication.datasets.stores.base import Entry, EntryKind, FileReader, Store, read_whole
from replication.errors import CopyError, UnsafeNameError

_PACKED = {".gz": gunzip, ".tgz": gunzip, ".zst": unzstd}
_OPEN_MAX = 16  # at least as many as threads copy by default
_PIECE = 1 << 20
_FOLDERS_BYTES_MAX, _FOLDER_BYTES = 1 << 30, 1000  # of memory: for all of an archive, and for each beside its path


@dataclass(slots=True)
class _Member:
    entry: Entry
    open: Callable[[], IO[bytes]] | None = None


@dataclass(slots=True)
class _Archive:
    """An archive as a tree: its folders, with their members by name; one reader at a time."""

    file: IO[bytes]
    folders: dict[str, dict[str, _Member]] = field(default_factory=lambda: {"": {}})
    refused: list[Entry] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class ArchivesStore:
    """A store whose archives are folders; for reading only. ``names`` are of converters that are unpackers."""

    def __init__(self, inner: Store, names: Sequence[str]) -> None:
        self._inner, self._names = inner, tuple(names)
        found = [(each, unpacker) for unpacker in map(unpacker_of, names) for each in unpacker.extensions]
        self._unpackers = dict(sorted(found, key=lambda each: len(each[0]), reverse=True))
        self._lock = threading.Lock()
        self._archives: MutableMapping[RelativePath, _Archive] = LRUCache(_OPEN_MAX)  # its readers keep one open
        self._origins: dict[RelativePath, FileAttributes] = {}
        self.url = inner.url
        self.traits = replace(inner.traits, has_cheap_status=False)

    def __reduce__(self) -> tuple[type[ArchivesStore], tuple[Store, tuple[str, ...]]]:
        """Pickled without what it has opened."""
        return ArchivesStore, (self._inner, self._names)

    def __getattr__(self, name: str) -> Any:
        """What is not about archives is the inner store's."""
        return getattr(self._inner, name)

    def __enter__(self) -> ArchivesStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the archives and the inner store."""
        with self._lock:
            for archive in self._archives.values():
                archive.file.close()
            self._archives.clear()
        self._inner.close()

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        """The entries of one folder, of an archive too. CopyError if that archive is refused."""
        if (found := self._archive_of(folder)) is not None:
            archive, inside = found
            if inside not in archive.folders:
                raise FileNotFoundError(folder)
            yield from (member.entry for member in archive.folders[inside].values())
            yield from archive.refused if inside == "" else ()
            return
        for entry in self._inner.scan(folder):
            yield self._shown(entry)

    def status(self, path: RelativePath) -> Entry | None:
        if (found := self._archive_of(path.parent)) is not None:
            member = found[0].folders.get(found[1], {}).get(path.name)
            return member.entry if member is not None else None
        entry = self._inner.status(path)
        return self._shown(entry) if entry is not None else None

    def open(self, file: FileAttributes) -> FileReader:
        """Open a file, also within an archive."""
        found = self._archive_of(file.path.parent)
        if found is None:
            return self._inner.open(file)
        archive, inside = found
        member = archive.folders.get(inside, {}).get(file.path.name)
        if member is None or member.open is None:
            raise FileNotFoundError(file.path)
        return _MemberReader(member.open, archive.lock)

    def read_batch(self, files: Sequence[FileAttributes]) -> list[bytes]:
        return [read_whole(self, file) for file in files]

    def _shown(self, entry: Entry) -> Entry:
        file = entry.attributes
        if entry.kind is not EntryKind.FILE or file is None or (stem := self._stem(file.path)) is None:
            return entry
        is_taken = self._inner.status(stem) is not None
        with self._lock:
            is_taken = is_taken or self._origins.setdefault(stem, file).path != file.path
        if is_taken:
            return Entry(EntryKind.OTHER, None, f"{file.path} is not unpacked: there is another {stem}", file.path)
        return Entry(EntryKind.FOLDER, replace(file, path=stem, size=0), path=file.path)

    def _extension(self, path: RelativePath) -> str:
        """The longest one that makes it an archive; empty if none does."""
        fits = (each for each in self._unpackers if path.name.endswith(each) and len(path.name) > len(each))
        return next(fits, "")

    def _stem(self, path: RelativePath) -> RelativePath | None:
        extension = self._extension(path)
        return RelativePath(path.removesuffix(extension)) if extension else None

    def _archive_of(self, folder: RelativePath) -> tuple[_Archive, str] | None:
        """The archive that a folder lies in, and its path there; None if it is in none that a scan has shown."""
        at = folder
        while at:
            with self._lock:
                origin = self._origins.get(at)
            if origin is not None:
                return self._opened(at, origin), str(folder.relative_to(at))
            at = at.parent
        return None

    def _opened(self, folder: RelativePath, origin: FileAttributes) -> _Archive:
        with self._lock:
            if folder not in self._archives:
                self._archives[folder] = self._read(folder, origin)
            return self._archives[folder]

    def _read(self, folder: RelativePath, origin: FileAttributes) -> _Archive:
        spooled = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the archive
        try:
            seen = 0
            for piece in self._pieces(origin):
                seen = check_ratio(seen + len(piece), max(origin.size, 1))
                spooled.write(piece)
            spooled.seek(0)
            extension = self._extension(origin.path)
            return _tree(spooled, folder, origin, self._unpackers[extension].members(spooled))
        except BaseException as error:
            with suppress(OSError):  # it may write what it has yet
                spooled.close()
            if isinstance(error, UNREADABLE):
                what = f"{origin.path} is not an archive that can be read: {error}"
                raise CopyError(what, "Look at the source") from None
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                where = f"no space is left in {tempfile.gettempdir()} to unpack {origin.path}"
                raise CopyError(where, "Make room there, or set TMPDIR to a folder that has it") from None
            raise

    def _pieces(self, origin: FileAttributes) -> Iterator[bytes]:
        with closing(self._inner.open(origin)) as reader:
            pieces: Iterator[bytes] = _whole(reader)
            for extension, unpack in _PACKED.items():
                if origin.path.endswith(extension):
                    pieces = unpack(pieces, origin.size)
            yield from pieces
            reader.check_unchanged()


def _tree(file: IO[bytes], folder: RelativePath, origin: FileAttributes, members: Iterator[ArchiveMember]) -> _Archive:
    """The members as folders, their names checked. CopyError if they are too many, too large, or hide each other."""
    checked: list[tuple[RelativePath, ArchiveMember]] = []
    refused: list[Entry] = []
    total = 0
    for count, found in enumerate(members):
        if count >= MEMBERS_MAX:
            raise CopyError(f"{origin.path} has more than {MEMBERS_MAX:,} members", "Exclude it")
        total = check_ratio(total + max(found.size, 0), max(origin.size, 1))
        try:
            text = found.name.removeprefix("./").rstrip("/")
            name = ROOT if found.is_folder and text == "." else RelativePath(text)
        except UnsafeNameError as error:
            shown = folder.shown_child(found.name)
            refused.append(Entry(EntryKind.OTHER, None, f"{origin.path}: {error.what}", shown))
            continue
        if name and not found.is_folder:
            checked.append((name, found))
    archive, room = _Archive(file, refused=refused), _FOLDERS_BYTES_MAX
    top = _common_top([name for name, _ in checked])
    for name, found in checked:
        path = name.relative_to(top)
        new = takewhile(lambda each: each not in archive.folders, path.parent.with_folders())
        room -= sum(_FOLDER_BYTES + 2 * len(each) for each in new)
        if room < 0:
            raise CopyError(f"the members of {origin.path} are in too many folders, or too deep in them", "Exclude it")
        _add(archive, folder, path, found)
    if clash := [path for path in archive.folders if path and _is_file(archive, RelativePath(path))]:
        raise CopyError(f"{origin.path} has a file and a folder {clash[0]}", "Exclude it")
    return archive


def _add(archive: _Archive, folder: RelativePath, name: RelativePath, found: ArchiveMember) -> None:
    path = name.below(folder)
    attributes = FileAttributes(path, found.size, found.time_ns, permission=found.mode)
    kind = EntryKind.FILE if found.open is not None else EntryKind.LINK if found.is_link else EntryKind.OTHER
    entry = Entry(kind, attributes if found.open is not None else None, path=path)
    at = name.parent
    archive.folders.setdefault(str(at), {})[name.name] = _Member(entry, found.open)  # the last of one name counts
    while at:
        below, at = at, at.parent
        kept = archive.folders.setdefault(str(at), {})
        kept.setdefault(below.name, _Member(Entry(EntryKind.FOLDER, FileAttributes(below.below(folder), 0, None))))
        archive.folders.setdefault(str(below), {})


def _is_file(archive: _Archive, path: RelativePath) -> bool:
    member = archive.folders[str(path.parent)].get(path.name)
    return member is not None and member.entry.kind is not EntryKind.FOLDER


def _common_top(names: Sequence[RelativePath]) -> RelativePath:
    """The folder at the top that all members are in; the root if there is none."""
    tops = {name.partition("/")[0] if "/" in name else "" for name in names}
    return RelativePath(tops.pop()) if len(tops) == 1 else ROOT


def _whole(reader: FileReader) -> Iterator[bytes]:
    at = 0
    while data := reader.read(at, _PIECE):
        yield data
        at += len(data)


class _MemberReader:
    """A member of an archive, front to back; others of the archive wait while a piece of it is read."""

    def __init__(self, open: Callable[[], IO[bytes]], lock: threading.Lock) -> None:
        self._open, self._lock = open, lock
        self._file: IO[bytes] | None = None
        self._at = 0

    def read(self, begin: int, size: int) -> bytes:
        with self._lock:
            try:
                if self._file is None or begin < self._at:
                    self._file, self._at = self._open(), 0
                while self._at < begin and (skipped := len(self._file.read(min(_PIECE, begin - self._at)))):
                    self._at += skipped
                data = self._file.read(size)
            except UNREADABLE as error:
                raise CopyError(f"a member of an archive cannot be read: {error}", "Look at the source") from None
            self._at += len(data)
            return data

    def read_into(self, begin: int, view: memoryview) -> int:
        data = self.read(begin, len(view))
        view[: len(data)] = data
        return len(data)

    def check_unchanged(self) -> None:
        """The archive was read whole before."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
