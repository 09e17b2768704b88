"""Where a path lies in its file system: the same for each of the names by which a folder is mounted."""

from __future__ import annotations

import os
import re

_MOUNTS = "/proc/self/mountinfo"
_OCTAL = re.compile(rb"\\([0-7]{3})")


def place(path: str) -> tuple[str, ...]:
    """The file system's number and the folders from its root down to a path without links; "" where that is not known.

    See proc(5) for the lines: number, parent, file system, its folder that is mounted, where.
    """
    number, root, at = "", "/", "/"
    for device, folder, where in _mounts():
        is_above = path == where or path.startswith(f"{where.rstrip('/')}/")
        if is_above and len(where) >= len(at):  # the last of several at one place hides the others
            number, root, at = device, folder, where
    return number, *(part for part in f"{root}/{path[len(at) :]}".split("/") if part)


def _mounts() -> list[tuple[str, str, str]]:
    try:
        with open(_MOUNTS, "rb") as file:
            lines = [[_text(field) for field in line.split(b" ")[2:5]] for line in file]
    except OSError:
        return []
    return [(line[0], line[1], line[2]) for line in lines if len(line) == 3]


def _text(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field))
