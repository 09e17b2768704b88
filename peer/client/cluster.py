"""A cluster as its users handle it: tables, appends, waiting, reads.

The handle opens what a call needs when it is first needed: the ledger at once, ZooKeeper and a writer with the first
append, the tables with the first read. Safe for threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from peer.client.contacts import Contacts
from peer.client.definition import alteration, definition, refuse_system_name, refuse_taken_name
from peer.client.draining import Drained, drain
from peer.client.opened import OpenedParts
from peer.client.operations import Operations
from peer.client.peering import Peering
from peer.client.waiting import Waiting
from peer.status.collect import ClusterStatus, collect, durable_lengths
from peer.status.members import Members, members_of
from replication.config import Config
from replication.coordination.session import Coordination
from replication.coordination.tls import ZookeeperTls
from replication.core.definition.alter import set_properties
from replication.core.definition.choice import full_name
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.roles import Role
from replication.core.rows.mutation import Mutation
from replication.errors import CoordinationError, ReadOnlyClusterError, RequestError
from replication.ledger.base import Ledger

if TYPE_CHECKING:
    from peer.tables.read import Reader
    from peer.tables.trace import Trace
    from replication.writer.importing.importer import Imported


class Cluster:
    """One cluster, on one of its hosts. Close it, or use it as a context; ``walship.connect`` makes it.

    An append is durable on this host's disk when it returns; other clusters follow. Tables are named
    ``namespace.name``; a name without a namespace is in ``default``.

    Args:
        config: the host's configuration.
        ledger: closed with the handle.
    """

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self.config = config
        self._opened = OpenedParts(config, ledger)

    def __enter__(self) -> Cluster:
        """The handle itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Write what waits, and close everything. Idempotent."""
        self._opened.close()

    @property
    def ledger(self) -> Ledger:
        """What is known of tables, peers and files."""
        return self._opened.ledger

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.ledger.cluster.name

    @property
    def id(self) -> ClusterId:
        """Its name and incarnation."""
        return self.ledger.cluster

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
        """Its peers, and what goes to them."""
        return Peering(self.ledger, self.coordination, self.contacts)

    @property
    def contacts(self) -> Contacts:
        """The clusters that it can speak to."""
        return Contacts(self.ledger, self.config.tls, ZookeeperTls.of(self.config.zookeeper))

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
        like: str = "",
    ) -> TableSpec:
        """Define a table; rows can be appended at once.

        Args:
            name: ``namespace.name``.
            schema: an Arrow schema, anything with ``__arrow_c_schema__``, or text (``"id long, at timestamp"``); none
                for cell tables, whose columns are ``row, family, qualifier, visibility, value``.
            key: key columns, or the name of the only one; none for an append-only table.
            groups: locality groups: name → columns (families on cell tables); the rest is the group ``default``.
            partition: Iceberg transforms as text, for instance ``day(time_hour)``.
            sort: columns that files are sorted by.
            kind: ``typed`` or ``cell``.
            history_s: how old a user timestamp may be and how long tombstones live, in seconds.
            like: a peer, or ``host:port/root`` of any cluster, that has a table of that name: this is to be the same
                one, so that each can send it to the other. Alone with ``name``.

        Raises:
            TableExistsError: the name is taken.
            UnknownTableError, PeerUnavailableError: the cluster ``like`` has no such table, or does not answer.
            SchemaError: columns, key or groups that do not fit; all problems in one message.
            ReadOnlyClusterError: the cluster is STANDBY; so it is of every call that defines, alters or drops a table.
        """
        self._check_active()
        name = full_name(name)
        refuse_system_name(name)
        if like:
            if schema is not None or key or groups or partition or sort or kind != "typed" or history_s is not None:
                raise RequestError("With like a table is as it is there", "Give only its name and like")
            return self.peering.adopt(name, like)
        refuse_taken_name(name, self.ledger.tables.all())
        kept = int(self.config.replay.history_s if history_s is None else history_s)
        spec = definition(name, schema, key, groups, partition, sort, kind, kept)
        self.ledger.tables.create(spec)
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
        """Change one column of a table here, or add a group; peers follow, and what is written or read from now on.

        Rows written before are replayed as well: an added column is NULL in them, a dropped one's values are left out.
        Durable in the ledger when it returns.

        Args:
            name: ``namespace.name``.
            add: a column to add, as text (``"seats int"``) or an Arrow field.
            group: the locality group that it is added to; the only one, or ``default``, when empty.
            rename: a column's name and its new one.
            widen: a column and its wider type, as ``add``: int → bigint, float → double, decimal(p,s) →
                decimal(more,s).
            drop: a column to drop for ever; a later one of its name is another.
            add_group: a locality group's name and its new columns, as text or an Arrow schema. It goes to peers that
                take all groups.

        Raises:
            SchemaError: it cannot be; says why and what to do. UnknownTableError: there is no such table.
        """
        self._check_active()
        change = alteration(add, group, rename, widen, drop, add_group, time.time_ns() // 1000)
        return self.ledger.tables.alter(self.table(name).uuid, change)

    def set_table(self, name: str, properties: Mapping[str, object]) -> TableSpec:
        """Set a table's properties here, and at the peers that take them (``enablereplication --with-properties``).

        Args:
            name: ``namespace.name``.
            properties: ``history_s``, ``changes_retention_s``, ``max_age_s``, ``sort``, ``codec``, or Iceberg's own by
                name; an empty value sets the default again.

        Raises:
            SchemaError: there is no such property, or the value does not fit. UnknownTableError: no such table.
        """
        self._check_active()
        given, now = {key: str(value) for key, value in properties.items()}, time.time_ns() // 1000
        return self.ledger.tables.alter(self.table(name).uuid, lambda spec: set_properties(spec, given, now))

    def derive_table(
        self, name: str, source: str = "", hook: str = "", options: Mapping[str, object] | None = None
    ) -> TableSpec:
        """Make a table whose rows a hook makes out of another table's, or give a derived table another hook.

        It is a table of its own, with a uuid and streams of its own: rows that the hook drops and values that it masks
        are in none of its frames. The ``derive`` role keeps it up to date here; nobody else writes to it.

        Args:
            name: ``namespace.name``.
            source: the table it is made of, here; may be left out when it is derived already.
            hook: ``select``, or a name in the entry point group ``walship.hooks``.
            options: for the hook.

        Raises:
            RequestError: no such hook or option, or the table is there and not derived here.
            UnknownTableError: there is no such source. HookError: the hook does not keep the key, or fails.
        """
        from peer.derive.define import derive_table

        self._check_active()
        name = full_name(name)
        refuse_system_name(name)
        given = {key: str(value) for key, value in (options or {}).items()}
        return derive_table(self.ledger, name, full_name(source), hook, given, int(self.config.replay.history_s)).spec

    def drop_table(self, name: str) -> None:
        """Drop a table here; its rules end once peers have the rest. UnknownTableError when there is none."""
        self._check_active()
        self.ledger.tables.drop(self.table(name).uuid)
        if self.ledger.rules.peers():
            self.coordination.announce()

    def _check_active(self) -> None:
        """Raise ReadOnlyClusterError on a STANDBY: tables are defined where they are written."""
        if self.ledger.terms.role().role is not Role.ACTIVE:
            raise ReadOnlyClusterError(
                f"{self.name} is STANDBY; its tables were not changed",
                "Change them on the ACTIVE cluster, or make this one ACTIVE: walship readonly off",
            )

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
        tell: Callable[[int, int], None] = lambda pending, left: None,
    ) -> Drained:
        """Block until a peer has durable what is pending for it now, of one table or of all; not later writes.

        ``tell`` gets the bytes that were pending and those that are left, now and then.

        Raises:
            UnknownPeerError: no such peer, or the table does not go there; or the peer was deleted meanwhile.
            RequestError: the peer is paused; or something does not go there any more, or needs a bootstrap there.
            PeerRefusedError: only tables that are held are left; says why. WaitTimeoutError: not in time; it goes on.
        """
        host = self.config.cluster.host
        return drain(
            self.ledger, cluster, full_name(table), lambda: durable_lengths(self.ledger, host), timeout_s, tell, host
        )

    def upsert(self, table: str, rows: object, batch_id: str | None = None) -> Position:
        """Write rows, replacing those of the same key; returns where they are, for :meth:`wait`.

        Args:
            table: its name.
            rows: Arrow in any form (``__arrow_c_stream__``), a pandas frame (NaN becomes NULL), one dict or several;
                streams and generators are taken piece by piece. Columns left out of a touched locality group become
                NULL; untouched groups keep their values.
            batch_id: repeating the call with the same id adds only what is missing. At most 256 MiB of rows.

        Raises:
            NoWorkerError: no live worker on this host would ship it. ReadOnlyClusterError: the cluster is STANDBY.
            SchemaError, NullKeyError: a value does not fit.
            BatchConflictError: the batch id was used for other rows. RequestError: the batch is too large for one.
            BackpressureError: the disk did not keep up within ``writer.append_timeout_s``; some may be there.
        """
        return self._opened.writer.upsert(self._opened.tables.get(table), rows, batch_id)

    def upsert_async(self, table: str, rows: object, batch_id: str | None = None) -> Future[Position]:
        """The same, returning at once with a future, whose callbacks must not wait: they hold all appends up."""
        return self._opened.writer.upsert_async(self._opened.tables.get(table), rows, batch_id)

    def delete(self, table: str, keys: object) -> Position:
        """Delete rows by key; ``keys`` as ``rows`` of :meth:`upsert`, with exactly the key columns."""
        return self._opened.writer.delete(self._opened.tables.get(table), keys)

    def delete_async(self, table: str, keys: object) -> Future[Position]:
        """The same with a future, as :meth:`upsert_async`."""
        return self._opened.writer.delete_async(self._opened.tables.get(table), keys)

    def apply(self, table: str, mutations: Mutation | Iterable[Mutation]) -> Position:
        """Write mutations of a cell table.

        Raises as :meth:`upsert`; ConditionalMutationError: one has a condition; HistoryError: one is too old.
        """
        return self._opened.writer.apply(self._opened.tables.get(table), mutations)

    def apply_async(self, table: str, mutations: Mutation | Iterable[Mutation]) -> Future[Position]:
        """The same with a future, as :meth:`upsert_async`."""
        return self._opened.writer.apply_async(self._opened.tables.get(table), mutations)

    def import_files(
        self,
        table: str,
        paths: str | Path | Iterable[str | Path],
        *,
        format: str = "",
        again: bool = False,
        report: Callable[[Imported], None] = lambda _: None,
    ) -> Position:
        """Import files of rows, one after the other; returns where they are, for :meth:`wait`.

        Each file is there whole, under one commit time, or not at all. Columns are matched by name, and values must
        fit as for :meth:`upsert`. Content that was imported before is recognised by its SHA-256 and left as it is.

        Args:
            table: its name.
            paths: Parquet, Arrow, ORC or CSV files on this host.
            format: ``parquet``, ``arrow``, ``orc`` or ``csv``; by each file's suffix when empty.
            again: import content that was imported before once more, as newer versions of its rows.
            report: called as rows are written, for a display of progress.

        Raises:
            RequestError: a file is not there, its format is not known, or it changed while it was read.
            FormatError: it is damaged. SchemaError, NullKeyError: a column or value does not fit.
            NoWorkerError, ReadOnlyClusterError, StorageError: as :meth:`upsert`.
            Nothing of the file that failed is visible; those before it stay.
        """
        spec = self.table(table)
        position = Position(self.id)
        for path in [paths] if isinstance(paths, str | Path) else paths:
            done = self._opened.writer.import_file(spec, path, format, report, again=again)
            assert done.position is not None, "an import that returns is done"
            position = position.join(done.position)
        return position

    def wait(
        self, position: Position, cluster: str | None = None, until: str = "visible", timeout_s: float = 60.0
    ) -> None:
        """Block until what was written up to ``position`` is ``durable``, ``applied`` or ``visible`` on a cluster.

        Args:
            position: what an append returned, here or on another cluster.
            cluster: this one when None; else a peer, or any cluster of the graph that peers lead to.
            until: how far.
            timeout_s: the longest it may take.

        Raises:
            WaitTimeoutError: not in time; the data is safe and goes on by itself.
            UnknownPeerError: no such cluster, or the table does not go there. UnknownTableError: it was dropped there.
            ReplayError: part of it was quarantined. FormatError: not a position, or no time to wait.
        """
        Waiting(self.ledger, self.contacts).wait(position, cluster, until, timeout_s)

    def read(
        self,
        table: str,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        as_of: int | None = None,
    ) -> pa.RecordBatchReader:
        """Live rows as Arrow batches, the newest version of each key; needs neither Spark nor Java.

        Args:
            table: its name.
            where: an SQL condition over its columns.
            columns: which to read, in that order; all when None.
            limit: at most so many rows.
            as_of: only versions with a commit time up to this, in microseconds since 1970.
        """
        return self._opened.reader.read(self.table(table), where, columns, limit, as_of)

    def sql(self, query: str) -> pa.RecordBatchReader:
        """Run a DuckDB query in which this cluster's tables are known by their names; rows as :meth:`read` gives them.

        Raises:
            RequestError: what DuckDB says of the query.
        """
        return self._opened.reader.sql(query, self.tables())

    def trace(self, table: str, key: Mapping[str, object]) -> Trace:
        """All versions of one key that are still known here: origin, routes, times, and which one counts.

        Args:
            table: its name.
            key: a value for each key column.

        Raises:
            RequestError: the table has no key, or ``key`` does not name its columns.
        """
        from peer.frames.host_watch import hosts_now
        from peer.tables.trace import trace

        hosts = hosts_now(self.config, self.id, self.coordination if self.config.shares_ledger else None)
        return trace(self._opened.reader.catalog, self.ledger, self.table(table), key, hosts)

    def status(self) -> ClusterStatus:
        """How far everything is, here and at each peer, and what holds it."""
        try:
            members = members_of(self.coordination)
        except CoordinationError as error:
            members = Members(problem=str(error))
        return collect(self.config, self.ledger, members)
