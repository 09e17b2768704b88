"""The rows of a table, defined once in portable SQL for Spark (view, fold) and DuckDB (reads without Spark).

Versions of a key are ordered by timestamp, delete over put at equal user timestamps, commit time, origin, WAL, sequence
and row. ``<table>`` holds the winners of the last fold. A read merges in the ``__changes`` rows that came after it
(``_replay``) or are newer (``_commit``). A version newer than the fold wins over every folded one. So folded rows and
tombstones are compared only with late versions and with user timestamps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from replication.core.definition.aging import horizon
from replication.core.definition.schema import DEFAULT_GROUP, TableSpec
from replication.tables.base import Dialect, History, Tables
from replication.tables.layout import CHANGES, TOMBSTONES, VERSION, merge_groups, version_column
from replication.wall_clock import now_us

FOLD_SUMMARY = "walship.fold"
#: Tags the snapshot of ``<table>`` that consistent reads start from while a hold lasts.
CONSISTENT_TAG = "walship_consistent"
_SHOW_TRIES = 5
_VERSION_COLUMNS = ", ".join(("_group", "_op", *VERSION))
_ORDER = (
    "coalesce(_ts, _commit) desc, case when _op = 2 then 1 else 0 end desc,"
    " _commit desc, _origin desc, _wal desc, _seq desc, _row desc"
)


@dataclass(frozen=True, slots=True)
class Folded:
    """Position of ``<table>``: it has all ``__changes`` rows with ``_replay <= replay`` and ``_commit <= upto``.

    ``held_replay`` and ``held_upto`` are the position of the tagged snapshot that consistent reads start from. Without
    a hold they equal ``replay`` and ``upto``. ``known`` is False when a fold happened, but its position is unknown.
    """

    replay: int = 0
    upto: int = -1
    held_replay: int = 0
    held_upto: int = -1
    known: bool = True

    @property
    def holds(self) -> bool:
        """Return whether a tagged snapshot is held for consistent reads."""
        return (self.held_replay, self.held_upto) != (self.replay, self.upto)

    def to_list(self) -> list[int]:
        """Return it for JSON."""
        return [self.replay, self.upto, self.held_replay, self.held_upto]

    def to_summary(self) -> dict[str, str]:
        """Return it as properties of a snapshot of ``<table>``."""
        return {FOLD_SUMMARY: json.dumps(self.to_list())}

    @staticmethod
    def of(summary: Mapping[str, str]) -> Folded | None:
        """Read a snapshot's summary; None when no fold made it."""
        text = summary.get(FOLD_SUMMARY)
        return Folded(*json.loads(text)) if text is not None else None

    @staticmethod
    def newest(history: History) -> Folded:
        """The position of the newest fold among the current snapshot's ancestors.

        When that snapshot has expired, all changes count as unfolded and late. Merging a change again is harmless.
        """
        newest = next((folded for s in history.chain() if (folded := Folded.of(s.summary)) is not None), None)
        return newest or Folded(known=history.whole)

    @property
    def unfolded(self) -> str:
        """The condition for ``__changes`` rows that are not in ``<table>``, valid in SQL and as an Iceberg filter."""
        return f"_replay > {self.replay} or _commit > {self.upto}"


