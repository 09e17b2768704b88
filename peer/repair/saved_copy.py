"""Frames copied into a landing file of their own: how single frames are tried again, or saved from a damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import PurePath

from peer.receive.landing_file import cut_and_close
from replication.config import Config
from replication.core.frame import (
    FILE_HEADER_BYTES,
    Buffer,
    EndRecord,
    FrameKind,
    FrameView,
    encode_end_record,
    encode_file_header,
)
from replication.core.ids import FileId, StreamId
from replication.files.base import Files, append
from replication.files.boot import boot_id
from replication.ledger.base import Claim, FileKind, FileRow, Ledger

#: Frames of bootstraps, which replay takes out of files of their own only: they are not copied, but sent again.
SENT_AGAIN = (FrameKind.BOOTSTRAP, FrameKind.COVERAGE)


@dataclass(frozen=True, slots=True)
class Copied:
    """A durable file of copied frames that the ledger has as OPEN and empty, and what is to be claimed in it."""

    row: FileRow
    claims: tuple[Claim, ...]


@contextmanager
def copied(
    config: Config, ledger: Ledger, files: Files, source: FileId | None, frames: Sequence[tuple[FrameView, Buffer]]
) -> Iterator[Copied]:
    """Make a landing file of this host out of whole frames, byte for byte.

    Within the context the caller registers it, which also closes it. When that fails the file is emptied and closed. It
    is then deleted with other files that nobody waits for.

    ``source`` is the peer's file that the frames came from, None for frames of this cluster's own. The bytes of each
    frame include its envelope.
    """
    directory = str(config.landing_dir)
    files.make_directory(directory)
    row = ledger.files.allocate(config.cluster.host, FileKind.LANDING, directory, boot_id(), source=source)
    try:
        claims = _write(files, row, frames)
        yield Copied(row, claims)
    except BaseException:
        cut_and_close(ledger, files, row)
        raise


def _write(files: Files, row: FileRow, frames: Sequence[tuple[FrameView, Buffer]]) -> tuple[Claim, ...]:
    files.remove(row.path)  # left by a crash between making a file and naming it in the ledger
    claims: list[Claim] = []
    streams: dict[StreamId, tuple[int, bytes]] = {}
    at = FILE_HEADER_BYTES
    for frame, content in frames:
        header, end = frame.header, at + len(content)
        claims.append(Claim.of(frame, at, end))
        last = streams.get(header.stream)
        if last is None or last[0] < header.sequence:
            streams[header.stream] = (header.sequence, frame.hash)
        at = end
    with closing(files.create(row.path)) as handle:
        end_record = encode_end_record(EndRecord(streams, tuple(claim.begin for claim in claims)))
        append(handle, [encode_file_header(row.file, row.created), *(content for _, content in frames), end_record])
        handle.sync()
    files.sync_directory(str(PurePath(row.path).parent))
    return tuple(claims)
