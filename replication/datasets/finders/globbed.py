"""A finder of the folders that match a glob, and one of table directories; a dataset each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.datasets.finders.base import ListsIntoSink
from replication.datasets.finders.recursive import RecursiveDataset
from replication.datasets.listing.sink import ListingSink
from replication.datasets.stores.base import EntryKind, Store, is_temporary
from replication.error_text import one_line
from replication.errors import RequestError

#: A folder that holds one of these is a table's.
TABLE_MARKS = frozenset({"metadata", "_delta_log", ".hoodie", "_SUCCESS"})
_DEPTH_MAX = 16


class GlobFinder:
    """Each folder that matches ``pattern``, such as ``events/*/daily``, is a dataset; a ``*`` stays in one folder.

    Raises:
        RequestError: there is no pattern.
    """

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._store = store
        self._parts = checked(properties, "pattern")["pattern"].strip("/").split("/")

    @property
    def common_root(self) -> RelativePath:
        """The folder above the first part with a wildcard."""
        fixed = []
        for part in self._parts:
            if any(character in part for character in "*?["):
                break
            fixed.append(part)
        return RelativePath("/".join(fixed))

    def find_datasets(self) -> Iterator[ListsIntoSink]:
        """All folders that match, and those above that cannot be listed."""
        yield from self._matching(ROOT, self._parts)

    def _matching(self, folder: RelativePath, parts: list[str]) -> Iterator[ListsIntoSink]:
        if not parts:
            yield RecursiveDataset(self._store, folder, metadata={"dataset": folder})
            return
        name, *rest = parts
        yield from in_each(
            self._store, folder, lambda below: self._matching(below, rest) if fnmatchcase(below.name, name) else ()
        )


class TableFinder:
    """Each table directory is a dataset and one file set, so that a reader sees a whole version of the table.

    A folder with ``metadata``, ``_delta_log``, ``.hoodie`` or ``_SUCCESS`` in it is one. The property ``below`` is a
    folder to look in; all by default.
    """

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._store = store
        self.common_root = RelativePath(checked(properties, optional="below").get("below", "").strip("/"))

    def find_datasets(self) -> Iterator[ListsIntoSink]:
        """All table directories; tables within tables belong to the outer one. And folders that cannot be listed."""
        yield from self._below(self.common_root, 0)

    def _below(self, folder: RelativePath, depth: int) -> Iterator[ListsIntoSink]:
        try:
            entries = [entry for entry in self._store.scan(folder) if entry.attributes is not None]
        except OSError as error:
            yield UnlistedFolder.of(folder, error)
            return
        paths = {entry.attributes.path: entry.kind for entry in entries if entry.attributes is not None}
        if marks := [path for path in paths if path.name in TABLE_MARKS]:
            first = [path for path in marks if paths[path] is EntryKind.FOLDER]
            yield RecursiveDataset(self._store, folder, file_set=folder, metadata={"table": folder}, first=first)
        elif depth < _DEPTH_MAX:
            for entry in entries:
                if entry.kind is EntryKind.FOLDER and entry.attributes is not None and entry.attributes.name != STAGING:
                    yield from self._below(entry.attributes.path, depth + 1)


@dataclass(frozen=True)
class UnlistedFolder:
    """A dataset in place of a folder that cannot be listed: it tells that, and the others are copied."""

    root: RelativePath
    reason: str

    @classmethod
    def of(cls, folder: RelativePath, error: OSError) -> UnlistedFolder:
        """For a folder below the root. Raises the error of the root itself, or of a store that may answer later."""
        if not folder or is_temporary(error):
            raise error
        return cls(folder, one_line(error))

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """Tell it."""
        sink.failed(self.root, self.reason)


def in_each(
    store: Store, folder: RelativePath, find: Callable[[RelativePath], Iterable[ListsIntoSink]]
) -> Iterator[ListsIntoSink]:
    """What ``find`` finds in each folder of a folder, by name; what tells it if that cannot be listed."""
    try:
        found = folders_of(store, folder)
    except OSError as error:
        yield UnlistedFolder.of(folder, error)
        return
    for below in found:
        yield from find(below)


def folders_of(store: Store, folder: RelativePath) -> list[RelativePath]:
    """The folders in a folder, by name."""
    found = [
        entry.attributes.path
        for entry in store.scan(folder)
        if entry.kind is EntryKind.FOLDER and entry.attributes is not None and entry.attributes.name != STAGING
    ]
    return sorted(found)


def checked(properties: Mapping[str, str], *required: str, optional: str = "") -> Mapping[str, str]:
    """The properties of a finder; RequestError when one is missing or unknown."""
    known = {*required, *optional.split()}
    missing, unknown = set(required) - properties.keys(), properties.keys() - known
    if missing or unknown:
        what = f"{', '.join(sorted(missing))} is missing" if missing else f"{', '.join(sorted(unknown))} is unknown"
        raise RequestError(
            f"the finder's properties do not fit: {what}", f"It takes {', '.join(sorted(known)) or 'none'}"
        )
    return properties
