"""A landing file never takes the place of another file, and keeps what is registered of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from peer.receive.admission import IncomingFrames
from peer.receive.landing import Landing
from peer.receive.landing_file import LandingFile, cut_and_close
from peer.receive.landing_queue import Item
from peer.receive.limits import LandingLimits
from replication.core.frame import FILE_HEADER_BYTES, scan
from replication.errors import CoordinationError, NoSpaceError, StorageError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.link.base import Ack, Data, Refusal, Reply
from tests import sites
from tests.contract.ledger_stores import FRAME, WEST, Route, claims, stream, table, wal
from tests.fakes.files import MemoryFile, MemoryFiles
from tests.fakes.ledger import MemoryLedger


def test_a_landing_file_of_a_newer_ledger_is_not_removed(tmp_path: Path) -> None:
    def land(name: str) -> LandingFile:
        initialise(url := f"sqlite:///{tmp_path}/{name}.db", WEST)
        with closing(open_ledger(url)) as ledger:
            files, directory = LocalFiles(), str(tmp_path / "landing")
            files.make_directory(directory)
            row = ledger.files.allocate("h0", FileKind.LANDING, directory, "boot", source=wal())
            return LandingFile.create(files, row, wal(), 0.0)

    first = land("first")
    path = Path(first.row.path)
    land("begun anew")  # nothing had landed in it
    path.write_bytes(path.read_bytes() + b"a frame")
    with pytest.raises(StorageError, match="older than the files beside it"):
        land("begun anew again")
    assert path.stat().st_size == FILE_HEADER_BYTES + len(b"a frame")


@pytest.fixture
def route(tmp_path: Path) -> Iterator[Route]:
    """A landing file with two frames on the disk, none of which is registered."""
    initialise(url := f"sqlite:///{tmp_path}/ledger.db", WEST)
    with closing(open_ledger(url)) as ledger:
        ledger.tables.create(table())
        made = Route(ledger)
        made.row = ledger.files.allocate("h0", FileKind.LANDING, str(tmp_path), "boot", source=made.source)
        Path(made.row.path).write_bytes(bytes(FILE_HEADER_BYTES + 2 * FRAME))
        yield made


def test_what_is_registered_late_is_not_cut_off(route: Route) -> None:
    read = route.row  # before the commit of a connection that broke meanwhile has landed
    route.land(claims(stream(table(), route.source), 0, 1, 0))
    end = FILE_HEADER_BYTES + FRAME
    assert cut_and_close(route.ledger, LocalFiles(), read) == (end, end + FRAME)
    row = route.ledger.files.get(route.file)
    assert row is not None and row.length == row.closed_length == Path(read.path).stat().st_size == end


def test_nothing_is_cut_of_a_file_that_cannot_be_closed(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise CoordinationError("the ledger is away")

    with monkeypatch.context() as patched, pytest.raises(CoordinationError):
        patched.setattr(route.ledger.files, "close", away)
        cut_and_close(route.ledger, LocalFiles(), route.row)
    assert Path(route.row.path).stat().st_size == FILE_HEADER_BYTES + 2 * FRAME
    cut_and_close(route.ledger, LocalFiles(), route.row)
    assert Path(route.row.path).stat().st_size == FILE_HEADER_BYTES


def test_a_file_that_a_full_disk_does_not_let_be_cut_gets_no_more_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: MemoryFile, length: int) -> None:
        raise NoSpaceError(f"no space to truncate {file.path}")

    with closing(sites.Site(tmp_path, "east")) as east, closing(MemoryLedger(WEST)) as ledger:
        east.ledger.tables.create(sites.table())
        sent = east.wal()
        ends = [FILE_HEADER_BYTES, *(sent.append(sites.table(), sites.rows(n, 1)) for n in range(2))]
        written = Path(sent.path).read_bytes()

        def message(n: int, replies: list[Reply]) -> list[Item]:
            content = written[ends[n] : ends[n + 1]]
            data = Data(sent.file, ends[n], ends[n + 1], FILE_HEADER_BYTES, 1, content)
            return [Item(IncomingFrames(data, tuple(scan(content)), ()), 1, replies.append)]

        (tmp_path / "landing").mkdir()
        limits = LandingLimits(str(tmp_path / "landing"), str(tmp_path / "quarantine"), "w1", "boot", 1, 1 << 30)
        replies: list[Reply] = []
        landing = Landing(ledger, files := MemoryFiles(), limits)
        landing.recover()
        monkeypatch.setattr(MemoryFile, "reserve", lambda file, end: None)
        landing.run_once(message(0, replies))
        (first,) = ledger.files.all()
        files.faults.capacity_bytes = first.length + 100
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFile, "truncate", full)
            landing.run_once(message(1, replies))
        files.faults.capacity_bytes = None
        landing.run_once(message(1, replies))
        assert [type(reply) for reply in replies] == [Ack, Refusal, Ack]
        for row in ledger.files.all():
            content = files.open(row.path).read(FILE_HEADER_BYTES, row.length)
            assert [frame.end for frame in scan(content, 0, FILE_HEADER_BYTES)] == [row.length]
