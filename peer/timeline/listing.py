"""Listings: the partitions of a dataset, and the files of a partition, as its store has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from replication.core.timeline.instants import FileVersion
from replication.datasets.stores.open import is_local, local_path
from replication.datasets.stores.remote import driver_of
from replication.errors import RequestError
from replication.files.store import driver_errors

#: Names that begin so are walship's own: staged files, and its notes.
STAGING_PREFIX = ".walship"
_KINDS = ("file", "directory")  # the others may be links to files; links to folders, and pipes, are nobody's files


class Listings(Protocol):
    """Lists datasets."""

    def partitions(self, dataset: str, root: str) -> list[str]:
        """Return the names of the partitions of a dataset."""

    def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
        """Return the files of a partition; empty if it does not exist. StorageError if the store failed."""


class FolderListings:
    """Lists datasets that are folders of a store that fsspec supports; each folder below the root is a partition.

    ``calls`` counts the folders that it listed. ``options`` tells those of the store of a dataset and its root.
    """

    def __init__(self, options: Callable[[str, str], Mapping[str, Any]] = lambda dataset, root: {}) -> None:
        self.calls = 0
        self._options = options

    def partitions(self, dataset: str, root: str) -> list[str]:
        """See Listings."""
        found, left = [], [""]
        while left:
            partition = left.pop()
            entries = self._entries(dataset, root, partition)
            if any(entry["type"] != "directory" for entry in entries):
                found.append(partition)
            left += [_below(partition, entry) for entry in entries if entry["type"] == "directory"]
        return sorted(found)

    def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
        """See Listings."""
        return [
            FileVersion(partition, _below(partition, entry), int(entry["size"] or 0))
            for entry in self._entries(dataset, root, partition)
            if entry["type"] != "directory"
        ]

    def _entries(self, dataset: str, root: str, partition: str) -> list[dict[str, Any]]:
        if partition and any(part in ("", ".", "..") or "\0" in part for part in partition.split("/")):
            raise RequestError(
                f"{partition[:300]!r} is not a partition: it leaves the dataset, or is no name of a folder",
                "Name a folder below its root",
            )
        folder = f"{root.rstrip('/')}/{partition}".rstrip("/")
        self.calls += 1
        options = self._options(dataset, root)
        with driver_errors(f"listing {folder}"):
            fs, path = opened_root(root, options)
            path = f"{path}/{partition}".rstrip("/")  # a name below may look like an address
            protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
            try:
                entries = list(driver_of(protocol).entries(fs, path or "/"))
            except (FileNotFoundError, NotADirectoryError):
                return []
        named = (entry for entry in entries if not _name(entry).startswith(STAGING_PREFIX) and _name(entry))
        return [entry for entry in named if entry["type"] in _KINDS or fs.isfile(entry["name"])]


def opened_root(root: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The driver of fsspec for a dataset's root, opened with ``options``, and the root's path there."""
    import fsspec

    if is_local(root):  # else fsspec takes :: for the end of an address
        return fsspec.filesystem("file"), local_path(root).rstrip("/")
    driver = driver_of(fsspec.utils.get_protocol(root))
    fs, path = driver.opened(root.rstrip("/"), dict(options or {}))
    if not driver.is_shared and not driver.is_alive(fs):  # fsspec keeps connections, and the server has ended this one
        fs.clear_instance_cache()
        fs, path = driver.opened(root.rstrip("/"), dict(options or {}))
    return fs, path.rstrip("/")


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _below(partition: str, entry: dict[str, Any]) -> str:
    return f"{partition}/{_name(entry)}" if partition else _name(entry)
