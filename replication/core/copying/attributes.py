"""The attributes of a file, the same whatever store it lies in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from replication.core.copying.names import RelativePath


class EntryKind(Enum):
    """What a name in a folder stands for."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    OTHER = "special file"


@dataclass(frozen=True, slots=True)
class FileAttributes:
    """What a store tells of one file.

    Attributes:
        path: below the store's root.
        size: in bytes.
        timestamp_ns: when its content last changed, nanoseconds since 1970; None when the store does not tell.
        user: its owner; empty when the store has none.
        group: its group; empty when the store has none.
        permission: mode bits; None when the store has none.
        checksum: as the store computed it, with the algorithm before a colon; empty when it has none.
        replication: copies of each block; None when the store has none.
        block_size: in bytes; None when the store has none.
    """

    path: RelativePath
    size: int
    timestamp_ns: int | None = None
    user: str = ""
    group: str = ""
    permission: int | None = None
    checksum: str = ""
    replication: int | None = None
    block_size: int | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    def is_same_content_as(self, later: FileAttributes) -> bool:
        """Whether the store tells no change of content between two looks at one file."""
        return (self.size, self.timestamp_ns, self.checksum) == (later.size, later.timestamp_ns, later.checksum)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; attributes that the store does not have are left out."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (None, "")}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FileAttributes:
        """The attributes that :meth:`to_json` wrote; the path is checked anew."""
        return cls(**{**value, "path": RelativePath(value["path"])})
