"""What a drill forks: one commit time for all tables, and the snapshots from which each is read as of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peer.tables.latest import Folded
from peer.tables.read import Pinned, base_of, earliest_of
from replication.core.definition.aging import REMOVED_LATER_US, horizon
from replication.core.definition.schema import TableSpec
from replication.errors import RequestError
from replication.tables.base import History, Snapshot


@dataclass(frozen=True, slots=True)
class Histories:
    """The histories of a table's Iceberg tables; of a table without a key only ``table``."""

    table: History
    changes: History | None = None
    tombstones: History | None = None


@dataclass(frozen=True, slots=True)
class TableTime:
    """How far a table is: its replicated time, what holds it there, and the earliest time it can be read as of.

    ``earliest`` is None when only the newest rows can be read.
    """

    replicated: int
    held_by: str = ""
    earliest: int | None = 0


@dataclass(frozen=True, slots=True)
class ForkInstant:
    """The commit time to fork at, and why tables are left out of the fork, by name."""

    time: int
    left_out: Mapping[str, str]


def choose_instant(tables: Mapping[str, TableTime]) -> ForkInstant:
    """Return the latest time at which all tables can be forked.

    A table that is so far behind that others cannot be read as of its replicated time any more is left out.

    Raises:
        RequestError: no table can be forked.
    """
    left_out = {}
    for name, table in tables.items():
        if table.earliest is None:
            left_out[name] = "only its newest rows can be read: the record of its last fold has expired"
        elif not table.replicated:
            left_out[name] = table.held_by or "nothing is known of how far it is"
    first = max((table.earliest or 0 for name, table in tables.items() if name not in left_out), default=0)
    for name, table in tables.items():
        if name not in left_out and table.replicated < first:
            behind_s = (first - table.replicated) / 1e6
            held = f", held by {table.held_by}" if table.held_by else ""
            left_out[name] = f"it is {behind_s:.0f} s behind what other tables are folded up to{held}"
    times = [table.replicated for name, table in tables.items() if name not in left_out]
    if not times:
        what = "; ".join(f"{name}: {why}" for name, why in sorted(left_out.items())[:3]) or "there are no tables"
        raise RequestError(f"no table can be forked: {what}", "Tables need rows, and a replicated time: walship status")
    return ForkInstant(min(times), left_out)


def table_time(replicated: Mapping[object, tuple[int, str]], spec: TableSpec, table: History | None) -> TableTime:
    """A table's times, by the replicated time and what holds it of each origin."""
    time, held_by = min(replicated.values(), default=(0, ""))
    if table is None or not spec.key:  # of one without a key only expired rows are removed
        removed = time - REMOVED_LATER_US
        return TableTime(time, held_by, 0 if table is None or horizon(spec, removed) is None else removed)
    return TableTime(time, held_by, earliest_of(table))


def pin(spec: TableSpec, histories: Histories | None, time: int) -> Pinned | None:
    """The snapshots from which a table can be read as of a commit time; None if they have expired.

    ``histories`` were read after ``time`` was its replicated time; they are None if it has no Iceberg tables yet.
    """
    if histories is None:
        return Pinned(None, None, None)
    if histories.changes is None or histories.tombstones is None:
        return Pinned(None, histories.table.current, None)
    try:
        folded, snapshot = base_of(histories.table, spec, time)
    except RequestError:  # a fold went past it just now
        return _before_fold(histories.table, histories.changes, histories.tombstones, time)
    return Pinned(histories.changes.current, snapshot, histories.tombstones.current, folded)


def _before_fold(table: History, changes: History, tombstones: History, time: int) -> Pinned | None:
    """The newest fold that does not go past ``time``, and changes from which none was trimmed since."""
    later: Snapshot | None = None
    for snapshot in table.chain():
        folded = Folded.of(snapshot.summary)
        if folded is None:
            continue
        if folded.upto <= time and later is not None:
            deleted = next((each.id for each in tombstones.chain() if each.at <= snapshot.at), tombstones.current)
            return Pinned(_untrimmed(changes, later.at), snapshot.id, deleted, folded)
        later = snapshot
    if later is not None and table.whole:
        return Pinned(_untrimmed(changes, later.at), None, None)
    return None


def _untrimmed(changes: History, since: int) -> int | None:
    """The newest snapshot before the first one since a time that deleted rows."""
    found = changes.current
    for snapshot in changes.chain():
        if snapshot.at < since:
            break
        if _deletes_rows(snapshot):
            found = snapshot.parent
    return found


def _deletes_rows(snapshot: Snapshot) -> bool:
    removed = ("deleted-data-files", "added-delete-files")
    return snapshot.operation != "replace" and any(name in snapshot.summary for name in removed)
