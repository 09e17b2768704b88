"""Names that travel: clusters, files (WALs and landing files), streams.

All are frozen values with one text form, used in the ledger, in ZooKeeper, on the command line and in table columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from replication.errors import FormatError

NIL_UUID = UUID(int=0)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


def check_name(name: str, what: str) -> str:
    """Return ``name`` when it is 1 to 63 letters, digits, ``_ . -``; raise FormatError naming ``what`` otherwise."""
    if not _NAME.match(name) or ".." in name:
        raise FormatError(
            f"{name!r} cannot be a {what}",
            "Use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or digit",
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class ClusterId:
    """A site: its name and its incarnation, made at ``init`` and anew after any restore."""

    name: str
    incarnation: UUID

    def __str__(self) -> str:
        """``east:6f1c…``."""
        return f"{self.name}:{self.incarnation}"

    @staticmethod
    def parse(text: str) -> ClusterId:
        """Read the text form; FormatError when it is none."""
        name, colon, incarnation = text.partition(":")
        try:
            return ClusterId(check_name(name, "cluster name"), UUID(incarnation))
        except ValueError:
            raise FormatError(f"{text!r} is not a cluster id (name:uuid)") from None


@dataclass(frozen=True, slots=True, order=True)
class FileId:
    """A WAL or landing file: who made it, on which host slot, and its dense number there."""

    cluster: ClusterId
    slot: str
    number: int

    def __str__(self) -> str:
        """``east:6f1c…/h0/000000000012``; sorts as the file does within its slot."""
        return f"{self.cluster}/{self.local}"

    @property
    def local(self) -> str:
        """``h0/000000000012``: the part after the cluster."""
        return f"{self.slot}/{self.number:012d}"

    @staticmethod
    def parse(text: str) -> FileId:
        """Read the text form; FormatError when it is none."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[2].isdigit():
            raise FormatError(f"{text!r} is not a file id (cluster/slot/number)")
        return FileId(ClusterId.parse(parts[0]), check_name(parts[1], "host slot"), int(parts[2]))


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """The frames of one origin WAL, table and group; they carry a dense sequence from 0 and a hash chain."""

    wal: FileId
    table: UUID
    group: str

    def __str__(self) -> str:
        """``wal|table|group``."""
        return f"{self.wal}|{self.table}|{self.group}"

    @staticmethod
    def parse(text: str) -> StreamId:
        """Read the text form; FormatError when it is none."""
        parts = text.split("|")
        if len(parts) != 3:
            raise FormatError(f"{text!r} is not a stream id (wal|table|group)")
        return StreamId(FileId.parse(parts[0]), UUID(parts[1]), parts[2])
