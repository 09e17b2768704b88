"""What a table's rows are: one definition in portable SQL, for Spark (view, fold) and DuckDB (reads without Spark).

A version's place in the order is (timestamp; at an equal timestamp a delete with a user timestamp first; commit,
origin, WAL, sequence, row). ``<table>`` holds the winners folded so far; ``__changes`` rows that came after
(``_replay``) or are newer (``_commit``) than the last fold are merged in. Versions newer than the fold's time win
over anything folded, so stored rows and tombstones are looked at only for late ones and for user timestamps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from replication.core.definition.aging import horizon
from replication.core.definition.schema import DEFAULT_GROUP, TableSpec
from replication.tables.base import Dialect, History, Tables
from replication.tables.layout import CHANGES, TOMBSTONES, VERSION, group_columns, merge_groups, version_column

FOLD_SUMMARY = "walship.fold"
#: Tags the snapshot of ``<table>`` that consistent reads start from while a hold lasts.
CONSISTENT_TAG = "walship_consistent"
_SHOW_TRIES = 5
_ORDER = (
    "coalesce(_ts, _commit) desc, case when _op = 2 then 1 else 0 end desc,"
    " _commit desc, _origin desc, _wal desc, _seq desc, _row desc"
)


@dataclass(frozen=True, slots=True)
class Folded:
    """Position of ``<table>``: it has all rows of ``__changes`` with ``_replay`` and ``_commit`` at most these.

    ``held_replay`` and ``held_upto`` are those of the tagged consistent snapshot that consistent reads start from;
    equal to the others without a hold. When ``known`` is False, only that something was folded is known.
    """

    replay: int = 0
    upto: int = -1
    held_replay: int = 0
    held_upto: int = -1
    known: bool = True

    @property
    def holds(self) -> bool:
        """Whether a tagged snapshot is held for consistent reads."""
        return (self.held_replay, self.held_upto) != (self.replay, self.upto)

    def to_summary(self) -> dict[str, str]:
        """As properties of a snapshot of ``<table>``."""
        return {FOLD_SUMMARY: json.dumps([self.replay, self.upto, self.held_replay, self.held_upto])}

    @staticmethod
    def of(summary: Mapping[str, str]) -> Folded | None:
        """Read a snapshot's summary; None when no fold made it."""
        text = summary.get(FOLD_SUMMARY)
        return Folded(*json.loads(text)) if text is not None else None

    @staticmethod
    def newest(history: History) -> Folded:
        """The position of the newest fold among the current snapshot's ancestors.

        When that has expired, all changes count as unfolded (merging one again changes no row) and as late.
        """
        found = next((found for s in history.chain() if (found := Folded.of(s.summary)) is not None), None)
        return found or Folded(known=history.whole)

    @property
    def unfolded(self) -> str:
        """The condition on ``__changes`` rows that are not in ``<table>``, as SQL and as an Iceberg filter."""
        return f"_replay > {self.replay} or _commit > {self.upto}"


