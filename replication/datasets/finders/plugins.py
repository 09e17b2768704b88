"""Finders by name: walship's own, and those of installed packages, by the entry points ``walship.finders``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replication import plugins
from replication.datasets.finders.base import DatasetFinder
from replication.datasets.finders.globbed import GlobFinder, TableFinder, checked
from replication.datasets.finders.manifest import ManifestFinder
from replication.datasets.finders.partitioned import StreamFinder
from replication.datasets.finders.recursive import OneDataset, RecursiveDataset
from replication.datasets.stores.base import Store

GROUP = "walship.finders"

#: Makes a finder over a store, from its properties.
FinderFactory = Callable[[Store, Mapping[str, str]], DatasetFinder]


def _folder(store: Store, properties: Mapping[str, str]) -> DatasetFinder:
    checked(properties)
    return OneDataset(RecursiveDataset(store))


BUILT_IN: dict[str, FinderFactory] = {
    "folder": _folder,
    "glob": GlobFinder,
    "stream": StreamFinder,
    "manifest": ManifestFinder,
    "table": TableFinder,
}


def finder_of(name: str) -> FinderFactory:
    """The finder of a name; RequestError if there is none, or several packages have one."""
    return plugins.found(GROUP, "finder", name, BUILT_IN)
