"""Closed time: what a closed frame lists, and that making one costs what changed rather than what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from replication.core.ids import FileId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.base import FileKind, FileRow, Ledger, Quarantined, ReplayCheckpoint
from replication.worker.files.closed_time import ClosedTime
from tests.contract.ledger_stores import FRAME, HEADER, at, claims, stream, table
from tests.noted import note_closed

FLIGHTS = table()


class Host:
    """A host's files, registrar and control log, of which only what is told is kept."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.told: list[ClosedNotice] = []
        self.now = 0
        none: Any = SimpleNamespace(refresh=lambda: None, poll=lambda: [], run_once=set)
        control: Any = SimpleNamespace(append=lambda payload, *_: self.told.append(ClosedNotice.decode(payload)))
        self.closed_time = ClosedTime(ledger, "h0", none, none, control, lambda: self.now, lambda: 1)

    def wal(self) -> FileId:
        return self.ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file

    def write(self, file: FileId, begin: int, end: int) -> StreamId:
        """Frames with commit times just above now."""
        of = stream(FLIGHTS, file)
        laid = claims(of, begin, end, HEADER + begin * FRAME, commit=self.now + 1)
        self.ledger.registration.register_own(file, HEADER + begin * FRAME, HEADER + end * FRAME, laid)
        return of

    def close(self, now: int) -> dict[StreamId, int]:
        """Raise closed time; what the closed frame lists."""
        self.now = now
        assert self.closed_time.run_once() == now
        return dict(self.told[-1].streams)


@pytest.fixture
def steps() -> Iterator[list[int]]:
    """How many steps SQLite's machine took, in tens, on the connections opened since."""
    count = [0]

    def step() -> int:
        count[0] += 1
        return 0

    def watch(connection: Any, _: object) -> None:
        connection.set_progress_handler(step, 10)

    sa.event.listen(sa.Engine, "connect", watch)
    yield count
    sa.event.remove(sa.Engine, "connect", watch)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with at(f"sqlite:///{tmp_path}/ledger.db") as stores:
        stores.ledger.tables.create(FLIGHTS)
        yield Host(stores.ledger)


def test_the_first_frame_lists_all_streams_and_later_ones_those_that_grew(host: Host) -> None:
    one, two = host.wal(), host.wal()
    streams = [host.write(one, 0, 3), host.write(two, 0, 2)]
    assert host.close(10) == {streams[0]: 2, streams[1]: 1}
    host.write(two, 2, 5)
    assert host.close(20) == {streams[1]: 4}
    assert host.close(30) == {}


def test_the_first_frame_of_a_process_lists_no_stream_of_files_that_every_peer_has_applied_and_that_are_gone(
    host: Host,
) -> None:
    hour = 3_600_000_000
    long_ago, lately, here = (host.wal() for _ in range(3))
    for file, now in ((long_ago, 10), (lately, hour + 10), (here, 2 * hour)):
        host.now = now - 1
        stream_of = host.write(file, 0, 2)
        host.close(now)
        if file != here:
            host.ledger.files.close(file, HEADER + 2 * FRAME)
            host.ledger.replay.checkpoint_applied(ReplayCheckpoint(FLIGHTS.uuid, 1, now, 1, {file: HEADER + 2 * FRAME}))
            host.ledger.files.retire(file, 0)
    note_closed(host.ledger, host.ledger.cluster, host.told[-1])
    again = Host(host.ledger)
    assert again.close(2 * hour + 1) == {stream(FLIGHTS, lately): 1, stream_of: 1}


def test_a_stream_is_listed_to_its_end_though_an_earlier_frame_of_it_was_tried_again_from_a_copy(host: Host) -> None:
    file = host.wal()
    of = host.write(file, 0, 10)
    bad, copies = HEADER + 3 * FRAME, host.ledger.files.allocate("h0", FileKind.LANDING, "/data/landing", "boot").file
    host.ledger.replay.quarantine(Quarantined(file, bad, bad + FRAME, FLIGHTS.uuid, "bad", "/copy", 1), (of, 3))
    host.ledger.replay.requeue({(file, bad): replace(*claims(of, 3, 4, HEADER), commit=1)}, copies)
    assert host.close(10) == {of: 9}


def test_a_stream_whose_file_is_retired_while_the_first_frame_is_made_is_listed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.now = 7_200_000_000
    note_closed(host.ledger, host.ledger.cluster, ClosedNotice(host.now, ()))
    file, time = host.wal(), host.ledger.time
    of, end = host.write(file, 0, 2), HEADER + 2 * FRAME
    host.ledger.files.close(file, end)
    host.ledger.replay.checkpoint_applied(ReplayCheckpoint(FLIGHTS.uuid, 1, 1, 1, {file: end}))
    read = {name: getattr(time, name) for name in ("grown", "grown_and_retired")}

    def then_retired(name: str) -> Callable[..., object]:
        def reading(*given: object) -> object:
            found = read[name](*given)
            host.ledger.files.retire(file, 0)
            return found

        return reading

    for name in read:
        monkeypatch.setattr(time, name, then_retired(name))
    assert host.close(host.now + 10) == {of: 1}


