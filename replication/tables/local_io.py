"""Local files for PyIceberg, with nothing but the operating system.

PyIceberg's own ways to files load Arrow's datasets with pandas, or an HTTP stack: two to three tenths of a second, of
which a command that reads a local table needs none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream


def local_path(location: str) -> str:
    """``file:///a``, ``file:/a`` and ``/a`` as ``/a``; other locations as they are."""
    return "/" + location[len("file:") :].lstrip("/") if location.startswith("file:") else location


class LocalFileIO(FileIO):
    """Files of the local file system, by path or ``file:`` address."""

    def new_input(self, location: str) -> LocalInput:
        """A file to read; looked at only when opened."""
        return LocalInput(location)

    def new_output(self, location: str) -> LocalOutput:
        """A file to write; made only by ``create``."""
        return LocalOutput(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; FileNotFoundError when there is none."""
        os.remove(local_path(location if isinstance(location, str) else location.location))


class LocalInput(InputFile):
    """A local file to read."""

    def __len__(self) -> int:
        """Its size in bytes."""
        return os.stat(local_path(self.location)).st_size

    def exists(self) -> bool:
        """Whether it is there."""
        return os.path.exists(local_path(self.location))

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes from the beginning."""
        return cast(InputStream, open(local_path(self.location), "rb"))


class LocalOutput(OutputFile):
    """A local file to write."""

    def __len__(self) -> int:
        """Its size in bytes."""
        return os.stat(local_path(self.location)).st_size

    def exists(self) -> bool:
        """Whether it is there."""
        return os.path.exists(local_path(self.location))

    def to_input_file(self) -> LocalInput:
        """The same file to read."""
        return LocalInput(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Make it, and its folder; FileExistsError when it is there and ``overwrite`` is False."""
        path = Path(local_path(self.location))
        path.parent.mkdir(parents=True, exist_ok=True)
        return cast(OutputStream, path.open("wb" if overwrite else "xb"))
