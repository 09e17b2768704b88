"""Names of the versions of a file in a dataset that keeps them.

``day~000002-1a2b3c4d.parquet`` is the second version of ``day.parquet``, with the beginning of its guid. So a new
version is written over no other, and readers of an earlier instant go on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from replication.core.copying.names import RelativePath

_NAME = re.compile(r"(.[^.]*)~(\d{6,})-([0-9a-f]{8})((?:\..*)?)")


@dataclass(frozen=True, slots=True)
class VersionName:
    """The parts of a version's name: the file's path, the version's number from 1 on, and 8 digits of its guid."""

    file: RelativePath
    number: int
    guid: str


def version_path(file: RelativePath, number: int, guid: str) -> RelativePath:
    """Where a version of a file lies."""
    stem, dot, extension = file.name[1:].partition(".")
    return file.parent.child(f"{file.name[0]}{stem}~{number:06d}-{guid[:8]}{dot}{extension}")


def version_name(path: RelativePath) -> VersionName | None:
    """The parts of a path; None if it is of no version."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    stem, number, guid, extension = found.groups()
    return VersionName(path.parent.child(f"{stem}{extension}"), int(number), guid)
