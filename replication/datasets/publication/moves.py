"""Plans the moves of a file set, as few as possible, and makes them. A move that was made is found made.

A file set whose folder the target does not have is one move of that folder.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TypeVar

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.copying.file_sets import StagedFile
from replication.datasets.copying.transfer import digest_of
from replication.datasets.finders.globbed import TABLE_MARKS
from replication.datasets.stores.base import Entry, EntryKind, SentUpload, Store, Uploads
from replication.errors import ChangedFileError, CopyError, MissingFileError

_LISTED_MIN = 16  # files of one folder; the store is asked for each of fewer ones
_LISTED_PER_FILE = 10
_READ_BYTES = 64 << 20
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Listed:
    """What a path of the target had when it was listed: a file of that size and time, or no file (None)."""

    size: int | None = None
    timestamp_ns: int | None = None

    @classmethod
    def of(cls, file: FileAttributes | None) -> Listed:
        """What was listed; None for no file."""
        return cls() if file is None else cls(file.size, file.timestamp_ns)

    def is_changed(self, there: Entry | None) -> bool:
        """Whether a path has something else by now. A file that is gone is no change: nothing of it can be lost."""
        if there is None:
            return False
        return there.kind is not EntryKind.FILE or Listed.of(there.attributes) != self


#: Tells what a path of the target had when it was listed.
Expected = Callable[[RelativePath], Listed]


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A file of a move.

    Attributes:
        name: its path below the move's.
        size: in bytes.
        digest: of its content.
        listed: what its destination must still have before the move; None replaces whatever is there.
    """

    name: str
    size: int
    digest: str
    listed: Listed | None = None


@dataclass(frozen=True, slots=True)
class MovedFolder:
    """A new folder: its path below the move's, or the target's, and the mode bits, owner and group that it gets."""

    name: str
    permission: int | None
    user: str
    group: str


@dataclass(frozen=True, slots=True)
class Move:
    """From a staged path to its destination; a file, or a folder with these files and folders.

    A file that was uploaded is not moved: its upload, to the destination, is completed. ``source`` and ``read_ns`` are
    the path and the time of the file that was read, where what is moved gets the time of the move.
    """

    origin: str
    destination: str
    is_folder: bool
    files: tuple[MovedFile, ...]
    folders: tuple[MovedFolder, ...] = ()
    sent: SentUpload | None = None
    source: str = ""
    read_ns: int | None = None


def plan_moves(
    files: Sequence[StagedFile], staged_root: RelativePath, is_there: Callable[[RelativePath], bool], *, folders: bool
) -> list[Move]:
    """The moves of one file set.

    ``is_there``: whether the target has a folder, or will have it when this is carried out. ``folders`` may be moved
    whole. Metadata of tables come last, since they name the other files.
    """
    whole: dict[RelativePath, list[StagedFile]] = {}
    moves: list[Move] = []
    tops: dict[RelativePath, RelativePath | None] = {}
    for each in sorted(files, key=lambda each: _rank(each.file.destination)):
        folder = each.file.destination.parent
        if folder not in tops:
            tops[folder] = _topmost_missing(folder, is_there) if folders else None
        top = tops[folder]
        if top is not None:
            whole.setdefault(top, []).append(each)
        else:
            moves.append(_move(each.file.destination, staged_root, [each], is_folder=False))
    moves = [_move(top, staged_root, found, is_folder=True) for top, found in whole.items()] + moves
    return sorted(moves, key=lambda move: _rank(move.destination))


def _rank(path: str) -> tuple[bool, bool, str]:
    """Of metadata, Iceberg's Avro files come before its JSON, and what has no extension after all."""
    _, dot, extension = path.rpartition("/")[2].rpartition(".")
    return (True, not dot, extension) if TABLE_MARKS.intersection(path.split("/")) else (False, False, "")


def _topmost_missing(folder: RelativePath, is_there: Callable[[RelativePath], bool]) -> RelativePath | None:
    top: RelativePath | None = None
    while folder and not is_there(folder):
        top, folder = folder, folder.parent
    return top


def _move(destination: RelativePath, staged_root: RelativePath, files: list[StagedFile], *, is_folder: bool) -> Move:
    moved = tuple(MovedFile(each.file.destination.relative_to(destination), each.size, each.digest) for each in files)
    sent = None if is_folder else files[0].sent
    return Move("" if sent else destination.below(staged_root), destination, is_folder, moved, (), sent)


def guarded(move: Move, expected: Expected) -> Move:
    """A move that is not made when its files' destinations have something else than was listed."""
    destination = RelativePath(move.destination)
    files = (replace(file, listed=expected(RelativePath(file.name).below(destination))) for file in move.files)
    return replace(move, files=tuple(files))


def dated(moves: Sequence[Move], files: Sequence[StagedFile]) -> list[Move]:
    """Moves of single files, with the path and the time of what was read."""
    origins = {each.file.destination: each.file.origin for each in files}
    found = ((move, origins[RelativePath(move.destination)]) for move in moves)
    return [replace(move, source=origin.path, read_ns=origin.timestamp_ns) for move, origin in found]


