"""Files of frames: reads them in pieces, refuses to replace another file, and saves copies of single frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from replication.core.frame import FILE_HEADER_BYTES, Buffer, FrameView, read_file_header, scan
from replication.core.ids import FileId
from replication.errors import FormatError, StorageError
from replication.files.base import AppendFile, Files, append

_READ_BYTES = 4 << 20
_INDEX_BYTES = 1 << 20


def frames(file: AppendFile, begin: int, end: int) -> Iterator[tuple[FrameView, memoryview]]:
    """Yield every whole frame in ``[begin, end)``, with its payload; stop before an incomplete one.

    ``begin`` is the start of a frame.

    Raises:
        CorruptFrameError: bytes are neither a frame nor an end record. Frames before them were yielded.
    """
    step = _READ_BYTES
    while begin < end:
        content = memoryview(file.read(begin, min(begin + step, end)))
        at = begin
        for frame in scan(content, 0, begin):
            yield frame, content[frame.payload_begin - begin : frame.end - begin]
            at = frame.end
        if at > begin:
            begin, step = at, _READ_BYTES
        elif begin + len(content) >= end or len(content) < step:
            return
        else:
            step *= 4


def add_to_index(index: list[int], begin: int) -> None:
    """Note where a frame begins in the index of its file's end record, which has a frame per MiB."""
    if not index or begin - index[-1] >= _INDEX_BYTES:
        index.append(begin)


def refuse_occupied(files: Files, path: str, file: FileId, *, unfinished: bool = False) -> None:
    """Raise StorageError when another file exists at ``path``, where the newly allocated ``file`` will be created.

    This protects acked frames when hosts share a directory by mistake, or the ledger is older than its files.
    ``unfinished``: an earlier attempt may have left frames.
    """
    if not files.exists(path):
        return
    handle = files.open(path)
    try:
        size = handle.size()
        occupant = str(read_file_header(handle.read(0, FILE_HEADER_BYTES))[0])
    except FormatError:
        if unfinished or size <= FILE_HEADER_BYTES:  # an earlier attempt was interrupted
            return
        occupant = "a file without a WAL header"
    finally:
        handle.close()
    if occupant != str(file):
        raise StorageError(
            f"{path} cannot be {file}: {occupant} is there",
            "Give every host and cluster its own data_dir. To create the cluster again, move the old files away",
        )
    if size > FILE_HEADER_BYTES and not unfinished:
        raise StorageError(
            f"{path} exists already, with {size} bytes: the ledger is older than the files beside it",
            "Stop the cluster with walship down; then run walship up, which explains how to register the files",
        )


def copy_name(file: FileId, begin: int) -> str:
    """The name of the copy of a frame of ``file``."""
    return f"{file.slot}-{file.number:012d}-{begin}.frame"


def save_frame(files: Files, directory: str, file: FileId, begin: int, content: Buffer) -> str:
    """Copy a frame of ``file`` to ``directory``, which is created when missing; return the path of the durable copy."""
    files.make_directory(directory)
    path = f"{directory}/{copy_name(file, begin)}"
    files.remove(path)
    with closing(files.create(path)) as copy:
        append(copy, [content])
        copy.sync()
    files.sync_directory(directory)
    return path
