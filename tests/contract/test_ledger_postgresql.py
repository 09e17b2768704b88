"""What only a ledger on a server has to stand: sessions that break, hosts that freeze, a server that restarts."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import sqlalchemy as sa

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId, StreamId
from replication.errors import CoordinationError, LedgerBusyError
from replication.ledger.base import Claim, FileKind
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.rebuild import RebuildInput, adopt
from replication.ledger.sql.store.store import SqlStore
from tests import postgresql as pg
from tests.contract.ledger_stores import WEST, peer, table
from tests.waiting import wait_until

SPAWN = multiprocessing.get_context("spawn")
pytestmark = [pytest.mark.heavy, pytest.mark.skipif(not pg.BINARIES, reason=pg.MISSING)]


@pytest.fixture(scope="module")
def server() -> Iterator[pg.Server]:
    with pg.server() as made:
        yield made


@pytest.fixture
def url(server: pg.Server) -> str:
    name = f"ledger_{os.urandom(6).hex()}"
    admin = sa.create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    initialise(server.url(name), WEST)
    return server.url(name)


def again(act: Callable[[], object]) -> object:
    """What every role does with a ledger that failed: ask it again."""
    (answer,) = wait_until(lambda: (act(),), what="an answer of the ledger", despite=CoordinationError)
    return answer


def freeze_in_the_middle(url: str, report: Connection) -> None:
    store = SqlStore(url)
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE meta SET value = 'frozen' WHERE name = 'cluster'")
        report.send("written")
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_host_that_freezes_in_a_transaction_holds_the_others_up_for_a_bounded_time(url: str) -> None:
    mine, theirs = SPAWN.Pipe(duplex=False)
    sooner = f"{url}&options=-c%20idle_in_transaction_session_timeout%3D2s"
    frozen = SPAWN.Process(target=freeze_in_the_middle, args=(sooner, theirs))
    frozen.start()
    try:
        assert mine.poll(60) and mine.recv() == "written"
        ledger = open_ledger(url, busy_timeout_s=60)
        assert ledger.terms.raise_to_next() == 1
        assert ledger.cluster == WEST
        ledger.close()
    finally:
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGKILL)
        frozen.join(120)


def test_a_ledger_locked_past_the_time_out_is_an_error_and_reads_go_on(url: str) -> None:
    ledger, other = open_ledger(url, busy_timeout_s=0.2), SqlStore(url)
    with other.write():
        with pytest.raises(LedgerBusyError, match=r"stayed locked for 0\.2 s"):
            ledger.terms.raise_to_next()
        assert ledger.terms.current() == 0 and ledger.files.statuses() == []
    assert ledger.terms.raise_to_next() == 1
    other.close()
    ledger.close()


def test_broken_sessions_are_an_error_worth_a_retry_and_the_next_call_works(server: pg.Server, url: str) -> None:
    ledger = open_ledger(url)
    ledger.tables.create(table())
    ledger.terms.raise_to_next()
    admin = sa.create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        wanted = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'walship'"
        assert connection.exec_driver_sql(wanted).scalar()
    admin.dispose()
    assert again(ledger.terms.raise_to_next) in (2, 3)
    assert again(ledger.tables.all) == [table()]
    ledger.close()


def test_a_server_that_restarts_under_load_loses_nothing_that_was_answered(server: pg.Server, url: str) -> None:
    ledger = open_ledger(url)
    told: list[int] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            with contextlib.suppress(CoordinationError):
                told.append(ledger.terms.raise_to_next())
            stop.wait(0.02)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for mode in ("immediate", "fast"):
            enough = len(told) + 5
            again(lambda enough=enough: _more(told, enough))
            server.stop(mode)
            server.start()
        enough = len(told) + 5
        again(lambda: _more(told, enough))
    finally:
        stop.set()
        thread.join(120)
    assert told == sorted(set(told))
    assert ledger.terms.current() >= told[-1]
    assert again(lambda: ledger.rules.define(peer(), told[-1])) is None
    ledger.close()


def _more(told: list[int], wanted: int) -> None:
    if len(told) < wanted:
        raise CoordinationError("not yet")


def test_a_server_that_is_down_is_reported_in_one_line() -> None:
    store = SqlStore("postgresql://walship@127.0.0.1:1/west")
    with pytest.raises(CoordinationError) as told, store.read():
        pass
    assert "127.0.0.1" in told.value.what and "\n" not in told.value.what
    store.close()


def test_a_user_who_may_make_no_tables_in_the_database_is_told_so_with_the_remedy(server: pg.Server) -> None:
    name = f"ledger_{os.urandom(6).hex()}"
    admin = sa.create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(f"CREATE DATABASE {name}")  # only its owner makes tables there
    admin.dispose()
    with pytest.raises(CoordinationError, match="permission denied for schema public") as told:
        initialise(server.url(name).replace("//walship@", f"//{name}@"), WEST)
    assert told.value.hint.endswith(f'ALTER DATABASE "{name}" OWNER TO "{name}"')


def test_a_wrong_password_user_or_database_is_to_be_corrected_in_the_address(server: pg.Server) -> None:
    admin = sa.create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    admin.dispose()
    rules = Path(server.data, "pg_hba.conf")
    before = rules.read_text()
    rules.write_text(f"local all guarded scram-sha-256\nlocal all all trust\n{before}")
    server.reload()
    at = server.url("postgres").partition("@")[2]
    for wrong in (
        f"postgresql://guarded:wrong@{at}",
        f"postgresql://guarded@{at}",
        f"postgresql://nobody@{at}",
        server.url("nowhere"),
    ):
        with pytest.raises(CoordinationError) as told:
            open_ledger(wrong)
        assert told.value.hint == "Correct user, password and database in [ledger] url", told.value


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_for_others() -> None:
    """As of the shell, which asks for the names of tables while someone types."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(CoordinationError):
            open_ledger(f"postgresql://walship@127.0.0.1:{silent.getsockname()[1]}/east", busy_timeout_s=1)
        assert time.monotonic() - began < 6


