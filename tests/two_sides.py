"""Two local folders that a test keeps the same by a two-way sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replication.core.copying.configuration import CopyConfiguration
from replication.datasets.stores.base import Store
from replication.datasets.stores.local import LocalStore
from replication.datasets.two_way.sync import SyncResult, TwoWaySync
from tests.copying import read_tree

LATER = 1_700_000_100


def sync(
    at: Path, first: Store | None = None, second: Store | None = None, *, dry_run: bool = False, **given: Any
) -> SyncResult:
    """Sync the folders ``a`` and ``b``; a given store takes the place of one."""
    sides = first or LocalStore(str(at / "a")), second or LocalStore(str(at / "b"))
    return TwoWaySync(*sides, CopyConfiguration(threads=1, **given)).run(dry_run=dry_run)


def both(at: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What both folders hold."""
    return read_tree(at / "a"), read_tree(at / "b")