@dataclass(frozen=True)
class MergeQuery:
    """The SQL of one table in one dialect; ``changes``, ``table`` and ``tombstones`` are the names they are read by.

    Live rows are those of versions with a timestamp of ``horizon`` or more (``core/aging.py``), of any when None.
    """

    spec: TableSpec
    dialect: Dialect
    changes: str
    table: str
    tombstones: str
    folded: Folded
    horizon: int | None = None

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups whose versions are ordered separately."""
        return merge_groups(self.spec)

    @cached_property
    def _values(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.spec.columns if c.name not in self.spec.key)

    @cached_property
    def _version_columns(self) -> str:
        return ", ".join(("_group", "_op", *VERSION))

    @cached_property
    def _columns(self) -> str:
        return f"{self._list((*self.spec.key, *self._values))}, {self._version_columns}"

    @property
    def _always_late(self) -> bool:
        return self.spec.kind == "cell" or len(self.groups) > 1 or not self.folded.known

    def keys(self) -> str:
        """The key columns, quoted."""
        return self._list(self.spec.key)

    def changes_where(self, *, upto: int | None = None, replay: int | None = None, late: bool = True) -> str:
        """The condition on the rows of ``__changes`` that are to be merged into ``<table>``.

        Args:
            upto: only versions with a commit time at or below.
            replay: only versions that came with this replay commit or an earlier one.
            late: False leaves out changes that came after the last fold and are older.
        """
        limits = [f"({self.folded.unfolded})" if late else f"_commit > {self.folded.upto}", "_op >= 0"]
        limits += [f"_commit <= {upto}"] if upto is not None else []
        limits += [f"_replay <= {replay}"] if replay is not None else []
        return " and ".join(limits)

    @property
    def is_late(self) -> str:
        """The condition on a version that may lose against a folded one."""
        return "true" if self._always_late else f"_commit <= {self.folded.upto}"

    @property
    def came_late(self) -> str:
        """The condition on changes that came after the last fold and are older, as SQL and as an Iceberg filter."""
        return f"_replay > {self.folded.replay} and _commit <= {self.folded.upto}"

    def changed(self, where: str) -> str:
        """Keys of the changes that ``where`` names, some more than once."""
        return f"select {self.keys()} from {self.changes} where {where}"

    def resolved(self, where: str, *, late: bool = True, upto: int | None = None) -> str:
        """For every key of the changes that ``where`` names, the newest version of each group, deletes included.

        Args:
            where: which changes.
            late: False when it is known that none of them is late.
            upto: only tombstones with a commit time at or below; those of a fold past a hold exist already.
        """
        every = f"select {self._columns} from {self.changes} where {where}"
        if self.folded == Folded() or not late:
            return self._newest(every)
        behind = f"({self.changed(where if self._always_late else f'{where} and {self.is_late}')})"
        return self._newest(" union all ".join((every, *self._stored(behind), self._tombstone_rows(behind, upto))))

    def kept(self, keys: str) -> str:
        """Every stored version of the keys that a name or query in parentheses gives, in no order.

        ``_kept`` says where: ``changes`` (with ``_through`` and ``_applied``), ``table`` or ``tombstones``.
        """
        logged = ", ".join(("_through", "_applied"))
        none = "null as _through, null as _applied"
        parts = [
            f"select {self._columns}, 'changes' as _kept, {logged} from {self.changes} s"
            f" where _op >= 0 and {self._among(keys)}"
        ]
        parts += [f"select {self._columns}, 'table' as _kept, {none} from ({s}) f" for s in self._stored(keys)]
        parts.append(
            f"select {self._columns}, 'tombstones' as _kept, {none} from ({self._tombstone_rows(keys, None)}) b"
        )
        return " union all ".join(parts)

    def live(self, keys: str) -> str:
        """The rows of ``<table>`` for the keys that a name or query in parentheses gives, as they are now."""
        return self.rows(f"({self._newest(self.kept(keys))})")

    def rows(self, merged: str) -> str:
        """The rows of ``<table>`` that versions (a name or query) make: user columns and groups' versions."""
        young = "" if self.horizon is None else f" and coalesce(_ts, _commit) >= {self.horizon}"
        live = f"select * from {merged} v where _op = 0{young}"
        if len(self.groups) == 1:
            versions = ", ".join(f"{f} as {self.dialect.name(version_column(f, self.groups[0]))}" for f in VERSION)
            return f"select {self._list(c.name for c in self.spec.columns)}, {versions} from ({live}) m"
        made = [self.keys()]
        for group in self.groups:
            names = [(c, c) for c in group_columns(self.spec, group)] + [(f, version_column(f, group)) for f in VERSION]
            made += [
                f"any_value({self.dialect.name(source)}) filter (where _group = {self.dialect.text(group)})"
                f" as {self.dialect.name(name)}"
                for source, name in names
            ]
        return f"select {', '.join(made)} from ({live}) m group by {self.keys()}"

    def tombstone_rows(self, merged: str) -> str:
        """The rows of ``__tombstones`` that versions (a name or query) make."""
        return f"select {self.keys()}, {self._version_columns} from {merged} v where _op > 0"

    def every(self) -> str:
        """The newest version of every key and group, deletes included; for a deleted key an older one may be included.

        Columns as the changes have them, less ``_replay``.
        """
        where = self.changes_where()
        changed = f"({self.changed(where)})"
        stored = self._stored(changed, among=False)
        tombstone_rows = f"{self._tombstone_rows(changed, among=False)}"
        return " union all ".join((f"select * from ({self.resolved(where)}) r", *stored, tombstone_rows))

    def brought_by(self) -> str:
        """The frames that brought existing rows: origin, WAL, group, sequence, newest commit time."""
        group = "_group" if self.spec.kind != "cell" else group_of_family(self.spec)
        place = f"_origin, _wal, {group}, _seq, max(_commit)"
        parts = [f"select {place} from {self.changes} where _op >= 0 group by all"]
        parts.append(f"select {place} from {self.tombstones} group by all")
        for name in self.groups:
            origin, wal, sequence, commit = (
                self.dialect.name(version_column(field, name)) for field in ("_origin", "_wal", "_seq", "_commit")
            )
            named = self.dialect.text(name) if self.spec.kind != "cell" else group
            place = f"{origin}, {wal}, {named}, {sequence}, max({commit})"
            parts.append(f"select {place} from {self.table} where {sequence} is not null group by all")
        return " union all ".join(parts)

    def latest(self, *, upto: int | None = None, versions: bool = False, late: bool = True) -> str:
        """The table's rows now, or as of a commit time.

        Args:
            upto: the commit time.
            versions: with each group's version columns.
            late: False, which engines plan and run faster, leaves out what came after the last fold and is older.
        """
        names = [c.name for c in self.spec.columns]
        if versions and self.spec.key:
            names += [version_column(f, g) for g in self.groups for f in VERSION]
        columns = self._list(names)
        if not self.spec.key:
            # rows without a commit time came by no WAL, so they belong to every time
            limits = [] if upto is None else [f"_commit <= {upto}"]
            limits += [] if self.horizon is None else [f"_commit >= {self.horizon}"]
            where = f" where (_commit is null or {' and '.join(limits)})" if limits else ""
            return f"select {columns} from {self.table}{where}"
        late = late or self._always_late
        where = self.changes_where(upto=upto, late=late)
        return (
            f"select {columns} from {self._young()} s where not {self._changed_by(where)}"
            f" union all select {columns} from ({self.rows(f'({self.resolved(where, late=late, upto=upto)})')}) r"
        )

    def _young(self) -> str:
        """``<table>`` without expired rows, and without expired groups' values in other rows."""
        if self.horizon is None:
            return self.table
        old = {group: f"coalesce({self._timestamp(group)} < {self.horizon}, false)" for group in self.groups}
        made = [self.keys()]
        for group in self.groups:
            names = [*group_columns(self.spec, group), *(version_column(field, group) for field in VERSION)]
            made += [f"case when {old[group]} then null else {n} end as {n}" for n in map(self.dialect.name, names)]
        return f"(select {', '.join(made)} from {self.table} o where not ({self.too_old(self.horizon)}))"

    def too_old(self, horizon: int) -> str:
        """The condition on a row of ``<table>`` that no group has a version of ``horizon`` or later.

        Rows that came by no WAL have no version and do not expire.
        """
        if not self.spec.key:
            return f"_commit is not null and _commit < {horizon}"
        commits = [self.dialect.name(version_column("_commit", group)) for group in self.groups]
        some = " or ".join(f"{commit} is not null" for commit in commits)
        parts = [
            f"({commit} is null or {self._timestamp(group)} < {horizon})"
            for commit, group in zip(commits, self.groups, strict=True)
        ]
        return f"({some}) and {' and '.join(parts)}"

    def _timestamp(self, group: str) -> str:
        names = (self.dialect.name(version_column(field, group)) for field in ("_ts", "_commit"))
        return f"coalesce({', '.join(names)})"

    def _list(self, names: Iterable[str]) -> str:
        return ", ".join(self.dialect.name(name) for name in names)

    def _newest(self, versions: str) -> str:
        by = self.keys() + (", _group" if len(self.groups) > 1 else "")
        return (
            f"select {self._columns} from (select *, row_number() over (partition by {by} order by {_ORDER}) as _rank"
            f" from ({versions}) v) ranked where _rank = 1"
        )

    def _among(self, late: str) -> str:
        same = " and ".join(f"s.{self.dialect.name(k)} = l.{self.dialect.name(k)}" for k in self.spec.key)
        return f"exists (select 1 from {late} l where {same})"

    def _changed_by(self, where: str) -> str:
        """The condition on a row ``s`` that its key is among the changes that ``where`` names."""
        if not self.dialect.hash:
            return self._among(f"({self.changed(where)})")
        keys = [self.dialect.name(key) for key in self.spec.key]
        hashed = f"select {', '.join(keys)}, {self.dialect.hash}({', '.join(keys)}) as _hash"
        same = " and ".join(f"s.{key} >= l.{key} and s.{key} <= l.{key}" for key in keys)  # "=" would be joined by
        by = f"{self.dialect.hash}({', '.join(f's.{key}' for key in keys)}) = l._hash"
        return f"exists (select 1 from ({hashed} from {self.changes} where {where}) l where {by} and {same})"

    def _stored(self, late: str, *, among: bool = True) -> list[str]:
        """Rows of ``<table>`` for the late keys, or for all others, as one version per group."""
        parts: list[str] = []
        for group in self.groups:
            mine = set(group_columns(self.spec, group))
            values = [("" if n in mine else "null as ") + self.dialect.name(n) for n in self._values]
            versions = ", ".join(f"{self.dialect.name(version_column(f, group))} as {f}" for f in VERSION)
            parts.append(
                f"select {', '.join((self.keys(), *values))}, {self.dialect.text(group)} as _group, 0 as _op,"
                f" {versions}"
                f" from {self.table} s where {self.dialect.name(version_column('_commit', group))} is not null"
                f" and {'' if among else 'not '}{self._among(late)}"
            )
        return parts

    def _tombstone_rows(self, late: str, upto: int | None = None, *, among: bool = True) -> str:
        nulls = "".join(f", null as {self.dialect.name(n)}" for n in self._values)
        limit = "" if upto is None else f" and _commit <= {upto}"
        return (
            f"select {self.keys()}{nulls}, {self._version_columns} from {self.tombstones} s"
            f" where {'' if among else 'not '}{self._among(late)}{limit}"
        )


