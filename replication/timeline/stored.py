"""A timeline's records in a folder: on a local file system, in S3 or in memory, by fsspec.

On a local file system a record is written under another name, synced, and linked: a link fails if its name is taken.
S3 refuses to create an object that exists. Other stores may replace an object that another process has just written,
so they are refused.
"""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replication.errors import ConfigError, StorageError
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
            f"A timeline cannot be kept at {url}: {scheme} may replace what another process has just written",
            "Set [timeline] url to a folder of a shared file system (file:///…) or of S3 (s3://…)",
        )
    return ArchivedRecords(_RemoteObjects(url))


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


def _unpacked(content: bytes, where: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise StorageError(f"{where} is damaged: {error}", "Restore it from a backup") from None


class _LocalObjects:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: set[Path] = set()

    def create(self, name: str, content: bytes) -> bool:
        return self._write(name, content, os.link)

    def replace(self, name: str, content: bytes) -> None:
        self._write(name, content, os.replace)

    def remove(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self._folder / name} cannot be removed: {error.strerror}", "Check the disk"
            ) from error

    def _write(self, name: str, content: bytes, place: Callable[[Path, Path], None]) -> bool:
        file = self._folder / name
        part = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            if file.parent not in self._made:
                _make_durable(file.parent)
                self._made.add(file.parent)
            try:
                with part.open("wb") as opened:
                    opened.write(_packed(content))
                    opened.flush()
                    os.fsync(opened.fileno())
                try:
                    place(part, file)
                except FileExistsError:
                    return False
            finally:
                part.unlink(missing_ok=True)
            _sync(file.parent)
            return True
        except OSError as error:
            raise StorageError(f"{file} cannot be written: {error.strerror}", "Check the disk") from error

    def read(self, name: str) -> bytes | None:
        file = self._folder / name
        try:
            return _unpacked(file.read_bytes(), str(file))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{file} cannot be read: {error.strerror}", "Check the disk") from error


class _RemoteObjects:
    def __init__(self, url: str) -> None:
        import fsspec

        self._fs: Any
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except Exception as error:  # each driver has its own errors
            raise ConfigError(
                f"The store at {url} cannot be opened: {error}", "Install its driver: see walship's extras"
            ) from error

    def create(self, name: str, content: bytes) -> bool:
        path = f"{self._root}/{name}"
        try:
            self._fs.pipe_file(path, _packed(content), mode="create")
            return True
        except FileExistsError:
            return False
        except Exception as error:
            if _is_taken(error):
                return False
            raise self._failed(path, error) from error

    def replace(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        try:
            self._fs.pipe_file(path, _packed(content))
        except Exception as error:
            raise self._failed(path, error) from error

    def remove(self, name: str) -> None:
        path = f"{self._root}/{name}"
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failed(path, error) from error

    def read(self, name: str) -> bytes | None:
        path = f"{self._root}/{name}"
        try:
            return _unpacked(self._fs.cat_file(path), path)
        except FileNotFoundError:
            return None
        except StorageError:
            raise
        except Exception as error:
            raise self._failed(path, error) from error

    def _failed(self, path: str, error: Exception) -> StorageError:
        return StorageError(
            f"The store of the timeline failed at {path}: {type(error).__name__}: {error}"[:500],
            "Check the connection and the credentials",
        )


def _is_taken(error: BaseException | None) -> bool:
    """Whether S3 says, somewhere in a chain of errors, that the object exists."""
    while error is not None:
        if "PreconditionFailed" in str(error) or "ConditionalRequestConflict" in str(error):
            return True
        error = error.__cause__
    return False


def _make_durable(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
