"""Conversions of files on their way, and what each does to a file's name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from replication.core.copying.names import RelativePath
from replication.errors import UnsafeNameError


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the bytes of a file become on their way.

    Attributes:
        text: as the user gave it: the converter's name, or ``NAME=ARGUMENT``.
        removes_suffix: the extension of the files that it is for; empty for all files.
        adds_suffix: the extension that they get in its place.
        unpacks: it makes a folder of an archive before files are listed, and no other of a file.
    """

    text: str
    removes_suffix: str = ""
    adds_suffix: str = ""
    unpacks: bool = False


def converted_path(path: RelativePath, conversions: Sequence[Conversion]) -> RelativePath:
    """The path of a file after its conversions; a file without the extension of one keeps its name and content."""
    if not conversions:
        return path
    text = str(path)
    for each in applied(path, conversions):
        text = text.removesuffix(each.removes_suffix) + each.adds_suffix
    return RelativePath(text)


def applied(path: RelativePath, conversions: Sequence[Conversion]) -> tuple[Conversion, ...]:
    """The conversions that a file goes through: those whose extension it has by then."""
    found, text = [], str(path)
    for each in conversions:
        if each.unpacks:
            continue
        if text.endswith(each.removes_suffix) and len(RelativePath(text).name) > len(each.removes_suffix):
            found.append(each)
            text = text.removesuffix(each.removes_suffix) + each.adds_suffix
    return tuple(found)


def origins(path: RelativePath, conversions: Sequence[Conversion]) -> list[RelativePath]:
    """The paths that files can have had before their conversions made ``path`` of them; its own if none can."""
    texts = [str(path)]
    for each in reversed(conversions):
        if not each.unpacks:
            texts += [
                text.removesuffix(each.adds_suffix) + each.removes_suffix
                for text in texts
                if text.endswith(each.adds_suffix)
            ]
    found = []
    for text in dict.fromkeys(texts):
        with suppress(UnsafeNameError):  # no file has such a name
            if converted_path(before := RelativePath(text), conversions) == path:
                found.append(before)
    return found or [path]
