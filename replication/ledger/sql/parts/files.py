"""Files, each peer's progress on them, and which may be retired, over SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, product
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.core.shipping.planner import FileView
from replication.core.shipping.retention import FileFacts, RetentionPolicy, held_by
from replication.core.status import ReplicationStatus
from replication.errors import ClosedFileError, RequestError
from replication.ledger.base import KEEP, Backlog, FileKind, FileRow, PeerProgress, Released, Rule
from replication.ledger.decisions.progress import join
from replication.ledger.sql.queries.files import NewFile, add_file, drop_file, next_number, retired_counter
from replication.ledger.sql.queries.replay import advance, is_held
from replication.ledger.sql.queries.retention import facts, lacked_files, release
from replication.ledger.sql.queries.rules import RuleCache, peers
from replication.ledger.sql.queries.status_cache import KnownStatuses, StatusCache
from replication.ledger.sql.queries.statuses import at_peer, keep_withheld, statuses, withheld
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import check_term, file_id, file_row, missing
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore, counter, meta, put_meta, raise_counter, rows_in

_f, _p, _s = schema.files.c, sending.progress.c, schema.streams.c
_rule, _begins, _h = sending.rules.c, sending.rule_begins.c, sending.held_tables.c

_BY_NAME = Prepared(sa.select(schema.files).where(_f.file == sa.bindparam("of_file")))
_CLOSE = Prepared(
    schema.files.update().where(_f.id == sa.bindparam("key")).values(closed_length=sa.bindparam("to_length"))
)
_PUT_PROGRESS = upsert(sending.progress, "file_id", "peer")
_OF_HOST, _IS_OPEN = _f.host == sa.bindparam("of_host"), _f.closed_length < 0
_ALL = {  # by whether only those of a host, and those that are open
    given: Prepared(sa.select(schema.files).where(sa.true(), *compress((_OF_HOST, _IS_OPEN), given)).order_by(_f.file))
    for given in product((False, True), repeat=2)
}


class SqlFileRecords:
    """``FileRecords`` over SQL."""

    def __init__(self, store: SqlStore, rules_cache: RuleCache, statuses: StatusCache, cluster: ClusterId) -> None:
        self._store = store
        self._rules_cache = rules_cache
        self._statuses = statuses
        self._cluster = cluster
        self._last_seen: dict[str, int] = {}  # cached counter values, to save queries

    def allocate(
        self, host: str, kind: FileKind, directory: str, boot: str, writer: str = "", source: FileId | None = None
    ) -> FileRow:
        with self._store.write() as connection:
            if (now := meta(connection, "cluster")) != str(self._cluster):  # its numbers may be given again
                raise RequestError(f"this cluster is {now} now, no longer {self._cluster}", "Open it again")
            return add_file(connection, self._cluster, NewFile(host, kind, directory, boot, writer, source))[1]

    def upcoming(self, host: str) -> int:
        with self._store.read() as connection:
            return next_number(connection, host)

    def overtaken(self, peer: ClusterId, seen: Sequence[FileId] = ()) -> FileId | None:
        name = f"overtaken {peer}"
        own = [file for file in seen if file.cluster == self._cluster]
        with self._store.read() as connection:
            text = meta(connection, name)
            ahead = [file for file in own if file.number >= next_number(connection, file.slot)]
        noted = None if text is None else FileId.parse(text)
        if noted is not None and noted.cluster == self._cluster:  # a note from before a new id does not count
            return noted
        if not ahead:
            return None
        with self._store.write() as connection:
            put_meta(connection, {name: str(ahead[0])})
        return ahead[0]

    def last_seen_by(self, peer: ClusterId) -> tuple[FileId, ...]:
        kept, prefix = schema.counters.c, self._last_seen_name(peer, "")
        wanted = sa.select(kept.name, kept.value).where(kept.name.startswith(prefix, autoescape=True))
        rows = self._store.rows(wanted.order_by(kept.name))
        return tuple(FileId(self._cluster, row.name.removeprefix(prefix), row.value) for row in rows)

    def _last_seen_name(self, peer: ClusterId, slot: str) -> str:
        return f"last_seen {self._cluster} {peer} {slot}"

    def get(self, file: FileId) -> FileRow | None:
        return next(map(file_row, self._store.rows(_BY_NAME, {"of_file": str(file)})), None)

    def all(self, host: str | None = None, *, open_only: bool = False) -> list[FileRow]:
        wanted, values = _ALL[host is not None, open_only], {} if host is None else {"of_host": host}
        return [file_row(row) for row in self._store.rows(wanted, values)]

    def close(self, file: FileId, length: int) -> None:
        with self._store.write() as connection:
            row = _BY_NAME.row(connection, {"of_file": str(file)})
            if row is None:
                raise missing(file)
            length = max(length, FILE_HEADER_BYTES)
            if row.closed_length not in (-1, length) or row.length > length:
                before = (
                    f"CLOSED at {row.closed_length}" if row.closed_length >= 0 else f"registered up to {row.length}"
                )
                raise ClosedFileError(
                    f"{file} cannot be CLOSED at {length} bytes: it is {before}",
                    "Keep the file and find out which process wrote it",
                )
            _CLOSE.run(connection, {"key": row.id, "to_length": length})

    def record(self, reports: Sequence[PeerProgress]) -> None:
        with self._store.write() as connection:
            known = {peer.name: peer.cluster for peer in peers(connection)}
            rules = connection.execute(sa.select(_rule.id, _rule.peer, _rule.generation)).all()
            seen: dict[str, int] = {}
            for report in reports:
                if report.peer not in known:
                    continue
                if report.shipped and report.file.cluster == self._cluster:
                    name = self._last_seen_name(known[report.peer], report.file.slot)
                    seen[name] = max(report.file.number, seen.get(name, 0))
                key = connection.scalar(sa.select(_f.id).where(_f.file == str(report.file)))
                if key is not None:  # otherwise it was retired since
                    self._join(connection, key, report, rules)
            newer = {name: number for name, number in seen.items() if number > self._last_seen.get(name, 0)}
            for name, number in newer.items():
                raise_counter(connection, name, number)
        self._last_seen |= newer

    def _join(self, connection: Connection, key: int, report: PeerProgress, rules: Sequence[Any]) -> None:
        here = (_p.file_id == key) & (_p.peer == report.peer)
        for table, ranges in report.withheld.items():
            keep_withheld(connection, key, str(table), ranges)
        row = connection.execute(sa.select(sending.progress).where(here)).one_or_none()
        if report.generation is not None:
            end = _first_begin(connection, key, report, rules)
            report = replace(report, shipped=report.shipped.within(0, end))
        joined = report if row is None else join(_progress(report.file, row), report)
        values = {
            "file_id": key,
            "peer": report.peer,
            "shipped": joined.shipped.to_json(),
            "applied": joined.applied,
            "commit": joined.commit,
            "error": joined.error or "",
            "losses": joined.losses,
        }
        _PUT_PROGRESS.run(connection, values)

    def progress(self, peer: str | None = None) -> list[PeerProgress]:
        wanted = sa.select(_f.file, _p.peer, _p.shipped, _p.applied, _p.commit, _p.error, _p.losses).join(
            sending.progress
        )
        if peer is not None:
            wanted = wanted.where(_p.peer == peer)
        rows = self._store.rows(wanted.order_by(_f.file, _p.peer))
        return [_progress(file_id(row.file), row) for row in rows]

    def withheld(self, file: FileId) -> Mapping[UUID, Ranges]:
        with self._store.read() as connection:
            return withheld(connection, file)

    def withholding(self) -> frozenset[FileId]:
        of_files = sa.select(_f.file).where(_f.id.in_(sa.select(sending.withheld.c.file_id)))
        return frozenset(file_id(row.file) for row in self._store.rows(of_files))

    def failing(self) -> frozenset[str]:
        held = sa.exists().where(_h.peer == _p.peer, _h.reason == _p.error)
        failing = sa.select(_p.peer).where(_p.error != "", ~held).distinct()
        return frozenset(row.peer for row in self._store.rows(failing))

    def statuses(
        self,
        peer: str | None = None,
        files: Collection[FileId] | None = None,
        rules: Sequence[Rule] | None = None,
    ) -> list[tuple[FileId, Rule, ReplicationStatus]]:
        wanted = sa.select(schema.files).order_by(_f.file)
        with self._store.read() as connection:
            if files is None:
                some: Iterable[Any] = connection.execute(wanted)
            else:
                some = rows_in(connection, wanted, _f.file, sorted({*map(str, files)}))
            rows = [(row.id, file_row(row)) for row in some]
            in_force = self._rules_cache.known(connection) if rules is None else rules
            return statuses(connection, [r for r in in_force if peer is None or r.peer == peer], rows)

    def at_peer(self, peer: str) -> dict[FileId, ReplicationStatus]:
        with self._store.read() as connection:
            rows = [(row.id, file_row(row)) for row in _ALL[False, False].rows(connection)]
            return at_peer(connection, self._rules_cache, rows, peer)

    def lacking(self) -> list[FileView]:
        return [known.lacked for known in self._read_statuses().values() if known.lacked is not None]

    def _read_statuses(self) -> Mapping[int, KnownStatuses]:
        with self._statuses.lock, self._store.read() as connection:
            return self._statuses.read(connection)

    def retirable(self, host: str, policy: RetentionPolicy = KEEP) -> list[FileRow]:
        closed = (_f.host == host) & (_f.closed_length >= 0)
        behind = sa.select(_f.id).where(closed, _f.applied < _f.length, ~is_held())
        free = [row.id for row in self._store.rows(behind)]
        if free:  # for instance after a table was dropped: the other bytes need no replay
            with self._store.write() as connection:
                for key in free:
                    advance(connection, key)
        known = self._read_statuses()
        spent = policy.peer_bytes_max is not None and _closed_bytes(known) > policy.peer_bytes_max
        rows = [
            (key, each.row)
            for key, each in known.items()
            if each.lacked is None
            and (each.applied or spent)
            and each.row.host == host
            and _is_passed(each.row, policy)
        ]
        rows.sort(key=lambda each: each[1].file)
        with self._store.read() as connection:
            of_files = facts(connection, self._rules_cache, rows, policy)
        return [row for (_, row), of_file in zip(rows, of_files, strict=True) if not held_by(of_file)]

    def retention(self, policy: RetentionPolicy = KEEP) -> list[FileFacts]:
        with self._store.read() as connection:
            rows = [(row.id, file_row(row)) for row in connection.execute(sa.select(schema.files).order_by(_f.file))]
            return facts(connection, self._rules_cache, rows, policy)

    def retire(self, file: FileId, term: int, policy: RetentionPolicy = KEEP) -> None:
        with self._store.write() as connection:
            check_term(connection, term)
            found = _BY_NAME.row(connection, {"of_file": str(file)})
            if found is None:
                return
            row = file_row(found)
            if row.applied < row.length:
                row = replace(row, applied=advance(connection, found.id))
            (known,) = facts(connection, self._rules_cache, [(found.id, row)], policy)
            reasons = held_by(known)
            if reasons:
                raise RequestError(f"{file} must stay: {'; '.join(reasons)}")
            drop_file(connection, found.id)
            raise_counter(connection, "retired_bytes", counter(connection, "retired_bytes") + row.length)

    def retired(self, source: ClusterId) -> int:
        of_source = _s.wal.startswith(f"{source}/", autoescape=True) & (_s.table_uuid != str(NIL_UUID))
        with self._store.read() as connection:  # its frames may have come in files of other clusters
            newest = connection.scalar(sa.select(sa.func.max(_s.retired_hi)).where(of_source)) or 0
            return max(newest, counter(connection, retired_counter(source)))

    def move(self, file: FileId, path: str) -> bool:
        here = (_f.file == str(file)) & (_f.closed_length >= 0)
        with self._store.write() as connection:
            return connection.execute(schema.files.update().where(here).values(path=path)).rowcount > 0

    def relocate(self, paths: Mapping[FileId, str]) -> None:
        with self._store.write() as connection:
            for file, path in paths.items():
                connection.execute(schema.files.update().where(_f.file == str(file)).values(path=path))

    def backlogs(self) -> list[Backlog]:
        with self._statuses.lock, self._store.read() as connection:
            return self._statuses.backlogs(connection)

    def lacked(self) -> dict[str, list[FileId]]:
        with self._store.read() as connection:
            return lacked_files(connection, self._rules_cache)

    def release(self, budget: int, term: int) -> list[Released]:
        with self._store.write() as connection:
            check_term(connection, term)
            return release(connection, self._rules_cache, budget)

    def retired_bytes(self) -> int:
        return self._store.counter("retired_bytes")


def _progress(file: FileId, row: Any) -> PeerProgress:
    shipped = Ranges.from_json(row.shipped)
    return PeerProgress(file, row.peer, shipped, row.applied, row.commit, row.error, losses=row.losses)


def _closed_bytes(known: Mapping[int, KnownStatuses]) -> int:
    """The total length of CLOSED files: an upper bound of what any peer lacks."""
    return sum(each.row.closed_length for each in known.values() if each.row.closed)


def _is_passed(row: FileRow, policy: RetentionPolicy) -> bool:
    """Whether a file is CLOSED and, on a cluster with tables, wholly applied by its replay."""
    return row.closed and (row.applied if policy.keeps_tables else row.length) >= row.closed_length


def _first_begin(connection: Connection, key: int, report: PeerProgress, rules: Sequence[Any]) -> int:
    """Where the first of the peer's rules that are newer than the report begins in a file; its end without any.

    In a file that is not older than a rule that is at the header's end.
    """
    newer = [r.id for r in rules if r.peer == report.peer and r.generation > (report.generation or 0)]
    if not newer:
        return report.shipped.end
    here = sa.select(_begins.rule_id, _begins.begin).where(_begins.file_id == key, _begins.rule_id.in_(newer))
    begins = {row.rule_id: row.begin for row in connection.execute(here)}
    return min(int(begins.get(rule, FILE_HEADER_BYTES)) for rule in newer)
