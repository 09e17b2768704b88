"""Whether steps over files are done: a method for each of ``executor``'s."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

_PIECE = 8 << 20


class FileChecker:
    """Judges an fsspec file system by identity, not by names."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        fs.invalidate_cache()

    def rename(self, target: str, length: int, digest: str) -> bool:
        """Whether ``target`` is a file of that length and hash; it is read only if the length fits."""
        return bool(
            self._fs.isfile(target) and self._fs.size(target) == length and sha256_of(self._fs, target) == digest
        )

    def remove(self, path: str) -> bool:
        """Whether nothing is at ``path``."""
        return not self._fs.exists(path)


def sha256_of(fs: Any, path: str) -> str:
    """The hash of a file's content, in hex."""
    digest = sha256()
    with fs.open(path, "rb") as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
