"""Calls about files of a folder that another cluster shares, as messages and back.

Each call stands alone, so a caller goes on at another connection where it was. Content has a checksum of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import google_crc32c

from replication.core.copying.attributes import EntryKind
from replication.errors import FormatError, PeerRefusedError, PeerUnavailableError
from replication.link import refusals
from replication.link._pb import walship_pb2 as pb
from replication.link.base import PROTOCOL, Reason, Refusal
from replication.link.messages import at_most, read_message, reading

PIECE_BYTES = 1 << 20  # of one message
READ_BYTES_MAX = 64 << 20  # of one call
_PATHS_MAX = 10_000
_ENTRIES = 1000  # of one reply


class FileCall(Enum):
    """What is wanted, as ``FilesRequest.Call`` in ``walship.proto`` tells."""

    SCAN = "SCAN"
    STATUS = "STATUS"
    READ = "READ"
    REREAD = "REREAD"
    WRITE = "WRITE"
    MAKE_FOLDER = "MAKE_FOLDER"
    GIVE_FOLDER = "GIVE_FOLDER"
    MOVE = "MOVE"
    KEEP = "KEEP"
    REMOVE_FILES = "REMOVE_FILES"
    REMOVE_FOLDER = "REMOVE_FOLDER"
    SYNC = "SYNC"
    SYNC_ALL = "SYNC_ALL"
    WRITE_FILES = "WRITE_FILES"
    READ_FILES = "READ_FILES"

    @property
    def is_reading(self) -> bool:
        """Whether it changes nothing."""
        return self in (FileCall.SCAN, FileCall.STATUS, FileCall.READ, FileCall.REREAD, FileCall.READ_FILES)


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """A name in a shared folder, or a whole file that is written or read there.

    ``name`` is the last part of its path, in a call the whole path, as the other end wrote it.
    """

    kind: EntryKind
    name: str
    size: int = 0
    timestamp_ns: int | None = None
    permission: int | None = None


@dataclass(frozen=True, slots=True)
class FileAsk:
    """One call. ``paths`` are as the caller wrote them, so whoever answers checks them.

    Attributes:
        folder: the name that it is shared under.
        size: of a written file, in bytes.
        is_whole: a written file is finished: it gets ``permission`` and ``timestamp_ns``.
        files: that are written or read whole, of ``PIECE_BYTES`` at most; their contents follow one another.
    """

    folder: str
    call: FileCall
    paths: tuple[str, ...] = ()
    begin: int = 0
    end: int = 0
    size: int = 0
    is_whole: bool = False
    permission: int | None = None
    timestamp_ns: int | None = None
    content: bytes = b""
    files: tuple[SharedEntry, ...] = ()

    @property
    def size_max(self) -> int:
        """Of what is read, in bytes."""
        match self.call:
            case FileCall.READ | FileCall.REREAD:
                return self.end - self.begin
            case FileCall.READ_FILES:
                return sum(file.size for file in self.files)
            case _:
                return 0


def encode_ask(ask: FileAsk) -> bytes:
    """One FilesRequest."""
    message = pb.FilesRequest(
        protocol=PROTOCOL,
        folder=ask.folder,
        call=pb.FilesRequest.Call.Value(ask.call.value),
        paths=ask.paths,
        begin=ask.begin,
        end=ask.end,
        size=ask.size,
        finish=ask.is_whole,
        permission=ask.permission,
        timestamp_ns=ask.timestamp_ns,
        content=ask.content,
        crc32c=google_crc32c.value(ask.content),
        files=map(_encoded, ask.files),
    )
    return bytes(message.SerializeToString())


def decode_ask(raw: bytes) -> FileAsk:
    """Read one.

    Raises:
        PeerRefusedError: it is none, was damaged, is of another version, or asks for more than one call brings.
    """
    try:
        with reading("a call about files"):
            message = read_message(pb.FilesRequest, raw)
            if message.protocol != PROTOCOL:
                what = f"the caller speaks protocol {message.protocol}, not {PROTOCOL}"
                raise Refusal(Reason.VERSION, what, "Upgrade walship on the older side").error()
            ask = FileAsk(
                message.folder,
                FileCall(pb.FilesRequest.Call.Name(message.call)),
                tuple(at_most(message.paths, _PATHS_MAX, "a call names", "paths")),
                message.begin,
                message.end,
                message.size,
                message.finish,
                message.permission if message.HasField("permission") else None,
                message.timestamp_ns if message.HasField("timestamp_ns") else None,
                message.content,
                tuple(map(_decoded, at_most(message.files, _PATHS_MAX, "a call names", "files"))),
            )
    except FormatError as error:
        raise Refusal(Reason.CORRUPT, error.what, error.hint or "Upgrade walship on the older side").error() from None
    if google_crc32c.value(ask.content) != message.crc32c:
        raise Refusal(Reason.CORRUPT, "content was damaged in transit", "It is sent again").error()
    of_files = sum(file.size for file in ask.files)
    if ask.end - ask.begin > READ_BYTES_MAX or max(len(ask.content), of_files) > PIECE_BYTES:
        raise Refusal(Reason.TOO_LARGE, "more is read or written than one call takes", "Ask for less").error()
    return ask


def encode_replies(serve: Callable[[], Iterable[SharedEntry | bytes]], boot: str) -> Iterator[bytes]:
    """FilesReplies with the entries and pieces that ``serve`` gives; what it raises is the last one.

    ``boot`` is the id of the host's boot.
    """
    entries: list[SharedEntry] = []
    try:
        for found in serve():
            if isinstance(found, bytes):
                yield _reply(content=found, crc32c=google_crc32c.value(found))
                continue
            entries.append(found)
            if len(entries) == _ENTRIES:
                yield _reply(entries=map(_encoded, entries))
                entries = []
        yield _reply(entries=map(_encoded, entries), end=True, boot=boot)
    except PeerRefusedError as error:
        yield _reply(refusal=refusals.encode_refusal(Refusal.of(error)))
    except OSError as error:
        yield _reply(error=error.errno or 5, what=error.strerror or "")


def decode_replies(replies: Iterable[bytes], address: str, ask: FileAsk) -> Generator[SharedEntry | bytes, None, str]:
    """What FilesReplies to ``ask`` bring, one by one: pieces for reads only, and entries for scans and one status.

    Returns the boot id of the host that answered.

    Raises:
        PeerRefusedError: the other end refuses, with its reason; or it brings more than it was asked for.
        OSError: the other end's file system answered so.
        PeerUnavailableError: the replies end too early, or were damaged in transit.
    """
    size = ask.size_max
    entries = float("inf") if ask.call is FileCall.SCAN else int(ask.call is FileCall.STATUS)
    for raw in replies:
        reply = read_message(pb.FilesReply, raw)
        if reply.HasField("refusal"):
            raise refusals.decode_refusal(reply.refusal).error()
        size, entries = size - len(reply.content), entries - len(reply.entries)
        if size < 0 or entries < 0:
            raise PeerRefusedError(f"{address} replies with more than it was asked for", reason="VERSION")
        if reply.error:
            code = reply.error if reply.error in errno.errorcode else errno.EIO
            raise OSError(code, refusals.shown(reply.what) or os.strerror(code))
        if reply.content:
            if google_crc32c.value(reply.content) != reply.crc32c:
                raise PeerUnavailableError(f"bytes from {address} were damaged in transit", "They are asked for again")
            yield reply.content
        for entry in reply.entries:
            yield _decoded(entry)
        if reply.end:
            return str(reply.boot)
    raise PeerUnavailableError(f"{address} ended the answer too early")


def _reply(**fields: Any) -> bytes:
    return bytes(pb.FilesReply(**fields).SerializeToString())


def _encoded(entry: SharedEntry) -> pb.FileEntry:
    return pb.FileEntry(
        kind=pb.FileEntry.Kind.Value(entry.kind.name),
        name=entry.name,
        size=entry.size,
        timestamp_ns=entry.timestamp_ns,
        permission=entry.permission,
    )


def _decoded(message: pb.FileEntry) -> SharedEntry:
    with reading("an entry of a folder"):
        return SharedEntry(
            EntryKind[pb.FileEntry.Kind.Name(message.kind)],
            message.name,
            message.size,
            message.timestamp_ns if message.HasField("timestamp_ns") else None,
            message.permission if message.HasField("permission") else None,
        )
