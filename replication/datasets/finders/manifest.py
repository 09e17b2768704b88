"""A finder of one dataset whose files a manifest names: a file with a path in each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.datasets.finders.globbed import checked
from replication.datasets.listing.decisions import Decisions
from replication.datasets.listing.sink import ListingSink
from replication.datasets.stores.base import EntryKind, Store, read_whole
from replication.datasets.stores.same_names import name_key
from replication.errors import CopyError, MissingFileError, UnsafeNameError

_BYTES_MAX = 256 << 20


class ManifestFinder:
    """The files that ``manifest`` names are one dataset, and one file set.

    Empty lines and lines with ``#`` in front do not count.
    """

    common_root = ROOT

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._store = store
        self._manifest = RelativePath(checked(properties, "manifest")["manifest"].strip("/"))

    def find_datasets(self) -> Iterator[ManifestDataset]:
        """The dataset."""
        yield ManifestDataset(self._store, self._manifest)


class ManifestDataset:
    """The files that a manifest names."""

    root = ROOT

    def __init__(self, store: Store, manifest: RelativePath) -> None:
        self._store, self._manifest = store, manifest

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """List the files; if one is missing or refused nothing is copied, since they are published together."""
        try:
            files = list(self._files(target, configuration))
        except (MissingFileError, CopyError) as error:
            sink.failed(self._manifest, str(error))
            return
        sink.copy(files)
        sink.ended(self._manifest)

    def _files(self, target: Store, configuration: CopyConfiguration) -> Iterator[CopyableFile]:
        decisions = Decisions(self._store, target, configuration)
        given: dict[str, Any] = {"file_set": self._manifest, "metadata": {"manifest": self._manifest}}
        made: dict[str, RelativePath] = {}
        key = name_key(target)
        for path in self._paths():
            entry = self._store.status(path)
            if entry is None or entry.kind is not EntryKind.FILE or entry.attributes is None:
                raise MissingFileError(f"{path}, which {self._manifest} names, is not a file", "Correct the manifest")
            file = CopyableFile.build(self._store.url, entry.attributes, configuration, **given)
            if (other := made.setdefault(key(file.destination), path)) != path:
                raise CopyError(f"{path} and {other} both become {file.destination}", "Correct the manifest")
            try:
                decision, file = decisions.on(file)
            except UnsafeNameError as error:
                raise CopyError(f"{path}: {error.what}", error.hint) from None
            if decision.is_copied:
                yield file

    def _paths(self) -> Iterator[RelativePath]:
        entry = self._store.status(self._manifest)
        if entry is None or entry.attributes is None:
            raise MissingFileError(f"there is no manifest {self._manifest}", "Check its path")
        if entry.attributes.size > _BYTES_MAX:
            raise CopyError(
                f"the manifest {self._manifest} is larger than {_BYTES_MAX >> 20} MiB", "Split it, one dataset each"
            )
        try:
            text = read_whole(self._store, entry.attributes).decode()
        except UnicodeDecodeError as error:
            raise CopyError(f"the manifest {self._manifest} is not UTF-8: {error}", "Write it in UTF-8") from None
        seen: set[str] = set()
        for line in text.splitlines():
            name = line.strip()
            if name and not name.startswith("#") and name not in seen:
                seen.add(name)
                if STAGING in name.split("/"):
                    raise UnsafeNameError(f"{name} is one of a copy's own files", "Correct the manifest")
                yield RelativePath(name)
