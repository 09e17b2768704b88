"""The protocols of converters, for walship's own and for plugins.

A plugin is an entry point of the group ``walship.converters``: a class, or a function, that is called with the text
which the user gave behind ``NAME=``, empty if there was none, and raises RequestError if it does not take that. What it
returns is a :class:`Converter` or an :class:`Unpacker`. Executors of a copy by Spark need the package, too.
``tests/contract/test_converters.py`` is what each of them has to pass.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol, runtime_checkable

MEMBERS_MAX = 1_000_000
#: What reading an archive may raise when it is damaged, or none.
UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ArithmeticError,
    ValueError,
    RuntimeError,
    NotImplementedError,
)


class Converter(Protocol):
    """Changes the bytes of files on their way, front to back; such a file is not split into ranges."""

    @property
    def removes_suffix(self) -> str:
        """The extension of the files that it is for, with its dot; empty for all files."""

    @property
    def adds_suffix(self) -> str:
        """The extension that they get in its place."""

    def __call__(self, pieces: Iterable[bytes], size: int) -> Generator[bytes]:
        """Turn the pieces of a file of ``size`` bytes into others, a piece at a time.

        The same content gives the same result however it is cut into pieces. It is closed early when a copy ends.

        Raises:
            CopyError: the content does not fit, is cut short, or unpacks to far more than it is.
        """


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A member as an archive tells of it; its name is not checked yet.

    Attributes:
        name: with ``/`` between its parts.
        size: in bytes.
        time_ns: when it changed.
        mode: its mode bits; None if they are not known.
        open: opens it for reading, front to back; None for what is not a file.
        is_folder: it is a folder.
        is_link: it is a link, which is never followed.
    """

    name: str
    size: int
    time_ns: int
    mode: int | None = None
    open: Callable[[], IO[bytes]] | None = None
    is_folder: bool = False
    is_link: bool = False


@runtime_checkable
class Unpacker(Protocol):
    """Finds the files in archives of one kind; each archive becomes a folder.

    Walship checks names and sizes, and leaves links out. What is raised of :data:`UNREADABLE` refuses the archive.
    """

    @property
    def extensions(self) -> tuple[str, ...]:
        """Those of its archives, with their dots; ``.gz``, ``.tgz`` and ``.zst`` are taken off the content before."""

    def members(self, file: IO[bytes]) -> Iterator[ArchiveMember]:
        """The members of an archive, which stays open as long as one of them is read; one at a time is."""
