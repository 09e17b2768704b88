"""Expire snapshots and delete the files that only they used, without the engine.

PyIceberg's own update drops tags that were set meanwhile. It also forgets which parent the oldest snapshot left had, by
which a history is known not to be whole. So this file has the update. What expires is as in Iceberg's Java library.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID, _apply_table_update, _TableMetadataUpdateContext
from pyiceberg.typedef import IcebergBaseModel

from replication import log
from replication.error_text import one_line
from replication.errors import CommitConflictError
from replication.tables.pyiceberg.ordered_catalog import OrderedCatalog
from replication.tables.pyiceberg.write import remove_files

_OWN_RULES = ("history.expire.", "gc.")  # properties by which another program may have set what expires
_log = log.get(__name__)


class _Expire(IcebergBaseModel):
    """An update of metadata: snapshots and branches that go."""

    action: Literal["walship-expire"] = "walship-expire"
    snapshots: frozenset[int]
    branches: frozenset[str]


@_apply_table_update.register(_Expire)
def _apply(  # type: ignore[misc]
    update: _Expire, base: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    refs = {name: ref for name, ref in base.refs.items() if name not in update.branches}
    if named := [name for name, ref in refs.items() if ref.snapshot_id in update.snapshots]:
        raise CommitFailedException(f"snapshots that expire were named meanwhile: {named[0]}")
    log_entries = list(base.snapshot_log)
    for at in range(len(log_entries) - 1, -1, -1):  # an earlier entry would follow one that is not there
        if log_entries[at].snapshot_id in update.snapshots:
            log_entries = log_entries[at + 1 :]
            break
    context.add_update(update)  # type: ignore[arg-type]
    left = [snapshot for snapshot in base.snapshots if snapshot.snapshot_id not in update.snapshots]
    return base.model_copy(update={"snapshots": left, "refs": refs, "snapshot_log": log_entries})


def can_expire(table: Table) -> bool:
    """Return whether this process commits to the table's catalog by itself, and nobody else set what expires."""
    refs = table.metadata.refs.values()
    limited = any(ref.min_snapshots_to_keep or ref.max_snapshot_age_ms or ref.max_ref_age_ms for ref in refs)
    ruled = any(name.startswith(_OWN_RULES) for name in table.metadata.properties)
    counted = table.metadata.statistics or table.metadata.partition_statistics
    return isinstance(table.catalog, OrderedCatalog) and not (limited or ruled or counted)


def expire(table: Table, older_than: int, keep: int, branches: Collection[str]) -> None:
    """Expire snapshots that no tag names, except the newest ``keep`` of each branch; delete files that only they used.

    The table was just loaded, and ``can_expire``. Snapshots younger than ``older_than`` (microseconds since 1970) stay;
    ``branches`` are dropped.

    Raises:
        CommitConflictError: another commit came first. Nothing was changed.
    """
    before = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    gone = frozenset(before) - _retained(table.metadata, older_than // 1000, keep, branches)
    if not gone and not branches:
        return
    update = _Expire(snapshots=gone, branches=frozenset(branches))
    try:
        table._do_commit((update,), (AssertTableUUID(uuid=table.metadata.table_uuid),))  # type: ignore[arg-type]
    except CommitFailedException as error:
        name = ".".join(table.name()[-2:])
        raise CommitConflictError(f"{name} was changed by another commit: {error}") from None
    try:
        unused = list(_unused(table.io, [before[each] for each in gone], table.metadata.snapshots))
    except Exception as error:  # a manifest is missing or damaged: which files are unused cannot be known
        _log.warning("expired_files_left", table=".".join(table.name()[-2:]), error=one_line(error))
        return
    remove_files(table.io, unused)


def _retained(metadata: TableMetadata, older_than_ms: int, keep: int, dropped: Collection[str]) -> set[int]:
    """Return the snapshots that stay, as Iceberg's ``RemoveSnapshots`` has it."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    retained, referenced = set[int](), set[int]()
    for name, ref in metadata.refs.items():
        if name in dropped:
            continue
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            retained.add(ref.snapshot_id)
            referenced.add(ref.snapshot_id)
            continue
        line = list(_ancestors(by_id, ref.snapshot_id))
        referenced.update(snapshot.snapshot_id for snapshot in line)
        for number, snapshot in enumerate(line):
            if number >= keep and snapshot.timestamp_ms < older_than_ms:
                break
            retained.add(snapshot.snapshot_id)
    young = {each.snapshot_id for each in metadata.snapshots if each.timestamp_ms >= older_than_ms}
    return retained | (young - referenced)


def _ancestors(by_id: dict[int, Snapshot], at: int | None) -> Iterator[Snapshot]:
    while at is not None and at in by_id:
        yield by_id[at]
        at = by_id[at].parent_snapshot_id


def _unused(io: FileIO, gone: Sequence[Snapshot], left: Sequence[Snapshot]) -> Iterator[str]:
    """Yield the files of expired snapshots that no snapshot left has: data, then manifests, then their lists."""
    kept, expired = manifests_of(io, left), manifests_of(io, gone)
    manifests = [manifest for path, manifest in expired.items() if path not in kept]
    data = _live(io, manifests)
    if data:
        data -= _live(io, kept.values())
    yield from sorted(data)
    yield from (manifest.manifest_path for manifest in manifests)
    yield from (snapshot.manifest_list for snapshot in gone)


def manifests_of(io: FileIO, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """Return the manifests of snapshots by their paths."""
    return {manifest.manifest_path: manifest for snapshot in snapshots for manifest in snapshot.manifests(io)}


def _live(io: FileIO, manifests: Iterable[ManifestFile]) -> set[str]:
    return {entry.data_file.file_path for manifest in manifests for entry in manifest.fetch_manifest_entry(io)}
