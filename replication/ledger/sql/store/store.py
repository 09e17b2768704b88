"""Connections and transactions: one writing connection per process behind a lock, and reads that never wait for it.

SQLite runs in WAL mode with synchronous=FULL, and every writing transaction begins IMMEDIATE (deferred ones fail when
several processes upgrade at once). On PostgreSQL every writing transaction first takes an advisory lock, so writes are
serialised on both stores. A host that vanishes or freezes in a transaction blocks the others for at most ``_SILENT_S``:
then the server ends its session and the transaction.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from replication.error_text import message_line
from replication.errors import ConfigError, CoordinationError, LedgerBusyError
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import DECIDED, Prepared, note_decision, upsert
from replication.log import redact
from replication.permissions import create_private, refuse_exposed

BUSY_TIMEOUT_S = 10.0
READERS = 4
IN_LIST = 5000
_ADVISORY_KEY = 0x77616C73
_CONNECT_S = 10
_SILENT_S = 15  # both sides close a connection whose other end is silent for longer
_READ_ONLY = "25006"  # PostgreSQL's read_only_sql_transaction
_DENIED = "42501"  # its insufficient_privilege
_REFUSED = re.compile('FATAL: .*(authentication failed|pg_hba.conf|(role|database) ".*" does not exist)|no password')
_CUT = re.compile(r"://(?=[^@]*\s)[^:/]*:[^@]*@|password=[^&]*\s", re.IGNORECASE)  # a blank where secrets are
_MEMORY = (":memory:", "", None)
#: Errors of a store that fails, and not of a statement. The second ones only of these very classes.
_FAILURES = (sa.exc.OperationalError, sa.exc.InternalError, sqlite3.OperationalError)
_UNSPECIFIC = (sa.exc.DatabaseError, sqlite3.DatabaseError)
_OF_NAME: Any = sa.bindparam("of_name")
_COUNTER = Prepared(sa.select(schema.counters.c.value).where(schema.counters.c.name == _OF_NAME))
_RAISE = Prepared(
    schema.counters.update().where(schema.counters.c.name == _OF_NAME).values(value=sa.bindparam("to_value"))
)
_COUNT = Prepared(schema.counters.insert().values(name=_OF_NAME, value=sa.bindparam("to_value")))
_META = Prepared(sa.select(schema.meta.c.value).where(schema.meta.c.name == _OF_NAME))
_PUT_META = upsert(schema.meta, "name")


class SqlStore:
    """The ledger's database, as transactions.

    Args:
        url: a SQLAlchemy URL: ``sqlite:////path/ledger.db``, ``sqlite://`` (in memory) or ``postgresql://…``.
        busy_timeout_s: how long a writing transaction waits for others before LedgerBusyError.

    Raises:
        ConfigError: other users can read or change SQLite's file.

    Attributes:
        path: SQLite's file; None in memory and on PostgreSQL.
    """

    def __init__(self, url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.url = _driver_url(url)
        self._timeout_s = busy_timeout_s
        self._lock = threading.Lock()
        self._writing: Connection | None = None
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._in_memory = self.is_sqlite and self.url.database in _MEMORY
        self.path = Path(self.url.database or "") if self.is_sqlite and not self._in_memory else None
        if self.path is not None:
            refuse_exposed(self.path)
        self._decided = None if self.path is None else decisions_file(self.path)
        self._writer, self._reader = self._sqlite_engines() if self.is_sqlite else self._postgresql_engines()

    def _sqlite_engines(self) -> tuple[Engine, Engine]:
        arguments = {"isolation_level": None, "check_same_thread": False, "timeout": self._timeout_s}
        if self._in_memory:
            writer = sa.create_engine(self.url, connect_args=arguments, poolclass=StaticPool)
            sa.event.listen(writer, "begin", self._begin_immediate)
            sa.event.listen(writer, "connect", _foreign_keys)
            return writer, writer
        writer = sa.create_engine(self.url, connect_args=arguments, pool_size=1, max_overflow=0)
        reader = sa.create_engine(self.url, connect_args=arguments, pool_size=READERS, max_overflow=READERS)
        for engine in (writer, reader):
            sa.event.listen(engine, "do_connect", self._create_private)
        sa.event.listen(writer, "connect", _durable)
        sa.event.listen(writer, "connect", _foreign_keys)
        sa.event.listen(writer, "begin", self._begin_immediate)
        sa.event.listen(writer, "after_execute", note_decision)
        sa.event.listen(reader, "connect", lambda connection, _: connection.execute("PRAGMA query_only=ON"))
        sa.event.listen(reader, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        return writer, reader

    def _postgresql_engines(self) -> tuple[Engine, Engine]:
        arguments = _postgresql_arguments(self.url, self._timeout_s)
        writer = sa.create_engine(
            self.url,
            connect_args=arguments,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # statements see everything committed before the advisory lock was taken
        )
        sa.event.listen(writer, "begin", _advisory_lock)
        sa.event.listen(writer, "handle_error", _leave_read_only)
        reader = sa.create_engine(
            self.url,
            connect_args=arguments,
            pool_size=READERS,
            max_overflow=READERS,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            execution_options={"postgresql_readonly": True},
        )
        return writer, reader

    def _create_private(self, *_: object) -> None:
        assert self.path is not None
        create_private(self.path)

    def _begin_immediate(self, connection: Connection) -> None:
        """Begin once the store is free. Retries every 2 ms; SQLite alone would wait up to 100 ms between tries."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                connection.connection.cursor().execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Run one writing transaction, serialised among all processes: durable at the block's end, undone if it raises.

        Raises:
            LedgerBusyError: others kept the store locked past the timeout.
            CoordinationError: the store is unreachable or failed.
        """
        with self._alone() as connection:
            connection.info.pop(DECIDED, None)
            with connection.begin():
                yield connection
            if connection.info.pop(DECIDED, False):
                self._tell_decided()

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise self._busy()
        try:
            with self._translated():
                if self._writing is None:
                    self._writing = self._writer.connect()
                yield self._writing
        finally:
            self._lock.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Read from one consistent snapshot; readers and writers do not block each other."""
        if self._in_memory:
            with self._alone() as connection:
                try:
                    yield connection
                finally:
                    connection.rollback()  # only SQLAlchemy's own statements begin a transaction
            return
        with self._translated(), self._reader.connect() as connection, connection.begin():
            yield connection

    def rows(self, query: sa.Select[Any] | Prepared, values: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """All rows of one query; on SQLite a prepared one runs without SQLAlchemy, which takes longer than the rest."""
        if isinstance(query, Prepared) and self.path is not None:
            with self._translated(), closing(self._reader.raw_connection()) as pooled:
                return query.rows_by(cast(sqlite3.Connection, pooled.driver_connection), values or {})
        with self.read() as connection:
            if isinstance(query, Prepared):
                return query.rows(connection, values or {})
            return connection.execute(query, values or {}).all()

    def counter(self, name: str) -> int:
        """A counter's value by now; 0 when never raised."""
        rows = self.rows(_COUNTER, {"of_name": name})
        return int(rows[0][0]) if rows else 0

    def meta(self, name: str) -> str | None:
        """A value of ``meta`` by now."""
        rows = self.rows(_META, {"of_name": name})
        return str(rows[0][0]) if rows else None

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            if self._writing is not None:
                self._writing.close()
                self._writing = None
            self._writer.dispose()
            self._reader.dispose()

    def decided(self) -> object | None:
        """When a process last committed more than facts; None for another store than SQLite's files."""
        if self._decided is None:
            return None
        try:
            return self._decided.stat().st_mtime_ns
        except FileNotFoundError:  # nothing was ever decided
            return 0
        except OSError:
            return None

    def _tell_decided(self) -> None:
        """Give the file that tells of decisions a time of its own: kernels round the time of a write."""
        if self._decided is not None:
            with suppress(OSError):
                create_private(self._decided)
                os.utime(self._decided, ns=(time.time_ns(),) * 2)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.TimeoutError as error:
            raise self._busy() from error
        except (DBAPIError, sqlite3.DatabaseError) as error:  # SQLAlchemy's, and of statements that its driver ran
            cause = error.orig if isinstance(error, DBAPIError) else error
            if _is_busy(cause) or getattr(cause, "sqlstate", None) == "55P03":
                raise self._busy() from error
            lost = isinstance(error, DBAPIError) and (error.connection_invalidated or _is_of_address(error))
            denied = getattr(cause, "sqlstate", None) == _DENIED
            if denied or lost or isinstance(error, _FAILURES) or type(error) in _UNSPECIFIC:
                what, owns = message_line(cause or error), f'"{self.url.database}" OWNER TO "{self.url.username}"'
                hint = f"Let its user own its database: ALTER DATABASE {owns}" if denied else self._remedy
                hint = "Correct user, password and database in [ledger] url" if _REFUSED.search(what) else hint
                raise CoordinationError(f"the ledger at {self._name} failed: {what}", hint) from error
            raise

    def _busy(self) -> LedgerBusyError:
        return LedgerBusyError(
            f"the ledger at {self._name} stayed locked for {self._timeout_s:g} s",
            "Another process holds a long transaction; try again",
        )

    @property
    def _remedy(self) -> str:
        if self.path is not None and not os.access(self.path.parent, os.W_OK):
            folder = self.path.parent
            return f"Make {folder} writable (is its disk read-only?): SQLite needs files beside it, even to read"
        return "Check its disk or server. Roles retry by themselves; repeat a command that failed"

    @property
    def _name(self) -> str:
        return redact(self.url.render_as_string(hide_password=True))

    def check_present(self) -> None:
        """Raise ConfigError when a SQLite file does not exist, instead of creating it, or when others can read it."""
        if self.path is not None:
            refuse_exposed(self.path)
            if not self.path.exists():
                raise ConfigError(
                    f"there is no ledger at {self.path}",
                    "Start the cluster, which creates it: walship up. If it was lost: walship rebuildledger",
                )


def _driver_url(url: str) -> URL:
    try:
        parsed = make_url(url if "://" in url else f"sqlite:///{url}")
    except (sa.exc.ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        raise ConfigError(f"{redact(url)!r} is not a ledger address: {redact(str(error))}") from None
    if _CUT.search(url) or "@" in (parsed.host or ""):  # else what is behind the blank, or the @, would be shown
        raise ConfigError("the ledger's address has an @ or a blank in user or password", "Write %40 or %20 for it")
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError(f"a ledger cannot be kept in {parsed.get_backend_name()}", "Use sqlite:/// or postgresql://")
    return parsed.set(drivername="sqlite")


def _postgresql_arguments(url: URL, timeout_s: float) -> dict[str, object]:
    """Connection arguments; those in the URL take precedence."""
    from_url = url.query.get("options", "")
    server = {
        "lock_timeout": int(timeout_s * 1000),
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": _SILENT_S * 1000,
        "tcp_keepalives_idle": _SILENT_S // 3,
        "tcp_keepalives_interval": _SILENT_S // 3,
        "tcp_keepalives_count": 2,
        "tcp_user_timeout": _SILENT_S * 1000,
    }
    client = {
        "connect_timeout": int(max(2, min(timeout_s, _CONNECT_S))),  # 2 is the least
        "keepalives_idle": _SILENT_S // 3,
        "keepalives_interval": _SILENT_S // 3,
        "keepalives_count": 2,
        "tcp_user_timeout": _SILENT_S * 1000,
        "application_name": "walship",
    }
    options = [f"-c {name}={value}" for name, value in server.items()]
    options += [from_url] if isinstance(from_url, str) else from_url
    return {name: value for name, value in client.items() if name not in url.query} | {
        "options": " ".join(filter(None, options))
    }


def _is_of_address(error: DBAPIError) -> bool:
    """Whether no connection was made, since the address has an option that the driver does not know."""
    return isinstance(error, sa.exc.ProgrammingError) and error.statement is None


def _is_busy(error: object) -> bool:
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))