def check_unedited(source: Store, moves: Sequence[Move]) -> None:
    """Look, before an earlier run's moves are made, whether files were edited since they were read.

    Raises:
        ChangedFileError: one was. What is moved now is dated later than that, and would pass for the same.
    """
    for move in moves:
        found = source.status(RelativePath(move.source)) if move.read_ns is not None else None
        if found is not None and found.attributes is not None and found.attributes.timestamp_ns != move.read_ns:
            raise ChangedFileError(f"{move.source} was changed since it was copied", "The next run copies it anew")


def make_all(target: Store, moves: Sequence[Move], backup: RelativePath | None) -> None:
    """Make moves; they may have been made in part. Replaced files go to ``backup``, if there is one."""
    for _, alike in groupby(moves, lambda move: _rank(move.destination)):  # metadata once what they name is there
        _for_each(target, lambda move: _make(target, move, backup), list(alike))
    if target.traits.moves_by_copying:
        target.remove_files([RelativePath(move.origin) for move in moves if move.sent is None])


def _for_each(target: Store, act: Callable[[Move], _R], moves: Sequence[Move]) -> list[_R]:
    """Call ``act`` for each move; several at once where each file is a move of its own, and waits for the store."""
    if target.traits.moves_folders or target.traits.is_local or len(moves) < 2:
        return [act(move) for move in moves]
    pool = ThreadPoolExecutor(min(target.traits.threads, len(moves)), thread_name_prefix="copy-move")
    try:
        return list(pool.map(act, moves))
    finally:
        pool.shutdown(cancel_futures=True)


def _make(target: Store, move: Move, backup: RelativePath | None) -> None:
    origin, destination = RelativePath(move.origin), RelativePath(move.destination)
    if move.sent is not None:
        _complete(target, move, move.sent, backup)
        return
    if not move.is_folder:
        return _move_file(target, (origin, destination), backup, move.files[0].listed)
    _move_folder(target, move, backup)
    for folder in move.folders:
        give(target, RelativePath(folder.name).below(destination), folder)


def give(target: Store, path: RelativePath, folder: MovedFolder) -> None:
    """Give a new folder of the target its attributes."""
    target.give_folder(path, FileAttributes(path, 0, None, folder.user, folder.group, folder.permission))


def are_given(target: Store, moves: Sequence[Move], folders: Sequence[MovedFolder]) -> bool:
    """Whether folders, and those of moves, are there, with the mode bits that they get."""
    found = [(RelativePath(move.destination), folder) for move in moves for folder in move.folders]
    for below, folder in (*found, *((ROOT, folder) for folder in folders)):
        entry = target.status(RelativePath(folder.name).below(below))
        if entry is None or entry.attributes is None:
            return False
        if folder.permission is not None and entry.attributes.permission != folder.permission:
            return False
    return True


def _move_folder(target: Store, move: Move, backup: RelativePath | None) -> None:
    origin, destination = RelativePath(move.origin), RelativePath(move.destination)
    try:
        target.move(origin, destination)
    except FileNotFoundError:
        if target.status(origin) is not None:
            target.make_folder(destination.parent)
            target.move(origin, destination)
        elif target.status(destination) is None:
            raise gone(destination) from None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, None):
            raise
        for file in move.files:  # the folder was made meanwhile
            name = RelativePath(file.name)
            _move_file(target, (name.below(origin), name.below(destination)), backup, file.listed)
        target.remove_folder(origin)


def check_sent(target: Store, moves: Sequence[Move]) -> None:
    """Look, before the first move is made, whether the store has what was uploaded.

    Raises:
        MissingFileError: it has not, and the upload is not completed either.
    """

    def check(move: Move) -> None:
        assert move.sent is not None
        if _uploads(target).parts(move.sent.upload) is None and not _is_completed(target, move):
            raise MissingFileError(
                f"the store no longer has what was uploaded for {move.destination}", "The next run copies it anew"
            )

    _for_each(target, check, [move for move in moves if move.sent is not None])


def _is_completed(target: Store, move: Move) -> bool:
    return move.sent is not None and _uploads(target).is_completed(move.sent.upload, move.files[0].size)


def _uploads(target: Store) -> Uploads:
    if target.uploads is None:
        raise CopyError(f"{target.url} takes no uploads", "Run the copy with the driver that it was begun with")
    return target.uploads


def _complete(target: Store, move: Move, sent: SentUpload, backup: RelativePath | None) -> None:
    if _is_completed(target, move):
        return  # by an earlier run; what is there must not be kept as what was replaced
    destination, listed = RelativePath(move.destination), move.files[0].listed
    there = target.status(destination) if backup is not None or listed is not None else None
    if listed is not None and listed.is_changed(there):
        raise changed(destination)
    if backup is not None and there is not None:
        keep(target, destination, backup)
    _uploads(target).complete(sent)


