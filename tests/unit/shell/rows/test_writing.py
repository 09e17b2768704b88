"""What `walship write` makes of files, and what it refuses."""

from __future__ import annotations

import fcntl
import io
import json
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.client.cluster import Cluster
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.rows.convert import log_batches
from replication.core.rows.mutation import Mutation, cells_of
from replication.errors import (
    CoordinationError,
    HistoryError,
    NoSpaceError,
    NullKeyError,
    RequestError,
    SchemaError,
    UnknownPeerError,
    WaitTimeoutError,
)
from replication.files.rows import row_files
from replication.writer.wal import batch_ids
from shell.cli.render import Printer
from shell.rows import awaiting, writing
from shell.rows.awaiting import Wait, check_wait, print_written
from shell.rows.writing import write_file
from tests.tables_made import cell, keyed
from tests.waiting import wait_until

NOBODY, SILENT = cast(Cluster, None), cast(Printer, None)


def test_a_batch_id_is_not_silently_left_out_for_cells() -> None:
    with pytest.raises(RequestError, match="cell table"):
        write_file(NOBODY, cell("t.c"), "cells.csv", "", SILENT, delete=False, batch_id="load-7")


def test_deletes_take_no_batch_id() -> None:
    with pytest.raises(RequestError, match="--delete"):
        write_file(NOBODY, keyed("t.k"), "rows.csv", "", SILENT, delete=True, batch_id="load-7")


def test_a_file_too_large_for_a_batch_id_is_refused_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("k,v\n" + "x,1\n" * 1000)
    monkeypatch.setattr(batch_ids, "BATCH_BYTES_MAX", 1000)
    with pytest.raises(RequestError, match="too large for a batch id"):
        quiet = Printer(as_json=True)
        write_file(NOBODY, keyed("t.k"), str(tmp_path / "a.csv"), "", quiet, delete=False, batch_id="load-7")


class Applied:
    """A cluster that keeps the mutations it is given."""

    def __init__(self) -> None:
        self.cells: list[dict[str, object]] = []

    def apply(self, table: str, mutations: Iterable[Mutation]) -> Position:
        self.cells += cells_of(mutations, table)
        return Position(ClusterId("east", UUID(int=1)))


def written(tmp_path: Path, text: str, spec: TableSpec | None = None, *, delete: bool = False) -> Applied:
    (tmp_path / "a.csv").write_text(text)
    cluster, quiet = Applied(), Printer(as_json=True)
    file = str(tmp_path / "a.csv")
    write_file(cast(Cluster, cluster), spec or cell("t.c"), file, "", quiet, delete=delete, batch_id=None)
    return cluster


def test_cells_of_a_file_may_be_empty_and_their_bytes_are_escaped(tmp_path: Path) -> None:
    [put, gone] = written(tmp_path, 'row,family,qualifier,value,delete\n\\x00\\\\,f,"",v,\nr,f,q,,true\n').cells
    assert (put["row"], put["qualifier"], put["value"]) == (b"\x00\\", "", b"v")
    assert (gone["row"], gone["delete"]) == (b"r", True)
    assert written(tmp_path, "row,family,qualifier\nr,f,q\n", delete=True).cells[0]["delete"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("row,family,value\nr,f,v\n", "no column 'qualifier'"),
        ("row,family,qualifier\nr,f,q\n", "no column 'value'"),
        ("row,family,qualifier,value\nr,f,q,v\n,f,q,v\n", "a.csv, line 3 has no row"),
        ("row,family,qualifier,value\nr,f,q,v\nr,f,,v\n", "line 3 has no qualifier"),
        ("row,family,qualifier,value\nr,f,q,\n", "line 2 has no value"),
        ("row,row,family,qualifier,value\nr,s,f,q,v\n", "t.c was given 'row' twice"),
    ],
)
def test_what_a_cell_lacks_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        written(tmp_path, text)


@pytest.mark.parametrize("batch_id", [None, "load-7"])
def test_a_row_that_its_table_refuses_is_named_by_its_line(tmp_path: Path, batch_id: str | None) -> None:
    class Refusing:
        def upsert(self, table: str, rows: object, batch_id: str | None = None) -> object:
            return list(log_batches(rows, spec))

        upsert_async = upsert

    spec, file = keyed("t.k"), tmp_path / "a.csv"
    file.write_text("k,v\na,1\n\n,2\n")
    with pytest.raises(NullKeyError, match=r"a\.csv, line 4: key column 'k' .* NULL in 1 row"):
        quiet = Printer(as_json=True)
        write_file(cast(Cluster, Refusing()), spec, str(file), "", quiet, delete=False, batch_id=batch_id)


