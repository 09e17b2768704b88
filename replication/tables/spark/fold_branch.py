"""The branches that large folds are written to, one per attempt, so that two folds of a table never mix."""

from __future__ import annotations

import time
from uuid import uuid4

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from replication.errors import CommitConflictError

_PREFIX = "walship_fold"
_ABANDONED_S = 86_400


def new_branch() -> str:
    """Return a unique branch name; it contains the time."""
    return f"{_PREFIX}_{int(time.time())}_{uuid4().hex}"


def head(metadata: TableMetadata, branch: str) -> int:
    """Return a branch's newest snapshot. Raises CommitConflictError when the branch was dropped."""
    ref = metadata.refs.get(branch)
    if ref is None:
        raise CommitConflictError(f"the branch {branch} was dropped by another process")
    return ref.snapshot_id


def check_branch(metadata: TableMetadata, branch: str, begun: int, deleted: int) -> None:
    """Raise CommitConflictError unless the branch has exactly its first snapshot, our deletes and one append."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    if parents.get(head(metadata, branch)) != deleted or (deleted != begun and parents.get(deleted) != begun):
        raise CommitConflictError(f"the branch {branch} was changed by another process")


def abandoned(metadata: TableMetadata) -> list[str]:
    """Return the branches left by attempts that began more than a day ago, or by an older version."""
    found = []
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH and f"{name}_".startswith(f"{_PREFIX}_"):
            begun = name.removeprefix(_PREFIX).lstrip("_").partition("_")[0]
            if not begun.isdigit() or int(begun) < time.time() - _ABANDONED_S:
                found.append(name)
    return found