def keep(target: Store, path: RelativePath, backup: RelativePath) -> None:
    """Keep a file in the backup folder before it is replaced or removed."""
    kept = path.below(backup)
    target.make_folder(kept.parent)
    target.keep(path, kept)


def changed(path: RelativePath) -> ChangedFileError:
    """The error for a file of the target that is not what was listed."""
    return ChangedFileError(f"{path} was changed in the target meanwhile", "The next run decides on it anew")


def gone(path: RelativePath) -> MissingFileError:
    """The error for a file or folder that is neither staged nor in the target."""
    return MissingFileError(f"{path} was published, and was removed since", "The next run copies it anew")


def _move_file(
    target: Store, way: tuple[RelativePath, RelativePath], backup: RelativePath | None, listed: Listed | None
) -> None:
    origin, destination = way
    if backup is not None or listed is not None:
        if (staged := target.status(origin)) is None:
            return  # moved by an earlier run; verify looks at what is there
        there = target.status(destination)
        if there is not None and not _is_copied(target, staged, there):
            if listed is not None and listed.is_changed(there):
                raise changed(destination)
            if backup is not None:
                keep(target, destination, backup)
    place = target.keep if target.traits.moves_by_copying else target.move
    try:
        place(origin, destination)
    except FileNotFoundError:
        if target.status(origin) is not None:
            target.make_folder(destination.parent)
            place(origin, destination)


def _is_copied(target: Store, staged: Entry, there: Entry) -> bool:
    """Whether a store, whose moves are copies, has copied a file already, so that it is not what was replaced."""
    one, other = staged.attributes, there.attributes
    if one is None or other is None or one.size != other.size:
        return False
    if one.checksum and one.checksum == other.checksum:
        return True
    if not target.traits.moves_by_copying or (other.timestamp_ns or 0) < (one.timestamp_ns or 0):
        return False
    first, second = (digest_of(target, each.path, one.size, _READ_BYTES) for each in (one, other))
    return first == second  # a copy of what was sent in parts, or is encrypted, has another checksum


def are_made(target: Store, moves: Sequence[Move], *, read: bool, range_bytes: int) -> bool:
    """Whether moves are made: nothing is left at their origins, and their files are at the destinations.

    ``read`` compares digests, made with ``range_bytes``, not only sizes.

    Raises:
        MissingFileError: a file is at neither.
        ChangedFileError: likewise, or it has changed since, and was to replace what was listed.
        CopyError: a file has another length or digest.
    """
    if _is_any_left(target, {RelativePath(move.origin) for move in moves if move.sent is None}):
        return False
    there = _listed_at(target, moves)

    def status(path: RelativePath) -> Entry | None:
        return there.get(path) or target.status(path)

    return all(_for_each(target, lambda move: _is_made(target, move, status, read, range_bytes), moves))


def _listed_at(target: Store, moves: Sequence[Move]) -> dict[RelativePath, Entry]:
    """Destinations that are there, of folders with many of them. Listing such a folder costs less than asking for each.

    Of a folder with far more files, it lists a part.
    """
    folders: dict[RelativePath, set[RelativePath]] = {}
    if not target.traits.has_cheap_status:
        for move in moves:
            for file in move.files if move.sent is None else ():
                path = RelativePath(file.name).below(RelativePath(move.destination))
                folders.setdefault(path.parent, set()).add(path)
    found: dict[RelativePath, Entry] = {}
    for folder, wanted in folders.items():
        if len(wanted) >= _LISTED_MIN:
            with suppress(FileNotFoundError):
                for entry in islice(target.scan(folder), _LISTED_PER_FILE * len(wanted)):
                    if entry.kind is EntryKind.FILE and entry.attributes and entry.attributes.path in wanted:
                        found[entry.attributes.path] = entry
    return found


def _is_any_left(target: Store, origins: set[RelativePath]) -> bool:
    """Whether something is at one of these paths. Listing a folder costs less than asking for each of its files."""
    if target.traits.has_cheap_status:
        return any(target.status(origin) is not None for origin in origins)
    for folder in {origin.parent for origin in origins}:
        with suppress(FileNotFoundError):
            if any(
                (entry.attributes.path if entry.attributes else entry.path) in origins for entry in target.scan(folder)
            ):
                return True
    return False


def _is_made(
    target: Store, move: Move, status: Callable[[RelativePath], Entry | None], read: bool, range_bytes: int
) -> bool:
    if move.sent is not None:
        return _is_completed(target, move)
    destination = RelativePath(move.destination)
    for file in move.files:
        path = RelativePath(file.name).below(destination)
        entry = status(path)
        found = entry.attributes if entry is not None and entry.kind is EntryKind.FILE else None
        is_there = found is not None and found.size == file.size
        if is_there and (not read or digest_of(target, path, file.size, range_bytes) == file.digest):
            continue
        if file.listed is not None:
            raise changed(path)
        if entry is None:
            raise gone(path)
        raise CopyError(
            f"{path} was published, but has other content than was copied",
            "If it was changed since, move it away; else check the disk",
        )
    return True