@pytest.mark.parametrize(
    ("text", "said"),
    [("v\n1\n", "key column 'k' .* is missing"), ("k,v,v\na,1,2\n", "table t.k was given 'v' twice")],
)
def test_columns_that_do_not_fit_are_blamed_on_no_line(tmp_path: Path, text: str, said: str) -> None:
    class Refusing:
        def upsert_async(self, table: str, rows: object) -> object:
            return list(log_batches(rows, keyed("t.k")))

    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(SchemaError, match=rf"a\.csv: {said}"):
        quiet = Printer(as_json=True)
        write_file(cast(Cluster, Refusing()), keyed("t.k"), str(file), "", quiet, delete=False, batch_id=None)


def test_a_refused_row_tells_how_many_before_it_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Taking(Applied):
        def upsert_async(self, table: str, rows: object) -> Future[Position]:
            list(log_batches(rows, keyed("t.k")))
            ack: Future[Position] = Future()
            ack.set_result(Position(ClusterId("east", UUID(int=1))))
            return ack

    count = row_files.BATCH_ROWS + 1
    keys = pa.array([None if row == count - 1 else str(row) for row in range(count)])
    pq.write_table(pa.table({"k": keys}), tmp_path / "a.parquet")
    with pytest.raises(NullKeyError, match="row 65537: key column 'k'"):
        told = Printer(as_json=False)
        file = str(tmp_path / "a.parquet")
        write_file(cast(Cluster, Taking()), keyed("t.k"), file, "", told, delete=False, batch_id=None)
    err = capsys.readouterr().err
    assert "65,536 rows of " in err and "a.parquet are written; walship import takes a file whole" in err


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_disk_that_fills_up_tells_how_many_rows_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    class Filling(Applied):
        acks = 0

        def upsert_async(self, table: str, rows: object) -> Future[Position]:
            ack: Future[Position] = Future()
            self.acks += 1
            if self.acks == 2:
                ack.set_exception(NoSpaceError("no space to write 7.wal"))
            else:
                ack.set_result(Position(ClusterId("east", UUID(int=1))))
            return ack

    monkeypatch.setattr(writing, "_IN_FLIGHT", in_flight)
    pq.write_table(pa.table({"k": [str(row) for row in range(row_files.BATCH_ROWS + 1)]}), tmp_path / "a.parquet")
    with pytest.raises(NoSpaceError):
        file, quiet = str(tmp_path / "a.parquet"), Printer(as_json=True)
        write_file(cast(Cluster, Filling()), keyed("t.k"), file, "", quiet, delete=False, batch_id=None)
    assert "65,536 rows of " in capsys.readouterr().err


def test_cells_before_one_that_is_too_old_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Applied):
        def apply(self, table: str, mutations: Iterable[Mutation]) -> Position:
            if self.cells:
                raise HistoryError("timestamp 1 is too old")
            return super().apply(table, mutations)

    monkeypatch.setattr(row_files, "BATCH_ROWS", 2)
    (tmp_path / "a.csv").write_text("row,family,qualifier,value,timestamp\n" + "r,f,q,v,1\n" * 3)
    with pytest.raises(HistoryError):
        file, quiet = str(tmp_path / "a.csv"), Printer(as_json=True)
        write_file(cast(Cluster, Late()), cell("t.c"), file, "", quiet, delete=False, batch_id=None)
    assert "2 rows of " in capsys.readouterr().err


@pytest.mark.parametrize("rows", ["", "1,2\n"])
def test_a_column_that_the_table_lacks_is_refused_with_and_without_rows(tmp_path: Path, rows: str) -> None:
    with pytest.raises(SchemaError, match="'w', which t.k does not have"):
        written(tmp_path, f"k,w\n{rows}", keyed("t.k"))
    assert written(tmp_path, "k,v\n", keyed("t.k")).cells == []


def test_a_column_of_standard_input_that_the_table_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"k,w\n1,2\n")))
    with pytest.raises(SchemaError, match="^standard input has a column 'w'"):
        write_file(cast(Cluster, None), keyed("t.k"), "-", "csv", Printer(as_json=True), delete=False, batch_id=None)


def test_rows_are_counted_for_whom_stops_the_command_as_they_get_durable(tmp_path: Path) -> None:
    acks: list[Future[Position]] = []

    class Slow(Applied):
        def upsert_async(self, table: str, rows: object) -> Future[Position]:
            acks.append(Future())
            return acks[-1]

    (tmp_path / "a.csv").write_text("k,v\n" + "x,1\n" * 3)
    printer = Printer(as_json=True)
    told = (cast(Cluster, Slow()), keyed("t.k"), str(tmp_path / "a.csv"), "", printer)
    writer = threading.Thread(target=lambda: write_file(*told, delete=False, batch_id=None))
    writer.start()
    wait_until(lambda: acks)
    assert printer.so_far == "0 rows durable by then"
    acks[0].set_result(Position(ClusterId("east", UUID(int=1))))
    writer.join()
    assert printer.so_far == "3 rows durable by then" and json.loads(printer.stopped())["hint"] == printer.so_far


