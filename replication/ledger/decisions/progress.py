"""Joins two reports of a peer's progress on a file. Workers join queued reports, the ledger stored ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.status import combine, reported
from replication.ledger.files import PeerProgress


def join(earlier: PeerProgress, later: PeerProgress) -> PeerProgress:
    """Join two reports; the error is the later one's unless that is None.

    After a loss at the peer only the ranges that the peer kept still count from earlier reports.
    """
    old, new = (earlier, later) if earlier.losses <= later.losses else (later, earlier)
    shipped, applied, kept = old.shipped, old.applied, new.kept
    if old.losses == new.losses:
        kept = old.kept.union(new.kept)
    else:
        shipped = shipped.intersect(new.kept)
        applied = min(applied, shipped.prefix(FILE_HEADER_BYTES))
    both = combine(reported(shipped, applied), reported(new.shipped, new.applied))
    return PeerProgress(
        earlier.file,
        earlier.peer,
        both.shipped,
        both.applied,
        max(earlier.commit, later.commit),
        earlier.error if later.error is None else later.error,
        _older(earlier.generation, later.generation),
        new.losses,
        kept,
        _both(earlier.withheld, later.withheld),
    )


def _both(one: Mapping[UUID, Ranges], two: Mapping[UUID, Ranges]) -> Mapping[UUID, Ranges]:
    if not one or not two:
        return one or two
    return {table: one.get(table, Ranges()).union(two.get(table, Ranges())) for table in (*one, *two)}


def _older(one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return min(one, two)