def test_rows_in_place_of_lost_writes_are_told_though_their_commit_time_is_an_earlier_one(host: Host) -> None:
    host.write(host.wal(), 0, 1)
    host.close(100)
    file = host.wal()
    of = stream(FLIGHTS, file)
    host.ledger.registration.register_own(file, HEADER, HEADER + FRAME, claims(of, 0, 1, HEADER, commit=50))
    assert host.close(200) == {of: 0}


def test_while_closed_time_stands_peers_hear_the_same_again(host: Host) -> None:
    host.write(host.wal(), 0, 1)
    host.close(10)
    grown = host.write(host.wal(), 0, 2)
    host.now = 5  # the clock stepped back
    for _ in range(2):
        assert host.closed_time.run_once() == 11, "a commit time was seen"
    assert [(notice.t, dict(notice.streams)) for notice in host.told[1:]] == [(11, {grown: 1}), (11, {})]


def test_an_import_that_begins_while_watermarks_are_read_holds_closed_time_below_its_commit(host: Host) -> None:
    host.ledger.time.register_writer("writer", "h0", 1, "boot", 1)
    seen: list[FileRow] = []
    watermarks: dict[FileId, int] = {}

    def refresh() -> None:
        seen[:] = host.ledger.files.all("h0")

    def watermark(row: FileRow) -> int | None:
        if len(watermarks) == 1:  # the import takes commit time 150, and the next append 200
            watermarks.update({host.wal(): 140, row.file: 200})
        return watermarks.get(row.file)

    def poll() -> list[Any]:
        return [SimpleNamespace(row=row, closed=False) for row in seen]

    files: Any = SimpleNamespace(refresh=refresh, watermark=watermark, poll=poll)
    watermarks[host.wal()] = 100
    refresh()
    nothing: Any = SimpleNamespace(run_once=set, append=lambda *_: None)
    closed_time = ClosedTime(host.ledger, "h0", files, nothing, nothing, lambda: 500, lambda: 1)
    assert closed_time.run_once() == 140
    assert closed_time.run_once() == 140


def test_it_settles_some_frames_after_the_last_row_and_not_while_it_stands(host: Host) -> None:
    file = host.wal()
    host.write(file, 0, 1)
    for now in (10, 20, 30):
        host.close(now)
        assert not host.closed_time.is_quiet
    host.close(40)
    assert host.closed_time.is_quiet
    host.write(file, 1, 2)
    host.close(50)
    assert not host.closed_time.is_quiet
    host.ledger.time.register_writer("w", "h1", 1, "boot", 1)  # holds closed time
    for _ in range(5):
        host.now += 10
        assert host.closed_time.run_once() <= 60
    assert not host.closed_time.is_quiet


def test_what_grew_while_closed_time_stood_is_told_when_it_moves_though_the_file_is_gone(host: Host) -> None:
    kept, gone = host.wal(), host.wal()
    host.write(kept, 0, 1)
    host.close(10)
    host.ledger.time.register_writer("w", "h1", 1, "boot", 1)  # holds closed time
    grown = host.write(gone, 0, 4)
    host.now = 20
    assert host.closed_time.run_once() == 10
    term = host.ledger.terms.raise_to_next()
    host.ledger.files.close(gone, HEADER + 4 * FRAME)
    host.ledger.replay.checkpoint_applied(_applied(gone, HEADER + 4 * FRAME))
    host.ledger.files.retire(gone, term)
    host.ledger.time.remove_writer("w")
    assert host.close(30) == {grown: 3}


def test_a_stream_whose_file_comes_and_goes_between_two_frames_is_listed(host: Host) -> None:
    host.write(host.wal(), 0, 1)
    host.close(10)
    gone = host.wal()
    grown = host.write(gone, 0, 4)
    host.ledger.files.close(gone, HEADER + 4 * FRAME)
    host.ledger.replay.checkpoint_applied(_applied(gone, HEADER + 4 * FRAME))
    host.ledger.files.retire(gone, host.ledger.terms.raise_to_next())
    assert host.close(20) == {grown: 3}
    assert host.close(30) == {}


def test_a_round_costs_what_changed_and_not_what_is_there(steps: list[int], host: Host) -> None:
    def steps_of_a_round(now: int) -> int:
        file = host.wal()
        host.write(file, 0, 1)
        before = steps[0]
        assert list(host.close(now)) == [stream(FLIGHTS, file)]
        return steps[0] - before

    host.close(10)
    few = steps_of_a_round(20)
    for _ in range(150):
        file = host.wal()
        for frame in range(10):
            host.write(file, frame, frame + 1)
    host.close(30)
    many = steps_of_a_round(40)
    assert 0 < many <= 1.5 * few, f"{few} steps of SQLite with two WALs, {many} with 150 more"


def _applied(file: FileId, end: int) -> Any:
    from replication.ledger.base import ReplayCheckpoint

    return ReplayCheckpoint(FLIGHTS.uuid, 1, 1, 1, {file: end})
