"""One ledger under many processes: nothing fails, nothing is half done, reads do not wait."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from replication import config as configuration
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId
from replication.errors import ConfigError, CoordinationError, LedgerBusyError, NoSpaceError, RequestError
from replication.ledger.base import FileKind, Ledger, PeerProgress
from replication.ledger.batches import BatchPart
from replication.ledger.sql.ledger import SqlLedger, initialise, open_ledger
from replication.ledger.sql.reincarnate import reincarnate
from replication.ledger.sql.store.store import SqlStore
from shell.processes.roles import make_ledger
from tests.contract.ledger_stores import (
    FRAME,
    HEADER,
    WEST,
    Route,
    claims,
    peer,
    postgresql_database,
    stream,
    table,
    wal,
)
from tests.fakes.ledger import MemoryLedger

#: New processes are forked from one that has loaded this module and nothing else, so that none loads it again.
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload([__name__])
FLIGHTS = table()
S = stream(FLIGHTS, wal())


def hammer(path: str, number: int, rounds: int, report: Connection) -> None:
    """Allocate a WAL and register frames of it, with the other calls that a worker makes in between."""
    ledger = open_ledger(path)
    file = ledger.files.allocate(f"h{number}", FileKind.WAL, "/data/wal", "boot", f"w{number}").file
    ledger.time.register_writer(f"w{number}", f"h{number}", os.getpid(), "boot", 1)
    of = stream(FLIGHTS, file)
    for n in range(rounds):
        at = HEADER + n * FRAME
        ledger.registration.register_own(file, at, at + FRAME, claims(of, n, n + 1, at))
        ledger.files.record([PeerProgress(file, "north", Ranges.of((HEADER, at + FRAME)), HEADER)])
        ledger.time.raise_closed(f"h{number}", {f"w{number}": n + 1}, n)
        assert ledger.landing.coverage()[of] == Ranges.of((0, n + 1))
        if n == 0:
            report.send("started")
    report.send((str(file), ledger.terms.raise_to_next()))
    ledger.close()


def made(url: str) -> str:
    initialise(url, WEST)
    ledger = open_ledger(url)
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    ledger.close()
    return url


@pytest.fixture
def path(tmp_path: Path) -> str:
    return made(str(tmp_path / "ledger.db"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield made(str(tmp_path / "ledger.db"))
    else:
        with postgresql_database(request.getfixturevalue("postgresql")) as stores:
            yield made(stores.url)


def start(
    path: str, number: int, rounds: int, work: Callable[..., None] = hammer
) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    mine, theirs = CLEAN.Pipe(duplex=False)
    process = CLEAN.Process(target=work, args=(path, number, rounds, theirs))
    process.start()
    theirs.close()
    assert mine.poll(60) and mine.recv() == "started"
    return process, mine


def finish(running: list[tuple[multiprocessing.process.BaseProcess, Connection]]) -> list[Any]:
    """What each process said at its end."""
    said = []
    for process, mine in running:
        assert mine.poll(120)
        said.append(mine.recv())
        process.join(120)
        assert process.exitcode == 0
        mine.close()
    return said


def check(ledger: Ledger) -> None:
    """What is registered is exactly what is claimed, in every file."""
    covered = ledger.landing.coverage()
    for row in ledger.files.all():
        frames = (row.length - HEADER) // FRAME
        assert covered.get(stream(FLIGHTS, row.file), Ranges()) == Ranges.of((0, frames))


def test_six_processes_share_one_ledger_and_a_killed_one_leaves_nothing_half_done(url: str) -> None:
    rounds = 40
    running = [start(url, n, rounds) for n in range(5)]
    victim, pipe = start(url, 5, 1_000_000)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(120)
    pipe.close()
    terms = [term for _, term in finish(running)]
    ledger = open_ledger(url)
    assert sorted(terms) == [1, 2, 3, 4, 5] and ledger.terms.current() == 5
    check(ledger)
    assert {r.host: (r.length - HEADER) // FRAME for r in ledger.files.all() if r.host != "h5"} == {
        f"h{n}": rounds for n in range(5)
    }
    assert ledger.time.closed() <= rounds and len(ledger.time.writers()) == 6
    ledger.close()
    if "://" not in url:
        raw = sqlite3.connect(url)
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        raw.close()


def land(url: str, number: int, rounds: int, report: Connection) -> None:
    """Land the same frames as every other process does, each in a file of its own, in an order of its own."""
    ledger = open_ledger(url)
    route = Route(ledger, host=f"h{number}")
    order = [(n * (2 * number + 1)) % rounds for n in range(rounds)]
    for at, n in enumerate(order):
        route.land(claims(S, n, n + 1, 0))
        if at == 0:
            report.send("started")
    report.send(str(route.file))
    ledger.close()


def test_frames_that_land_on_every_host_at_once_are_claimed_once(url: str) -> None:
    rounds = 32
    files = finish([start(url, n, rounds, land) for n in range(4)])
    ledger = open_ledger(url)
    assert ledger.landing.coverage() == {S: Ranges.of((0, rounds))}
    pending = ledger.replay.pending()
    assert {str(part.row.file) for part in pending} <= set(files)  # those that won nothing wait for nothing
    due = sum((part.end - HEADER - part.duplicates.total) // FRAME for part in pending)
    assert due == rounds
    ledger.close()


def grab(url: str, number: int, rounds: int, report: Connection) -> None:
    """Take every batch id that is free, complete some, and say which were had."""
    ledger = open_ledger(url)
    writer = f"w{number}"
    file = ledger.files.allocate(f"h{number}", FileKind.WAL, "/data/wal", "boot", writer).file
    ledger.time.register_writer(writer, f"h{number}", os.getpid(), "boot", 1)
    had = []
    for n in range(rounds):
        batch = f"batch-{n}"
        if ledger.batches.hold(FLIGHTS.uuid, batch, writer, f"h{number}") == writer:
            had.append(n)
            part = BatchPart("default", 0, 1, bytes([n]) * 32, file, n, HEADER)
            ledger.batches.put(FLIGHTS.uuid, batch, [part], n)
        if n == 0:
            report.send("started")
    report.send((str(file), had))
    ledger.close()


def test_a_batch_id_wanted_by_writers_of_all_hosts_is_had_by_one(url: str) -> None:
    rounds = 40
    said = finish([start(url, n, rounds, grab) for n in range(5)])
    ledger = open_ledger(url)
    assert sorted(n for _, had in said for n in had) == list(range(rounds))
    for file, had in said:
        for n in had:
            assert [str(part.wal) for part in ledger.batches.parts(FLIGHTS.uuid, f"batch-{n}")] == [file]
    ledger.close()


def test_two_hosts_that_make_the_ledger_at_once_agree_whose_it_is(postgresql: str, tmp_path: Path) -> None:
    with postgresql_database(postgresql, empty=True) as stores:
        shared = {"warehouse": f"file://{tmp_path}"}
        given = {"cluster": {"name": "west"}, "ledger": {"url": stores.url}, "catalog": shared}
        config = configuration.load(None, given, {})
        found: list[ClusterId] = []
        threads = [threading.Thread(target=lambda: found.append(make_ledger(config))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert len(found) == 6 and len(set(found)) == 1


def test_a_ledger_locked_past_the_time_out_is_an_error_and_reads_go_on(path: str) -> None:
    ledger = open_ledger(path, busy_timeout_s=0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerBusyError, match=r"stayed locked for 0\.2 s"):
        ledger.terms.raise_to_next()
    assert ledger.terms.current() == 0 and ledger.files.statuses() == []
    other.execute("ROLLBACK")
    other.close()
    assert ledger.terms.raise_to_next() == 1
    ledger.close()


def test_a_read_sees_one_snapshot_while_others_write(url: str) -> None:
    store = SqlStore(url)
    ledger = open_ledger(url)
    with store.read() as connection:
        before = connection.exec_driver_sql("SELECT count(*) FROM files").scalar()
        ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot")
        assert connection.exec_driver_sql("SELECT count(*) FROM files").scalar() == before
    store.close()
    ledger.close()


def test_threads_of_one_process_take_turns(url: str) -> None:
    ledger = open_ledger(url)
    taken: list[int] = []

    def allocate() -> None:
        for _ in range(20):
            taken.append(ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot").file.number)

    threads = [threading.Thread(target=allocate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(taken) == list(range(120))
    ledger.close()


def test_a_missing_or_foreign_ledger_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ledger at .*walship up"):
        open_ledger(str(tmp_path / "none.db"))
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "empty.db").touch(0o600)
    with pytest.raises(ConfigError, match="walship up"):
        open_ledger(str(tmp_path / "empty.db"))
    (tmp_path / "text.db").touch(0o600)
    (tmp_path / "text.db").write_text("not a database at all, but long enough to look at" * 20)
    with pytest.raises(CoordinationError, match="not a database"):
        open_ledger(str(tmp_path / "text.db"))
    with pytest.raises(ConfigError, match="cannot be kept in mysql"):
        open_ledger("mysql://x/y")


def test_a_new_incarnation_decides_under_terms_above_all_that_were_raised_since_the_copy(url: str) -> None:
    """Receivers know files that it sends on under those, and refuse lower ones."""
    terms = []
    for _ in range(3):
        ledger = open_ledger(url)
        terms.append(ledger.terms.current())
        ledger.close()
        reincarnate(url)
    assert terms[1] > terms[0] + 1_000_000 and terms[2] > terms[1]


def test_who_opened_a_ledger_before_its_cluster_got_another_id_adds_no_file_under_the_former_one(url: str) -> None:
    """A ledger from a backup gives numbers again, and peers would take new frames for those that they have."""
    opened = open_ledger(url)
    reincarnate(url)
    with pytest.raises(RequestError, match=f"no longer {opened.cluster}"):
        opened.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w0")
    again = open_ledger(url)
    assert again.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w0").file.cluster == again.cluster
    for each in (opened, again):
        each.close()


def test_what_a_rule_requires_is_not_remembered_of_one_that_was_never_there(path: str) -> None:
    """The next rule gets the key of one whose commit failed."""
    ledger = open_ledger(path)
    assert isinstance(ledger, SqlLedger)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w0").file
    of = stream(FLIGHTS, file)
    ledger.registration.register_own(file, HEADER, HEADER + FRAME, claims(of, 0, 1, HEADER))

    def fail(connection: sa.Connection) -> None:
        connection.connection.rollback()  # as SQLite does by itself
        raise NoSpaceError("the disk is full")

    sa.event.listen(sa.Engine, "commit", fail)
    with pytest.raises(NoSpaceError):
        ledger.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    sa.event.remove(sa.Engine, "commit", fail)
    ledger.registration.register_own(file, HEADER + FRAME, HEADER + 2 * FRAME, claims(of, 1, 2, HEADER + FRAME))
    begun = ledger.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    other = open_ledger(path)
    assert begun == ledger.rules.all() == other.rules.all()
    assert begun[0].required_from == {file: 2}
    for each in (ledger, other):
        each.close()


def test_an_answer_that_is_lost_and_asked_again_changes_nothing() -> None:
    ledger = MemoryLedger(ClusterId("west", UUID(int=2)))
    ledger.tables.create(FLIGHTS)
    route = Route(ledger)
    group = route.group(claims(S, 0, 3, 0))
    lost = CoordinationError("the answer was lost")

    def lose(call: str) -> None:
        raise lost

    ledger.fault_after = lose
    with pytest.raises(CoordinationError, match="the answer was lost"):
        ledger.registration.register([group])
    ledger.fault_after = None
    ledger.repeats = lambda call: call == "registration.register"
    assert ledger.registration.register([group]) == []
    ledger.fault = lose
    with pytest.raises(CoordinationError):
        ledger.registration.register([route.group(claims(S, 3, 4, 0))])
    ledger.fault = None
    assert ledger.landing.coverage() == {S: Ranges.of((0, 3))}
    ledger.close()
