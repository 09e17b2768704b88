"""The ids of clusters, files (WALs and landing files) and streams.

All are frozen values with one text form: in the ledger, in ZooKeeper, on the command line and in table columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from replication.errors import FormatError

NIL_UUID = UUID(int=0)
#: What reading JSON that anything may have written raises, besides FormatError.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
COUNT_END = 1 << 62  # offsets, sequences, terms and numbers are below: every ledger can hold and add them
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
#: Of a cluster in ZooKeeper.
ROOT = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9_.-]*)+\Z")
_NUMBER = re.compile(r"[0-9]{1,19}\Z")
_UUID_CHARS_MAX = 45  # UUID takes any number of hyphens


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it has 1 to 63 letters, digits, ``_ . -``; else raise FormatError that mentions ``what``."""
    if not _NAME.match(name) or ".." in name:
        raise FormatError(
            f"{name[:300]!r} cannot be a {what}",
            "Use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or digit",
        )
    return name


@lru_cache(maxsize=4096)
def check_group(name: str) -> str:
    """Return ``name`` if it can be a group's: "" for frames of no table, else as ``check_name``."""
    return check_name(name, "group name") if name else name


@dataclass(frozen=True, slots=True, order=True)
class ClusterId:
    """A cluster: its name, and its incarnation, which ``init`` draws, and ``reincarnate`` after a restore."""

    name: str
    incarnation: UUID

    def __str__(self) -> str:
        """``east:6f1c…``."""
        return f"{self.name}:{self.incarnation}"

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> ClusterId:
        """Parse the text form. Raises FormatError."""
        name, _, incarnation = text.partition(":")
        try:
            if len(incarnation) > _UUID_CHARS_MAX:
                raise ValueError
            return ClusterId(check_name(name, "cluster name"), UUID(incarnation))
        except ValueError:
            raise FormatError(f"{text[:300]!r} is not a cluster id (name:uuid)") from None


@dataclass(frozen=True, slots=True, order=True)
class FileId:
    """A WAL or landing file: its cluster, its host slot, and its dense number there."""

    cluster: ClusterId
    slot: str
    number: int

    def __str__(self) -> str:
        """``east:6f1c…/h0/000000000012``; sorts by number within a slot."""
        return f"{self.cluster}/{self.local}"

    @property
    def local(self) -> str:
        """``h0/000000000012``: the part after the cluster."""
        return f"{self.slot}/{self.number:012d}"

    @staticmethod
    def parse(text: str) -> FileId:
        """Parse the text form. Raises FormatError."""
        parts = text.split("/")
        if len(parts) != 3 or not _NUMBER.match(parts[2]) or int(parts[2]) >= COUNT_END:
            raise FormatError(f"{text[:300]!r} is not a file id (cluster/slot/number)")
        return FileId(ClusterId.parse(parts[0]), check_name(parts[1], "host slot"), int(parts[2]))


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """A stream: the frames of one origin WAL, table and group, with a dense sequence from 0 and a hash chain."""

    wal: FileId
    table: UUID
    group: str

    def __str__(self) -> str:
        """``wal|table|group``."""
        return f"{self.wal}|{self.table}|{self.group}"

    @staticmethod
    def parse(text: str) -> StreamId:
        """Parse the text form. Raises FormatError."""
        parts = text.split("|")
        try:
            wal, table, group = parts
            return StreamId(FileId.parse(wal), UUID(table), check_group(group))
        except ValueError:
            raise FormatError(f"{text[:300]!r} is not a stream id (wal|table|group)") from None
