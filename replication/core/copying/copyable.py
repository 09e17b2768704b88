"""CopyableFile: all that is needed to copy one file. It alone travels through a job; the writing task opens the source.

Document 000 specifies the attributes and the guid.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.conversions import converted_path
from replication.core.copying.names import RelativePath

#: Metadata of a new version of a file: the path of the version that it replaces.
REPLACES = "replaces"


@dataclass(frozen=True, slots=True)
class CopyableFile:
    """A file to be copied.

    Attributes:
        source: the address of the source's root, without a password.
        origin: the file as the source's listing has it.
        destination: where it goes, below the target's root.
        file_set: the files that are published together with it.
        owner: the owner that it gets; empty leaves the store's default.
        group: the group that it gets; empty leaves the store's default.
        permission: the mode bits that it gets; None leaves the store's default.
        preserve: the attributes that are kept, as the configuration has them; metadata of the copy, too.
        replication: the number of copies in the target; None leaves the store's default.
        block_size: of the target, in bytes; None leaves the store's default.
        checksum: of the content, as the source has it.
        metadata: anything that a dataset adds; it travels with the file into events and reports.
    """

    source: str
    origin: FileAttributes
    destination: RelativePath
    file_set: str = ""
    owner: str = ""
    group: str = ""
    permission: int | None = None
    preserve: frozenset[str] = frozenset()
    replication: int | None = None
    block_size: int | None = None
    checksum: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def build(cls, source: str, origin: FileAttributes, configuration: CopyConfiguration, **given: Any) -> CopyableFile:
        """A copyable file with defaults out of the configuration; ``given`` overrides any attribute.

        By default the destination is the path in the source, and the configuration's grouping gives the file set.
        Owner, group, permission, replication and block size are the origin's as far as they are preserved.
        """
        preserve = configuration.preserve
        destination = given.pop("destination", converted_path(origin.path, configuration.conversions))
        defaults: dict[str, Any] = {
            "file_set": configuration.file_set_of(destination),
            "owner": origin.user if "owner" in preserve else "",
            "group": origin.group if "group" in preserve else "",
            "permission": _permission(origin, preserve) if "permissions" in preserve else configuration.permission,
            "preserve": preserve,
            "replication": configuration.replication or (origin.replication if "replication" in preserve else None),
            "block_size": configuration.block_size or (origin.block_size if "block-size" in preserve else None),
            "checksum": origin.checksum,
        }
        return cls(source, origin, destination, **(defaults | given))

    @property
    def guid(self) -> str:
        """SHA-1 over origin path, length, timestamp and checksum if there is one: the same for the same origin file."""
        origin = self.origin
        parts = (self.source, origin.path, str(origin.size), str(origin.timestamp_ns), self.checksum)
        return hashlib.sha1("\0".join(parts).encode(), usedforsecurity=False).hexdigest()

    @property
    def timestamp_ns(self) -> int | None:
        """The modification time that the copy gets; None leaves the time of the copy."""
        return self.origin.timestamp_ns if "times" in self.preserve else None


def _permission(origin: FileAttributes, preserve: frozenset[str]) -> int | None:
    """The mode bits of a copy; set-user-id and set-group-id only with the owner and the group that they are of.

    A store that tells no owner leaves the copy with the one who copies, whose rights it must not give.
    """
    if origin.permission is None:
        return None
    keeps_user, keeps_group = "owner" in preserve and origin.user, "group" in preserve and origin.group
    dropped = (0 if keeps_user else stat.S_ISUID) | (0 if keeps_group else stat.S_ISGID)
    return origin.permission & ~dropped
