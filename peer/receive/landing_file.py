"""One landing file: the frames of one source file. Envelopes are rewritten, sealed bytes are unchanged.

Not safe for threads; ``open_files.py`` owns it. Offsets are those of the landing file, not of the source file.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import PurePath

from peer.receive.admission import IncomingFrames
from replication.core.coverage import Span
from replication.core.frame import (
    FILE_HEADER_BYTES,
    Buffer,
    EndRecord,
    FrameKind,
    SealedHeader,
    encode_end_record,
    encode_envelope,
    encode_file_header,
)
from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import ClosedFileError, NoSpaceError, StorageError
from replication.files.base import AppendFile, Files, append, reserve
from replication.files.frames import add_to_index, refuse_occupied
from replication.ledger.base import BatchPart, Claim, FileRow, Landed, LandedPart, Ledger

_RESERVE_BYTES = 32 << 20  # ahead at most; a file reserves as much as it has, so that many small ones take little
_RESERVE_BYTES_MIN = 64 << 10
_STREAMS_MAX = 16_384  # of a file, about: each has some hundred bytes of memory until the file is closed


class LandingFile:
    """An open landing file. Bytes from ``registered`` to ``written`` are cut when they cannot be registered."""

    def __init__(self, row: FileRow, source: FileId, handle: AppendFile, now_s: float) -> None:
        self.row = row
        self.source = source
        self.registered = self.written = FILE_HEADER_BYTES
        self.is_settled = True  # no message waits to be registered, not even one without frames
        self.used_s = now_s
        self._handle = handle
        self._reserved = 0
        self._streams: dict[StreamId, tuple[int, bytes]] = {}
        self._index: list[int] = []

    @staticmethod
    def create(files: Files, row: FileRow, source: FileId, now_s: float) -> LandingFile:
        """Create the file of a row that was just allocated. The file and its header are durable on return.

        Raises:
            StorageError: the file could not be created, or another file has its path.
        """
        refuse_occupied(files, row.path, row.file)
        files.remove(row.path)
        handle = files.create(row.path)
        try:
            append(handle, [encode_file_header(row.file, row.created)])
            handle.sync()
            files.sync_directory(str(PurePath(row.path).parent))
        except BaseException:
            handle.close()
            raise
        return LandingFile(row, source, handle, now_s)

    def write(self, incoming: IncomingFrames, own: ClusterId) -> Landed:
        """Append a message's frames, not yet durably. Return what to register after ``sync``.

        Raises:
            NoSpaceError: the disk is full; the file is unchanged.
            StorageError: the file must be abandoned.
        """
        view = memoryview(incoming.data.frames)
        parts: list[Buffer] = []
        claims: list[Claim] = []
        batches: list[LandedPart] = []
        at = self.written
        for frame in incoming.frames:
            sealed = view[frame.sealed_begin : frame.end]
            envelope = encode_envelope((*frame.provenance, own), len(sealed))
            end = at + len(envelope) + len(sealed)
            parts += (envelope, sealed)
            header = frame.header
            claims.append(Claim.of(frame, at, end))
            if _has_batch_id(header):
                part = (BatchPart.of(header), header.role_epoch, header.commit_hi)
                batches.append(LandedPart(header.table, header.batch_id, *part))
            at = end
        begin = self.written
        if parts:
            self._append(parts, at)
        self.written, self.is_settled = at, False
        data = incoming.data
        ranges = (begin, at, data.file, data.begin, data.end)
        return Landed(self.row.file, *ranges, tuple(claims), incoming.notices, tuple(batches))

    def _append(self, parts: list[Buffer], end: int) -> None:
        try:
            if end > self._reserved:
                ahead = min(_RESERVE_BYTES, max(_RESERVE_BYTES_MIN, end))
                self._reserved = reserve(self._handle, self.written, end, ahead)
            append(self._handle, parts)
        except NoSpaceError:
            try:
                self._handle.truncate(self.written)
            except NoSpaceError as error:  # some file systems need space for that: the file is not unchanged
                raise StorageError(error.what, error.hint) from error
            self._reserved = self.written
            raise

    def sync(self) -> None:
        """Make all written bytes durable. After StorageError the file must be abandoned."""
        self._handle.sync()

    def register(self, landed: Landed) -> None:
        """Note that ``landed`` is registered in the ledger."""
        self.registered, self.is_settled = max(self.registered, landed.end), True
        for claim in landed.claims:
            add_to_index(self._index, claim.begin)
            last = self._streams.get(claim.stream)
            if last is None or claim.sequence > last[0]:
                self._streams[claim.stream] = (claim.sequence, claim.hash)

    def is_full(self, bytes_max: int) -> bool:
        """Whether the file is to be closed, though its source goes on."""
        return self.registered >= bytes_max or len(self._streams) >= _STREAMS_MAX

    def finish(self, ledger: Ledger) -> None:
        """Cut unregistered bytes, write the end record and close the file, also in the ledger."""
        self._handle.truncate(self.registered)
        append(self._handle, [encode_end_record(EndRecord(self._streams, tuple(self._index)))])
        self._handle.sync()
        ledger.files.close(self.row.file, self.registered)
        self._handle.close()

    def abandon(self) -> None:
        """Close the file without changing it."""
        self._handle.close()


def _has_batch_id(header: SealedHeader) -> bool:
    """Whether a frame is a part of a batch, with an id and a number that every ledger can hold."""
    in_order = header.part < header.parts < 1 << 31
    return header.kind is FrameKind.DATA and bool(header.batch_id) and "\0" not in header.batch_id and in_order


def cut_and_close(ledger: Ledger, files: Files, row: FileRow) -> Span:
    """Close a landing file that an earlier process left OPEN, at its registered length; return the span that was cut.

    The file is closed in the ledger before it is cut, so that a registration still in progress counts. After a crash in
    between, uncut bytes stay past the closed length, where nothing reads them. The file gets no end record, so its
    readers scan every frame.
    """
    row = _closed(ledger, row)
    cut = (row.length, row.length)
    if files.exists(row.path):
        with closing(files.open(row.path)) as handle:
            size = handle.size()
            if size > row.length:
                handle.truncate(row.length)
                handle.sync()
                cut = (row.length, size)
    return cut


def _closed(ledger: Ledger, row: FileRow) -> FileRow:
    while True:
        try:
            ledger.files.close(row.file, row.length)
            return row
        except ClosedFileError:
            now = ledger.files.get(row.file)
            if now is None or now.length <= row.length:
                raise
            row = now  # an earlier connection has registered more since ``row`` was read