class Waiting:
    """A cluster called east; none of another name is led to, and no wait ends in time. Replay has never run."""

    name = "east"

    def __init__(self, run_dir: Path = Path("/nowhere")) -> None:
        self.contacts = self.config = self.ledger = self.replay = self.rules = self
        self.spec = keyed("t.k")
        self.sent = [SimpleNamespace(table=self.spec.uuid)]
        self.run_dir = run_dir
        self.is_told = threading.Event()

    def table(self, name: str) -> TableSpec:
        return self.spec

    def all(self) -> list[SimpleNamespace]:
        return self.sent

    def last_report(self) -> str:
        return ""

    def note(self, text: str) -> None:
        self.is_told.set()

    def locate(self, name: str) -> None:
        raise UnknownPeerError(f"no cluster is called {name}")

    def wait(self, position: Position, *, cluster: str, until: str, timeout_s: float) -> None:
        self.is_told.wait(timeout_s)
        raise WaitTimeoutError(f"Not {until} at {cluster} within {timeout_s:g} s")


def test_a_cluster_that_is_to_be_waited_for_is_looked_for_before_rows_are_written() -> None:
    east = cast(Cluster, Waiting())
    check_wait(east, None, "t.k")
    check_wait(east, "east", "t.k")
    with pytest.raises(UnknownPeerError, match="no cluster is called wset"):
        check_wait(east, "wset", "t.k")


def test_rows_of_a_table_that_goes_to_no_peer_are_not_written_to_wait_for_one() -> None:
    east = Waiting()
    east.sent = []
    with pytest.raises(UnknownPeerError, match=r"t\.k goes to no peer, so not to west.*enablereplication"):
        check_wait(cast(Cluster, east), "west", "t.k")


def test_a_wait_that_fails_reports_the_durable_rows_before_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    east, position = cast(Cluster, Waiting()), Position(ClusterId("east", UUID(int=1)))
    with pytest.raises(WaitTimeoutError, match="visible at west"):
        print_written(east, Printer(False), {"rows": 3}, "3 rows", position, Wait("west", "visible", 0.0))
    assert capsys.readouterr().out == "3 rows\n"


def test_a_wait_that_fails_is_told_though_its_output_has_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Printer, "value", no_reader)
    east, position = cast(Cluster, Waiting()), Position(ClusterId("east", UUID(int=1)))
    with pytest.raises(WaitTimeoutError, match="visible at west"):
        print_written(east, Printer(False), {"rows": 3}, "3 rows", position, Wait("west", "visible", 0.0))


def test_a_wait_tells_that_the_cluster_does_not_run_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    fake = Waiting()
    monkeypatch.setattr(awaiting, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(Printer, "note", lambda _, text: (notes.append(text), fake.note(text)))
    east, position = cast(Cluster, fake), Position(ClusterId("east", UUID(int=1)))
    with pytest.raises(WaitTimeoutError) as failed:
        print_written(east, Printer(True), {"rows": 3}, "", position, Wait("west", "visible", 30.0))
    assert notes == ["still waiting: east does not run on this host, so the rows stay in its WAL. First: walship up"]
    assert failed.value.hint.endswith("First: walship up")


def test_a_wait_that_fails_where_no_replay_runs_says_so(tmp_path: Path) -> None:
    position = Position(ClusterId("east", UUID(int=1)))
    with (tmp_path / "up.pid").open("w") as lock:
        lock.write("1\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        for until, told in (("visible", True), ("durable", False)):
            with pytest.raises(WaitTimeoutError) as failed:
                east = cast(Cluster, Waiting(tmp_path))
                print_written(east, Printer(True), {"rows": 3}, "", position, Wait("east", until, 0.0))
            assert failed.value.hint.endswith("If no replay process runs: walship replay") is told


def test_a_wait_goes_on_though_the_ledger_does_not_answer_who_looks_for_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a traceback of a thread were shown, and the wait's own error lost."""
    asked = threading.Event()

    class Silent(Waiting):
        def last_report(self) -> str:
            asked.set()
            raise CoordinationError("the ledger does not answer")

        def wait(self, position: Position, *, cluster: str, until: str, timeout_s: float) -> None:
            assert asked.wait(timeout_s)
            raise WaitTimeoutError("Not visible", "No row is lost")

    monkeypatch.setattr(awaiting, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(awaiting, "running_pid", lambda _: 1)
    east, position = cast(Cluster, Silent()), Position(ClusterId("east", UUID(int=1)))
    with pytest.raises(WaitTimeoutError) as failed:
        print_written(east, Printer(True), {"rows": 3}, "", position, Wait("east", "visible", 30.0))
    assert failed.value.hint == "No row is lost"
