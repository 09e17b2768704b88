"""A timeline's records in a folder: on a local file system, in S3 or in memory, by fsspec.

On a local file system a record is written under another name, synced, and linked: a link fails if its name is taken.
S3 refuses to create an object that exists. Other stores may replace an object that another process has just written,
so they are refused.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from replication.errors import ConfigError, MissingFileError, StorageError
from replication.files.local import LocalFiles, path_errors, write_whole
from replication.files.store import driver_errors
from replication.timeline.archived import ArchivedRecords
from replication.timeline.base import Records

_SAFE = ("s3", "s3a", "memory")


def open_records(url: str) -> Records:
    """Return the records below an address: a path, ``file:///…`` or ``s3://…``.

    Raises:
        ConfigError: the store cannot create an object only if it does not exist.
    """
    scheme, found, path = url.partition("://")
    if not found or scheme in ("file", "local"):
        return ArchivedRecords(_LocalObjects(Path(path if found else url)))
    if scheme not in _SAFE:
        raise ConfigError(
            f"a timeline cannot be kept at {url}: {scheme} may replace what another process has just written",
            "Set [timeline] url to a folder of a shared file system (file:///…) or of S3 (s3://…)",
        )
    return ArchivedRecords(_RemoteObjects(url))


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


def _unpacked(content: bytes, where: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"{where} is damaged: {error}", "Restore it from a backup") from None


class _LocalObjects:
    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, LocalFiles()
        self._made: set[Path] = set()

    def create(self, name: str, content: bytes) -> bool:
        return self._write(name, content, os.link)

    def replace(self, name: str, content: bytes) -> None:
        self._write(name, content, os.replace)

    def remove(self, name: str) -> None:
        self._files.remove(str(self._folder / name))

    def _write(self, name: str, content: bytes, place: Callable[[Path, Path], None]) -> bool:
        file = self._folder / name
        with path_errors(str(file), "write"):
            if file.parent not in self._made:
                self._files.make_directory(str(file.parent))
                self._made.add(file.parent)
            try:
                write_whole(file, _packed(content), place=place)
            except FileExistsError:
                return False
            return True

    def read(self, name: str) -> bytes | None:
        file = self._folder / name
        try:
            with path_errors(str(file), "read"):
                return _unpacked(file.read_bytes(), str(file))
        except MissingFileError:
            return None


class _RemoteObjects:
    def __init__(self, url: str) -> None:
        import fsspec

        self._fs: Any
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except Exception as error:  # each driver has its own errors
            raise ConfigError(
                f"the store at {url} cannot be opened: {error}", "Install its driver: see walship's extras"
            ) from error

    def create(self, name: str, content: bytes) -> bool:
        with self._errors(name) as path:
            try:
                self._fs.pipe_file(path, _packed(content), mode="create")
            except Exception as error:
                if not isinstance(error, FileExistsError) and not _is_taken(error):
                    raise
                return False
        return True

    def replace(self, name: str, content: bytes) -> None:
        with self._errors(name) as path:
            self._fs.pipe_file(path, _packed(content))

    def remove(self, name: str) -> None:
        with self._errors(name) as path, suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def read(self, name: str) -> bytes | None:
        with self._errors(name) as path:
            try:
                return _unpacked(self._fs.cat_file(path), path)
            except FileNotFoundError:
                return None

    @contextmanager
    def _errors(self, name: str) -> Iterator[str]:
        """The path of an object; what its driver raises becomes StorageError."""
        path = f"{self._root}/{name}"
        with driver_errors(f"The store of the timeline at {path}"):
            yield path


def _is_taken(error: BaseException | None) -> bool:
    """Whether S3 says, somewhere in a chain of errors, that the object exists."""
    while error is not None:
        if "PreconditionFailed" in str(error) or "ConditionalRequestConflict" in str(error):
            return True
        error = error.__cause__
    return False
