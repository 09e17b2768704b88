"""A dataset that is a folder and all below it, one that is a single file, and a finder of a dataset that is known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from replication.core.copying.configuration import CopyConfiguration, Grouping
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.finders.base import ListsIntoSink
from replication.datasets.listing.compare import Comparison
from replication.datasets.listing.decisions import Decisions
from replication.datasets.listing.sink import ListingSink
from replication.datasets.stores.base import EntryKind, Store, TreeChanges
from replication.errors import MissingFileError, UnsafeNameError


class RecursiveDataset:
    """A folder and all below it; files keep their paths.

    All are of ``file_set``; None leaves that to the configuration. With ``changes``, which are of all of the source,
    nothing else is compared. Folders in ``root`` that are ``first`` are listed before the others.
    """

    def __init__(
        self,
        source: Store,
        root: RelativePath = ROOT,
        file_set: str | None = None,
        metadata: Mapping[str, str] | None = None,
        changes: TreeChanges | None = None,
        first: Collection[RelativePath] = (),
    ) -> None:
        self._source, self.root, self._file_set, self._changes, self._first = source, root, file_set, changes, first
        self._metadata = dict(metadata or {})

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """Compare the folder with the target's."""
        file_set = self._file_set
        if file_set is None and configuration.grouping is Grouping.DATASET:
            file_set = self.root
        given: dict[str, Any] = {} if file_set is None else {"file_set": file_set}
        build = partial(
            CopyableFile.build, self._source.url, configuration=configuration, metadata=self._metadata, **given
        )
        Comparison(self._source, target, configuration, build, sink, file_set, self._changes).run(
            self.root, self._first
        )


class SingleFileDataset:
    """One file, which may get another name."""

    def __init__(self, source: Store, path: RelativePath, destination: RelativePath) -> None:
        self._source, self._path, self._destination = source, path, destination
        self.root = path.parent

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """Compare the file with the target's; MissingFileError if there is none."""
        found = self._source.status(self._path)
        if found is not None and found.refused:
            sink.failed(self._path, found.refused)
            return
        if found is None or found.kind is not EntryKind.FILE or found.attributes is None:
            raise MissingFileError(f"{self._source.url}/{self._path} is not a file", "Check the address")
        if not configuration.filters.takes(found.attributes):
            return
        file = CopyableFile.build(self._source.url, found.attributes, configuration, destination=self._destination)
        try:
            decision, file = Decisions(self._source, target, configuration).on(file)
        except UnsafeNameError as error:
            sink.failed(self._path, error.what)
            return
        if decision.is_copied:
            sink.copy([file])
        else:
            sink.skipped(decision.value, self._path, found.attributes.size)
        sink.ended(file.file_set)


@dataclass
class OneDataset:
    """A finder of a dataset that is known."""

    dataset: ListsIntoSink

    def find_datasets(self) -> Iterator[ListsIntoSink]:
        """That dataset."""
        yield self.dataset

    @property
    def common_root(self) -> RelativePath:
        """Its root."""
        return self.dataset.root
