"""The user's handle on a cluster: tables, appends, waiting, reads.

The handle opens the ledger at once. It opens ZooKeeper and a writer with the first append, and the tables with the
first read. Safe for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from peer.client.contacts import Contacts
from peer.client.definition import alteration, definition, refuse_standby, refuse_system_name, refuse_taken_name
from peer.client.draining import Drained, drain
from peer.client.opened import OpenedParts
from peer.client.operations import Operations
from peer.client.peering import Peering
from peer.client.waiting import Waiting
from replication.config import Config
from replication.coordination.session import Coordination
from replication.core.arrow import pa
from replication.core.definition.alter import set_properties
from replication.core.definition.choice import full_name
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.rows.mutation import Mutation
from replication.errors import ReplicationError, TableExistsError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

if TYPE_CHECKING:
    from peer.status.collect import ClusterStatus
    from peer.tables.read import Reader
    from peer.tables.trace import Trace
    from replication.core.rows.batch import LogBatch
    from replication.writer.importing.importer import Imported


class Cluster:
    """One cluster, on one of its hosts. Close it, or use it as a context; ``walship.connect`` makes it.

    An append is durable on this host's disk when it returns. Other clusters get it later. Tables are named
    ``namespace.name``; a name without a namespace is in ``default``.

    Args:
        config: the host's configuration.
        ledger: closed with the handle.
    """

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self.config = config
        self._opened = OpenedParts(config, ledger)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the appends that wait, and close everything. Idempotent. RequestError in a future's callback."""
        self._opened.close()

    @property
    def ledger(self) -> Ledger:
        """The cluster's ledger: tables, peers and files."""
        return self._opened.ledger

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._opened.cluster.name

    @property
    def id(self) -> ClusterId:
        """Its name and incarnation."""
        return self._opened.cluster

    @property
    def coordination(self) -> Coordination:
        """A session with the cluster's ZooKeeper; CoordinationError when it does not answer."""
        return self._opened.coordination

    @property
    def reader(self) -> Reader:
        """Reads of the cluster's tables."""
        return self._opened.reader

    @property
    def peering(self) -> Peering:
        """Its peers, and the tables that go to them."""
        ahead_max_s = self.config.receiver.commit_ahead_max_s
        return Peering(self.ledger, self.coordination, self.contacts, ahead_max_s)

    @property
    def contacts(self) -> Contacts:
        """The other clusters that it can call."""
        return self._opened.contacts

    def create_table(
        self,
        name: str,
        schema: pa.Schema | str | object = None,
        key: Sequence[str] = (),
        *,
        groups: Mapping[str, Sequence[str]] | None = None,
        partition: Sequence[str] = (),
        sort: Sequence[str] = (),
        kind: str = "typed",
        history_s: int | None = None,
    ) -> TableSpec:
        """Define a table. It is durable in the ledger on return, and takes appends at once.

        Args:
            name: ``namespace.name``.
            schema: an Arrow schema, anything with ``__arrow_c_schema__``, or text (``"id long, at timestamp"``). None
                for cell tables, whose columns are ``row, family, qualifier, visibility, value``.
            key: key columns, or the name of the only one; none for an append-only table.
            groups: locality groups: name → columns (families on cell tables). Other columns are in ``default``.
            partition: Iceberg transforms as text, for instance ``day(time_hour)``.
            sort: columns that files are sorted by.
            kind: ``typed`` or ``cell``.
            history_s: how old a user timestamp may be and how long tombstones live, in seconds.

        Raises:
            TableExistsError: the name is taken.
            SchemaError: columns, key or groups do not fit; one message lists all problems.
            ReadOnlyClusterError: the cluster is STANDBY. Every call that changes a definition raises it then.
        """
        refuse_standby(self.ledger)
        name = full_name(name)
        refuse_system_name(name)
        refuse_taken_name(name, self.ledger.tables.all())
        kept = int(self.config.replay.history_s if history_s is None else history_s)
        spec = definition(name, schema, key, groups, partition, sort, kind, kept)
        try:
            self.ledger.tables.create(spec)
        except TableExistsError:  # made just now
            refuse_taken_name(name, self.ledger.tables.all())
            raise
        return spec

    def alter_table(
        self,
        name: str,
        *,
        add: str | pa.Field | None = None,
        group: str = "",
        rename: tuple[str, str] | None = None,
        widen: str | pa.Field | None = None,
        drop: str | None = None,
        add_group: tuple[str, str | pa.Schema] | None = None,
    ) -> TableSpec:
        """Change one column of a table here, or add a group. Peers take the change over.

        Durable in the ledger on return. Rows written before stay readable: an added column is NULL in them, and a
        dropped column is left out.

        Args:
            name: ``namespace.name``.
            add: a column to add, as text (``"seats int"``) or an Arrow field.
            group: the locality group of the added column. Empty means the only group, or ``default``.
            rename: a column's name and its new one.
            widen: a column and its wider type: int → bigint, float → double, decimal(p,s) → decimal(more,s).
            drop: a column to drop for ever. A column added later under its name is a new one.
            add_group: a locality group's name and its new columns, as ``schema``; it goes to peers of all groups.

        Raises:
            SchemaError: the change is impossible; says why. UnknownTableError: there is no such table.
        """
        refuse_standby(self.ledger)
        change = alteration(add, group, rename, widen, drop, add_group, now_us())
        return self.ledger.tables.alter(self.table(name).uuid, change)

    def set_table(self, name: str, properties: Mapping[str, object]) -> TableSpec:
        """Set a table's properties here, and at peers that follow them (``enablereplication --with-properties``).

        Args:
            name: ``namespace.name``.
            properties: ``history_s``, ``changes_retention_s``, ``max_age_s``, ``sort``, ``codec``, or Iceberg's own. An
                empty value, or None, restores the default.

        Raises:
            SchemaError: there is no such property, or the value does not fit. UnknownTableError: no such table.
        """
        refuse_standby(self.ledger)
        given, now = {key: "" if value is None else str(value) for key, value in properties.items()}, now_us()
        return self.ledger.tables.alter(self.table(name).uuid, lambda spec: set_properties(spec, given, now))

    def derive_table(
        self, name: str, source: str = "", hook: str = "", options: Mapping[str, object] | None = None
    ) -> TableSpec:
        """Make a table whose rows a hook makes from another table's rows, or change the hook of a derived table.

        The derived table has a uuid and streams of its own. No frame of it holds a row that the hook drops, or a value
        that it masks. Only the ``derive`` role of this cluster writes to it.

        Args:
            name: ``namespace.name``.
            source: the table that it is derived from. May be left out for a table that is derived already.
            hook: ``select``, or a name in the entry point group ``walship.hooks``.
            options: for the hook.

        Raises:
            RequestError: no such hook or option, or the table exists and is not derived here.
            UnknownTableError: no such source. HookError: the hook changes the key, or fails.
        """
        from peer.derive.define import derive_table

        refuse_standby(self.ledger)
        name = full_name(name)
        refuse_system_name(name)
        given = {key: str(value) for key, value in (options or {}).items()}
        return derive_table(self.ledger, name, full_name(source), hook, given, int(self.config.replay.history_s))

    def drop_table(self, name: str) -> None:
        """Drop a table here. Its rules end once peers have the rest. UnknownTableError when there is none."""
        refuse_standby(self.ledger)
        announce = self.coordination.announce if self.ledger.rules.peers() else lambda: 0  # or refuse, unchanged
        self.ledger.tables.drop(self.table(name).uuid)
        announce()

    def table(self, name: str) -> TableSpec:
        """A table's definition; UnknownTableError lists near names."""
        return self.ledger.tables.get(full_name(name))

    def tables(self) -> list[TableSpec]:
        """Every table, by name."""
        return self.ledger.tables.all()

    @property
    def operations(self) -> Operations:
        """Pausing, resuming and throttling peers; forgetting hosts."""
        return Operations(self.ledger, self.coordination)

    def drain(
        self,
        cluster: str,
        table: str = "",
        timeout_s: float = 3600.0,
        report: Callable[[int, int], None] = lambda pending, left: None,
    ) -> Drained:
        """Block until a peer holds, durably, what is pending for it now. Later writes are not waited for.

        ``table`` limits this to one. ``report`` gets the bytes pending at first, and now. Raises as ``draining.drain``.
        """
        from peer.status.collect import durable_lengths  # deferred, as in status: few commands need it

        ledger, host = (opened := self._opened).ledger, opened.config.cluster.host
        return drain(ledger, cluster, full_name(table), lambda: durable_lengths(ledger, host), timeout_s, report, host)

    def upsert(self, table: str, rows: object, batch_id: str | None = None) -> Position:
        """Write rows, replacing those of the same key. Returns their position, for :meth:`wait`.

        Args:
            table: its name.
            rows: Arrow in any form (``__arrow_c_stream__``), a pandas frame (NaN becomes NULL), one dict or several.
                Streams and generators are taken piece by piece. In a locality group that the rows touch, a column left
                out becomes NULL; other groups keep their values.
            batch_id: a call repeated with it within ``history_s`` adds only what is missing. At most 256 MiB of rows.

        Raises:
            NoWorkerError: no live worker on this host would ship the rows. ReadOnlyClusterError: STANDBY.
            SchemaError, NullKeyError: a value does not fit.
            BatchConflictError: the batch id was used for other rows. RequestError: a batch with an id is too large.
            BackpressureError: the disk did not keep up within ``writer.append_timeout_s``; some rows may be written.
        """
        return (opened := self._opened).writer.upsert(opened.tables.get(table), rows, batch_id)

    def upsert_async(self, table: str, rows: object, batch_id: str | None = None) -> Future[Position]:
        """As :meth:`upsert`, with a future at once. Its callbacks must not block all appends, nor close the handle."""
        return (opened := self._opened).writer.upsert_async(opened.tables.get(table), rows, batch_id)

    def restate(self, logs: Iterable[LogBatch], commit: int) -> Position:
        """As ``Writer.restate``: in place of lost writes that are discarded."""
        return self._opened.writer.restate(logs, commit)

    def delete(self, table: str, keys: object) -> Position:
        """Delete rows by key; ``keys`` as ``rows`` of :meth:`upsert`, with exactly the key columns."""
        return (opened := self._opened).writer.delete(opened.tables.get(table), keys)

    def delete_async(self, table: str, keys: object) -> Future[Position]:
        """As :meth:`delete`, with a future as :meth:`upsert_async`."""
        return (opened := self._opened).writer.delete_async(opened.tables.get(table), keys)

    def apply(self, table: str, mutations: Mutation | Iterable[Mutation]) -> Position:
        """Write mutations of a cell table.

        Raises as :meth:`upsert`; ConditionalMutationError: one has a condition; HistoryError: one is too old.
        """
        return (opened := self._opened).writer.apply(opened.tables.get(table), mutations)

    def apply_async(self, table: str, mutations: Mutation | Iterable[Mutation]) -> Future[Position]:
        """As :meth:`apply`, with a future as :meth:`upsert_async`."""
        return (opened := self._opened).writer.apply_async(opened.tables.get(table), mutations)

    def import_files(
        self,
        table: str,
        paths: str | Path | Iterable[str | Path],
        *,
        format: str = "",
        again: bool = False,
        report: Callable[[Imported], None] = lambda _: None,
    ) -> Position:
        """Import files of rows, one after the other. Returns their position, for :meth:`wait`.

        Each file is imported whole, under one commit time, or not at all: when one fails, those before it stay. Columns
        are matched by name; values must fit as for :meth:`upsert`. What was imported within ``history_s`` is skipped.

        Args:
            table: its name.
            paths: Parquet, Arrow, ORC or CSV files on this host.
            format: ``parquet``, ``arrow``, ``orc`` or ``csv``; by each file's suffix when empty.
            again: import content that was imported before once more, as newer versions of its rows.
            report: called as rows are written, to show progress.

        Raises:
            RequestError: no such file, its format is not known, or it changed while it was read.
            FormatError: it is damaged. SchemaError, NullKeyError: a column or value does not fit.
            NoWorkerError, ReadOnlyClusterError, StorageError: as :meth:`upsert`.
        """
        opened = self._opened  # one that follows may move meanwhile
        spec, position = opened.ledger.tables.get(full_name(table)), Position(opened.ledger.cluster)
        for path in [paths] if isinstance(paths, str | Path) else paths:
            try:
                done = opened.writer.import_file(spec, path, format, report, again=again)
            except ReplicationError as error:
                error.is_partial = bool(position.ends)
                raise
            assert done.position is not None, "an import that returns is done"
            position = position.join(done.position)
        return position

    def wait(
        self, position: Position, cluster: str | None = None, until: str = "visible", timeout_s: float = 60.0
    ) -> None:
        """Block until everything up to ``position`` is ``durable``, ``applied`` or ``visible`` on a cluster.

        ``position`` is what an append returned, here or on another cluster. ``cluster`` is this one when None, else a
        peer, or any cluster that peers lead to. Raises as :meth:`peer.client.waiting.Waiting.wait`.
        """
        waiting = Waiting((opened := self._opened).ledger, opened.contacts, str(opened.config.wal_dir))
        waiting.wait(position, cluster, until, timeout_s)

    def read(
        self,
        table: str,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        as_of: int | None = None,
        at_least: Position | None = None,
    ) -> pa.RecordBatchReader:
        """Live rows as Arrow batches: the newest version of each key. Needs neither Spark nor Java.

        Args:
            table: its name.
            where: an SQL condition over its columns.
            columns: the columns to read, in that order; all when None.
            limit: the most rows to read.
            as_of: only versions with a commit time up to this, in microseconds since 1970.
            at_least: what an append returned, here or on another cluster: waits for it first, as :meth:`wait`.
        """
        if at_least is not None:
            self.wait(at_least)
        spec = (opened := self._opened).ledger.tables.get(full_name(table))
        return opened.reader.read(spec, where, columns, limit, as_of)

    def sql(self, query: str, at_least: Position | None = None) -> pa.RecordBatchReader:
        """Run a DuckDB query, with rows as :meth:`read` gives them. RequestError has DuckDB's message if it fails."""
        if at_least is not None:
            self.wait(at_least)
        return (opened := self._opened).reader.sql(query, opened.ledger.tables.all())

    def trace(self, table: str, key: Mapping[str, object]) -> Trace:
        """All versions of one key that this cluster still has: origin, path, times, and which one is the newest.

        Args:
            table: its name.
            key: a value for each key column.

        Raises:
            RequestError: the table has no key, or ``key`` does not name its columns.
        """
        from peer.frames.host_watch import hosts_now
        from peer.tables.trace import trace

        ledger, config = (opened := self._opened).ledger, opened.config
        hosts = hosts_now(config, ledger.cluster, opened.coordination if config.shares_ledger else None)
        return trace(opened.reader.catalog, ledger, ledger.tables.get(full_name(table)), key, hosts)

    def status(self) -> ClusterStatus:
        """Lag, errors and disk use, here and at each peer."""
        from peer.status.collect import collect

        return collect((opened := self._opened).config, opened.ledger, opened.members())
