"""What the files of a ledger hold on disk, as far as it is registered."""

from __future__ import annotations

from pathlib import Path

from replication.core.frame import FILE_HEADER_BYTES, FrameView, scan
from replication.ledger.base import FileRow


def registered(row: FileRow) -> tuple[bytes, list[FrameView]]:
    """Return a file's registered bytes and their frames. A file has its row before it exists: it has no frames then."""
    if row.length <= FILE_HEADER_BYTES:
        return b"", []
    content = Path(row.path).read_bytes()[: row.length]
    return content, list(scan(content, FILE_HEADER_BYTES))