def test_reads_can_change_nothing(url: str) -> None:
    store = SqlStore(url)
    with pytest.raises(CoordinationError, match="read-only"), store.read() as connection:
        connection.exec_driver_sql("DELETE FROM meta")
    store.close()


def test_options_in_the_address_win(url: str) -> None:
    store = SqlStore(f"{url}&application_name=mine&options=-c%20work_mem%3D1MB")
    with store.read() as connection:
        shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("application_name", "work_mem")]
        assert shown == ["mine", "1MB"]
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "15s"
    store.close()


@pytest.mark.parametrize("known", [0, 3])
def test_a_restored_ledger_gives_out_no_number_of_a_newer_file(url: str, known: int) -> None:
    file = FileId(WEST, "h0", 7)
    ledger = open_ledger(url)
    for _ in range(known):
        ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot")
    claim = Claim(StreamId(file, table().uuid, "default"), 0, bytes(32), bytes(32), FILE_HEADER_BYTES, 300, 1)
    adopt(url, "h0", [RebuildInput(file, "/data/wal/7.wal", 5, (claim,))], 8)
    adopt(url, "h0", [], 1)
    assert ledger.files.upcoming("h0") == 8
    (row,) = (row for row in ledger.files.all() if row.file == file)
    assert (row.closed, row.length, row.needed, row.kind) == (True, FILE_HEADER_BYTES, 300, FileKind.WAL)
    ledger.close()


def test_a_ledger_that_became_read_only_is_asked_again_over_a_new_connection(server: pg.Server, url: str) -> None:
    ledger = open_ledger(url)
    name = sa.make_url(url).database
    admin = sa.create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(CoordinationError, match="read-only"):
            ledger.terms.raise_to_next()
        connection.exec_driver_sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        assert ledger.terms.raise_to_next() == 1
    admin.dispose()
    ledger.close()
