"""The names of conversions, and what each does to a file's name."""

from __future__ import annotations

from collections.abc import Sequence

from replication.core.copying.names import RelativePath
from replication.errors import RequestError

#: Conversion → the extension that it takes off and the one that it puts on.
EXTENSIONS = {
    "gunzip": (".gz", ""),
    "gzip": ("", ".gz"),
    "unzstd": (".zst", ""),
    "zstd": ("", ".zst"),
    "decrypt": (".gpg", ""),
    "encrypt": ("", ".gpg"),
}

#: Conversions that make a folder of an archive, before files are listed.
UNPACKING = ("untar", "unzip")


def check_conversions(names: Sequence[str]) -> tuple[str, ...]:
    """The names; RequestError if one is unknown, or ``encrypt=KEY`` has no key."""
    for name in names:
        kind, equals, key = name.partition("=")
        if kind not in (*EXTENSIONS, *UNPACKING) or (bool(equals) and kind != "encrypt"):
            raise RequestError(f"there is no conversion {name!r}", f"Choose of {', '.join((*EXTENSIONS, *UNPACKING))}")
        if kind == "encrypt" and (not key or key.startswith("-")):
            raise RequestError("encrypt needs a key", "Write encrypt=FINGERPRINT, or an address of the key's owner")
    return tuple(names)


def converted_path(path: RelativePath, names: Sequence[str]) -> RelativePath:
    """The path of a file after its conversions; a file without the extension of one keeps its name and content."""
    text = str(path)
    for name in applied(path, names):
        off, on = EXTENSIONS[name.partition("=")[0]]
        text = text.removesuffix(off) + on
    return RelativePath(text)


def applied(path: RelativePath, names: Sequence[str]) -> tuple[str, ...]:
    """The conversions that a file goes through: those whose extension it has by then."""
    found, text = [], str(path)
    for name in names:
        if name in UNPACKING:
            continue
        off, on = EXTENSIONS[name.partition("=")[0]]
        if text.endswith(off) and len(RelativePath(text).name) > len(off):
            found.append(name)
            text = text.removesuffix(off) + on
    return tuple(found)