@dataclass(frozen=True)
class MergeQuery:
    """The SQL of one table in one dialect. ``changes``, ``table`` and ``tombstones`` are the names in the queries.

    Versions with a timestamp below ``horizon`` are expired (``core/definition/aging.py``); None expires nothing.
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
    def columns(self) -> str:
        """The columns of versions, quoted."""
        return f"{self._list((*self.spec.key, *self._values))}, {_VERSION_COLUMNS}"

    @property
    def _always_late(self) -> bool:
        return self.spec.kind == "cell" or len(self.groups) > 1 or not self.folded.known

    def keys(self) -> str:
        """The key columns, quoted."""
        return self._list(self.spec.key)

    def changes_where(self, *, upto: int | None = None, replay: int | None = None, late: bool = True) -> str:
        """The condition for the rows of ``__changes`` to merge into ``<table>``.

        Args:
            upto: only versions with this commit time or an earlier one.
            replay: only versions that came with this replay commit or an earlier one.
            late: False leaves out late changes (``came_late``).
        """
        limits = [f"({self.folded.unfolded})" if late else f"_commit > {self.folded.upto}", "_op >= 0"]
        limits += [f"_commit <= {upto}"] if upto is not None else []
        limits += [f"_replay <= {replay}"] if replay is not None else []
        return " and ".join(limits)

    @property
    def is_late(self) -> str:
        """The condition for a version that may lose to a folded one."""
        return "true" if self._always_late else f"_commit <= {self.folded.upto}"

    @property
    def came_late(self) -> str:
        """The condition for changes that came after the last fold but have an older commit time.

        Valid in SQL and as an Iceberg filter.
        """
        return f"_replay > {self.folded.replay} and _commit <= {self.folded.upto}"

    def changed(self, where: str) -> str:
        """The keys of the changes that match ``where``, with repetitions."""
        return f"select {self.keys()} from {self.changes} where {where}"

    def resolved(self, where: str, *, late: bool = True, upto: int | None = None) -> str:
        """The newest version of each group, deletes included, for every key of the changes that match ``where``.

        Args:
            where: the condition for the changes.
            late: False when none of the changes is late.
            upto: only tombstones with this commit time or an earlier one; a fold during a hold may have written newer.
        """
        every = f"select {self.columns} from {self.changes} where {where}"
        if self.folded == Folded() or not late:
            return self.newest(every)
        keys = f"({self.changed(where if self._always_late else f'{where} and {self.is_late}')})"
        return self.newest(" union all ".join((every, *self._stored(keys), self._tombstone_rows(keys, upto))))

    def kept(self, keys: str) -> str:
        """Every stored version of ``keys`` (a name, or a query in parentheses), in no order.

        The column ``_kept`` is ``changes``, ``table`` or ``tombstones``. Only ``changes`` have ``_through`` and
        ``_applied``.
        """
        none = "null as _through, null as _applied"
        parts = [
            f"select {self.columns}, 'changes' as _kept, _through, _applied from {self.changes} s"
            f" where _op >= 0 and {self.among(keys)}"
        ]
        parts += [f"select {self.columns}, 'table' as _kept, {none} from ({s}) f" for s in self._stored(keys)]
        parts.append(
            f"select {self.columns}, 'tombstones' as _kept, {none} from ({self._tombstone_rows(keys, None)}) b"
        )
        return " union all ".join(parts)

    def live(self, keys: str) -> str:
        """The current rows of ``keys`` (a name, or a query in parentheses)."""
        return self.rows(f"({self.newest(self.kept(keys))})")

    def rows(self, merged: str) -> str:
        """The rows of ``<table>`` for ``merged`` versions (a name or query): user columns and version columns."""
        young = "" if self.horizon is None else f" and coalesce(_ts, _commit) >= {self.horizon}"
        live = f"select * from {merged} v where _op = 0{young}"
        if len(self.groups) == 1:
            versions = ", ".join(f"{f} as {self.dialect.name(version_column(f, self.groups[0]))}" for f in VERSION)
            return f"select {self._list(c.name for c in self.spec.columns)}, {versions} from ({live}) m"
        selected = [self.keys()]
        for group in self.groups:
            names = [(c, c) for c in self.spec.group_columns(group)] + [(f, version_column(f, group)) for f in VERSION]
            mine = f"_group = {self.dialect.text(group)}"
            selected += [
                f"{self.dialect.any_where(self.dialect.name(source), mine)} as {self.dialect.name(name)}"
                for source, name in names
            ]
        return f"select {', '.join(selected)} from ({live}) m group by {self.keys()}"

    def tombstone_rows(self, merged: str, *, late: bool) -> str:
        """The rows to add to ``__tombstones`` for ``merged`` versions (a name or query).

        ``late`` is as for ``resolved``.
        """
        deleted = f"select {self.keys()}, {_VERSION_COLUMNS} from {merged} v where _op > 0"
        if not late:
            return deleted
        stored = f"select * from {self.tombstones} s where {self.among('deleted')}"
        own = [
            *(self.dialect.name(key) for key in self.spec.key),
            "_group",
            "_commit",
            "_origin",
            "_wal",
            "_seq",
            "_row",
        ]
        same = " and ".join(f"t.{name} = d.{name}" for name in own)
        missing = f"not exists (select 1 from ({stored}) t where {same})"  # each fold of a key would add its old ones
        return f"with deleted as materialized ({deleted}) select * from deleted d where {missing}"

    def every(self) -> str:
        """The newest version of every key and group, deletes included. A deleted key may have an older version, too.

        The columns are those of ``__changes`` without ``_replay``.
        """
        where = self.changes_where()
        changed = f"({self.changed(where)})"
        stored = self._stored(changed, among=False)
        tombstone_rows = f"{self._tombstone_rows(changed, among=False)}"
        return " union all ".join((f"select * from ({self.resolved(where)}) r", *stored, tombstone_rows))

    def brought_by(self) -> str:
        """The frames that the existing rows came with: origin, WAL, group, sequence, newest commit time."""
        group = "_group" if self.spec.kind != "cell" else group_of_family(self.spec, self.dialect)
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
            late: False leaves out late changes (``came_late``); engines run the query faster then.
        """
        names = [c.name for c in self.spec.columns]
        if versions and self.spec.key:
            names += [version_column(f, g) for g in self.groups for f in VERSION]
        columns = self._list(names)
        if not self.spec.key:
            # rows without a commit time came by no WAL, so they are read as of any time
            limits = [] if upto is None else [f"_commit <= {upto}"]
            limits += [] if self.horizon is None else [f"_commit >= {self.horizon}"]
            where = f" where (_commit is null or {' and '.join(limits)})" if limits else ""
            return f"select {columns} from {self.table}{where}"
        late = late or self._always_late
        where = self.changes_where(upto=upto, late=late)
        return (
            f"select {columns} from {self.young()} s where not {self._changed_by(where)}"
            f" union all select {columns} from ({self.rows(f'({self.resolved(where, late=late, upto=upto)})')}) r"
        )

    def young(self) -> str:
        """``<table>`` without expired rows, and without expired groups' values in other rows."""
        if self.horizon is None:
            return self.table
        old = {group: f"coalesce({self._timestamp(group)} < {self.horizon}, false)" for group in self.groups}
        selected = [self.keys()]
        for group in self.groups:
            names = [*self.spec.group_columns(group), *(version_column(field, group) for field in VERSION)]
            selected += [f"case when {old[group]} then null else {n} end as {n}" for n in map(self.dialect.name, names)]
        return f"(select {', '.join(selected)} from {self.table} o where not ({self.too_old(self.horizon)}))"

    def too_old(self, horizon: int) -> str:
        """The condition for a row of ``<table>`` whose groups all have timestamps below ``horizon``.

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

    def newest(self, versions: str) -> str:
        """The newest of some versions (a query with the columns of ``kept``), by key and group."""
        by = self.keys() + (", _group" if len(self.groups) > 1 else "")
        return (
            f"select {self.columns} from (select *, row_number() over (partition by {by} order by {_ORDER}) as _rank"
            f" from ({versions}) v) ranked where _rank = 1"
        )

    def among(self, late: str) -> str:
        """Return the condition for a row ``s`` whose key is in ``late`` (a name, or a query in parentheses)."""
        same = " and ".join(f"s.{self.dialect.name(k)} = l.{self.dialect.name(k)}" for k in self.spec.key)
        return f"exists (select 1 from {late} l where {same})"

    def _changed_by(self, where: str) -> str:
        """The condition for a row ``s`` whose key is among the changes that match ``where``."""
        if not self.dialect.hash:
            return self.among(f"({self.changed(where)})")
        keys = [self.dialect.name(key) for key in self.spec.key]
        hashed = f"select {', '.join(keys)}, {self.dialect.hash}({', '.join(keys)}) as _hash"
        same = " and ".join(f"s.{key} >= l.{key} and s.{key} <= l.{key}" for key in keys)  # by "=" Spark would join
        by = f"{self.dialect.hash}({', '.join(f's.{key}' for key in keys)}) = l._hash"
        return f"exists (select 1 from ({hashed} from {self.changes} where {where}) l where {by} and {same})"

    def _stored(self, late: str, *, among: bool = True) -> list[str]:
        """Rows of ``<table>`` as one version per group; with ``among`` for the ``late`` keys, else for all others."""
        parts: list[str] = []
        for group in self.groups:
            mine = set(self.spec.group_columns(group))
            values = [("" if n in mine else "null as ") + self.dialect.name(n) for n in self._values]
            versions = ", ".join(f"{self.dialect.name(version_column(f, group))} as {f}" for f in VERSION)
            parts.append(
                f"select {', '.join((self.keys(), *values))}, {self.dialect.text(group)} as _group, 0 as _op,"
                f" {versions}"
                f" from {self.table} s where {self.dialect.name(version_column('_commit', group))} is not null"
                f" and {'' if among else 'not '}{self.among(late)}"
            )
        return parts

    def _tombstone_rows(self, late: str, upto: int | None = None, *, among: bool = True) -> str:
        nulls = "".join(f", null as {self.dialect.name(n)}" for n in self._values)
        limit = "" if upto is None else f" and _commit <= {upto}"
        return (
            f"select {self.keys()}{nulls}, {_VERSION_COLUMNS} from {self.tombstones} s"
            f" where {'' if among else 'not '}{self.among(late)}{limit}"
        )


def latest_query(tables: Tables, spec: TableSpec) -> str:
    """Return the query of ``<table>__latest`` for a warehouse's own engine.

    The query is valid until rows of ``__changes`` are deleted. Rows that expire after this call stay in its result.
    """
    return _latest(tables, spec, tables.ref, now_us())


def show_latest(tables: Tables, spec: TableSpec) -> None:
    """Make the view ``<table>__latest`` start from the newest fold.

    A view that starts from an earlier fold gives the same rows, slower, until rows of ``__changes`` are deleted.

    Raises:
        UnknownTableError, CommitConflictError: the table does not exist yet, or was altered; try again.
    """
    query = _latest(tables, spec, tables.near, now := now_us())
    for _ in range(_SHOW_TRIES):  # another thread may have replaced the view for a newer fold
        tables.show(spec, query)
        shown, query = query, _latest(tables, spec, tables.near, now)
        if query == shown:
            return


def show_late(tables: Tables, spec: TableSpec, oldest: int) -> None:
    """Make the view include changes that were just appended; ``oldest`` is their oldest commit time."""
    if oldest <= Folded.newest(tables.history(spec.name)).upto:
        show_latest(tables, spec)


def _latest(tables: Tables, spec: TableSpec, named: Callable[[str], str], now: int) -> str:
    folded = Folded.newest(tables.history(spec.name)) if spec.key else Folded()
    names = [named(spec.name + suffix) for suffix in (CHANGES, "", TOMBSTONES)]
    young = horizon(spec, now)
    merge = MergeQuery(spec, tables.dialect, names[0], names[1], names[2], folded, young)
    late = bool(spec.key) and tables.may_have(spec.name + CHANGES, merge.came_late)
    return merge.latest(late=late)


def group_of_family(spec: TableSpec, dialect: Dialect, prefix: str = "") -> str:
    """Return SQL for the locality group of a cell's family; ``prefix`` precedes the column name, as ``v.`` does."""
    whens = [
        f"when {prefix}family in ({', '.join(map(dialect.text, group.members))}) then {dialect.text(group.name)}"
        for group in spec.groups
        if group.members
    ]
    return f"case {' '.join(whens)} else '{DEFAULT_GROUP}' end" if whens else dialect.text(spec.groups[0].name)