def _advisory_lock(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    """Drop the connection when the server has become a standby; the next transaction connects again."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _durable(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    connection.execute("PRAGMA busy_timeout=2")  # ms; ``_begin_immediate`` retries, later statements never wait


def _foreign_keys(connection: Any, _: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")


def decisions_file(path: Path) -> Path:
    """The empty file beside a SQLite ledger whose time tells of decisions."""
    return path.with_name(f"{path.name}-decided")


def counter(connection: Connection, name: str) -> int:
    """A counter's value; 0 when never raised."""
    return int(_COUNTER.scalar(connection, {"of_name": name}) or 0)


def meta(connection: Connection, name: str) -> str | None:
    """A value of ``meta``."""
    found = _META.scalar(connection, {"of_name": name})
    return None if found is None else str(found)


def raise_counter(connection: Connection, name: str, value: int) -> int:
    """Raise a counter to ``value`` unless it is higher already; return its value."""
    kept = counter(connection, name)
    if value > kept:
        values = {"of_name": name, "to_value": value}
        if not _RAISE.run(connection, values).rowcount:
            _COUNT.run(connection, values)
    return max(kept, value)


def count_up(connection: Connection, name: str) -> int:
    """Raise a counter by one; return its value."""
    return raise_counter(connection, name, counter(connection, name) + 1)


def put_meta(connection: Connection, values: Mapping[str, str]) -> None:
    """Set rows of ``meta``."""
    _PUT_META.run_each(connection, [{"name": name, "value": value} for name, value in values.items()])


def chunked(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split ``ids`` into pieces short enough for an IN list."""
    for at in range(0, len(ids), IN_LIST):
        yield ids[at : at + IN_LIST]


def rows_in(
    connection: Connection, wanted: sa.Select[Any], column: sa.ColumnElement[Any], values: Iterable[Any]
) -> Iterator[Any]:
    """The rows of ``wanted`` in which ``column`` has one of any number of different values."""
    for some in chunked(list(values)):
        yield from connection.execute(wanted.where(column.in_(some)))


def execute_many(connection: Connection, statement: sa.Executable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run ``statement`` once per row; not at all for none."""
    if rows:
        connection.execute(statement, list(rows))
