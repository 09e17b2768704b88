"""A landing file never takes the place of another file, and keeps what is registered of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from peer.receive.landing_file import LandingFile, cut_and_close
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import CoordinationError, StorageError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind
from replication.ledger.sql.ledger import initialise, open_ledger
from tests.contract.ledger_stores import FRAME, WEST, Route, claims, stream, table, wal


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
