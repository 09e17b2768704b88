"""The protocols of finders and datasets, for walship's own and for plugins.

A plugin is an entry point of the group ``walship.finders``: a class that is called with a store and its properties, and
whose objects are :class:`DatasetFinder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.listing.sink import ListingSink
from replication.datasets.stores.base import Store


class CopyableDataset(Protocol):
    """Files that belong together, such as a table, as a plugin has them."""

    @property
    def root(self) -> RelativePath:
        """The deepest folder that holds all its files."""

    def copyable_files(self, target: Store, configuration: CopyConfiguration) -> Iterable[CopyableFile]:
        """Every file that is to be copied, exactly once, and no folders; each names its file set.

        All of them are copied, so comparing with the target is the dataset's task.
        """


@runtime_checkable
class ListsIntoSink(Protocol):
    """A dataset that also tells what it skips, which files the target has besides, and when a file set ends.

    Each file to be copied is listed once, as with :class:`CopyableDataset`.
    """

    @property
    def root(self) -> RelativePath:
        """The deepest folder that holds all its files."""

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """List the dataset by several threads, and wait where the sink does."""


Dataset: TypeAlias = CopyableDataset | ListsIntoSink


class DatasetFinder(Protocol):
    """Finds datasets."""

    def find_datasets(self) -> Iterator[Dataset]:
        """All datasets that are there."""

    @property
    def common_root(self) -> RelativePath:
        """The deepest folder that holds all datasets' roots."""