def latest_query(tables: Tables, spec: TableSpec, *, upto: int | None = None, versions: bool = False) -> str:
    """The query behind ``<table>__latest`` for a warehouse's own engine; valid as long as ``__changes`` are kept.

    Args:
        tables: the warehouse, whose engine runs the query.
        spec: the table.
        upto: only versions with a commit time up to this; not below the last fold's.
        versions: with each group's version columns.

    Rows that expire after this call are still in the query's result.
    """
    return _latest(tables, spec, tables.ref, now_us() if upto is None else upto, upto, versions)


def show_latest(tables: Tables, spec: TableSpec) -> None:
    """Make the view ``<table>__latest`` start from the newest fold.

    A view that starts from an earlier fold gives the same rows, slower, as long as ``__changes`` are kept. When a
    version older than the last fold arrives, ``show_late`` replaces the view, which then shows that one, too.

    Raises:
        UnknownTableError, CommitConflictError: the table is not there yet, or was altered; try again.
    """
    now = now_us()
    query = _latest(tables, spec, tables.near, now)
    for _ in range(_SHOW_TRIES):  # another thread may have shown a newer fold meanwhile
        tables.show(spec, query)
        shown, query = query, _latest(tables, spec, tables.near, now)
        if query == shown:
            return


def show_late(tables: Tables, spec: TableSpec, oldest: int) -> None:
    """Make the view show changes just appended, whose oldest commit time is ``oldest``."""
    if oldest <= Folded.newest(tables.history(spec.name)).upto:
        show_latest(tables, spec)


def _latest(
    tables: Tables,
    spec: TableSpec,
    named: Callable[[str], str],
    now: int,
    upto: int | None = None,
    versions: bool = False,
) -> str:
    folded = Folded.newest(tables.history(spec.name)) if spec.key else Folded()
    names = [named(spec.name + suffix) for suffix in (CHANGES, "", TOMBSTONES)]
    young = horizon(spec, now)
    merge = MergeQuery(spec, tables.dialect, names[0], names[1], names[2], folded, young)
    late = bool(spec.key) and tables.may_have(spec.name + CHANGES, merge.came_late)
    return merge.latest(upto=upto, versions=versions, late=late)


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def group_of_family(spec: TableSpec, of: str = "") -> str:
    """SQL for the locality group that a cell's family belongs to; ``of`` is the prefix of its columns."""
    whens = [
        f"when {of}family in ({', '.join(_literal(family) for family in group.members)}) then '{group.name}'"
        for group in spec.groups
        if group.members
    ]
    return f"case {' '.join(whens)} else '{DEFAULT_GROUP}' end" if whens else f"'{spec.groups[0].name}'"


def _literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
