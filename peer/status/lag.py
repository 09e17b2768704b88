"""How long a peer has been behind: the age of the oldest frame of a file that it is missing."""

from __future__ import annotations

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.status import ReplicationStatus
from replication.errors import ReplicationError
from replication.files.reading import MappedFrames
from replication.ledger.base import FileKind, FileRow, PeerProgress


class PeerLag:
    """Reads files of one host for one ``collect``, each position once.

    Args:
        now: microseconds since 1970.
    """

    def __init__(self, host: str, now: int) -> None:
        self.now = now
        self._host = host
        self._seen: dict[tuple[FileId, int, int], int | None] = {}

    def since(self, row: FileRow, status: ReplicationStatus, fresh: int, known: PeerProgress | None) -> int:
        """When the first frame of a file that a peer is missing was committed, in microseconds since 1970.

        A file may not grow for hours and then gain a frame. So neither the file's age nor that of the peer's newest
        frame is the age of that frame. They are used only for a file that cannot be read from here. ``status`` is its
        progress at the peer, which is missing part of it. ``fresh`` bytes are durable beyond what is registered.
        """
        end = max(row.needed, row.length + fresh, status.needed)  # the status was read later than the file's row
        at = row.file, max(status.finished, FILE_HEADER_BYTES), end
        if at not in self._seen:
            self._seen[at] = self._first(row, *at[1:])
        found = self._seen[at]
        return found if found is not None else known.commit if known is not None and known.commit else row.created

    def _first(self, row: FileRow, begin: int, end: int) -> int | None:
        if (
            row.host != self._host or row.is_stored or row.kind is FileKind.BOOTSTRAP
        ):  # its frames have the times of old rows
            return None
        if end <= begin:  # the peer has received it meanwhile
            return self.now
        try:
            frame = next(iter(MappedFrames(row.path, begin, end)), None)
        except ReplicationError:
            return None
        return None if frame is None else min(frame.header.commit_lo, self.now)
