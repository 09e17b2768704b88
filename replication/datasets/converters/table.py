"""The converters by name."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial

from replication.datasets.converters.compression import gunzip, gzip, unzstd, zstd
from replication.datasets.converters.gpg import decrypt, encrypt

#: Turns the pieces of a file of so many bytes into others.
Convert = Callable[[Iterable[bytes], int], Generator[bytes]]
CONVERTERS: dict[str, Convert] = {
    "gzip": gzip,
    "gunzip": gunzip,
    "zstd": zstd,
    "unzstd": unzstd,
    "decrypt": decrypt,
}


def converter_of(name: str) -> Convert:
    """The converter of a name that ``check_conversions`` has taken."""
    kind, _, recipient = name.partition("=")
    return partial(encrypt, recipient=recipient) if kind == "encrypt" else CONVERTERS[name]
