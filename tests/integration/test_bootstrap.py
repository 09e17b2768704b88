"""Rows from before a table was sent: all at the peer, each once, whoever dies; warehouses are in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from peer.tables.maintenance import HOLD, tidy
from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId
from replication.core.routes.bootstrap import Coverage
from replication.errors import StorageError
from replication.ledger.base import FileKind, Phase, ReplayCheckpoint
from replication.tables.layout import CHANGES, layouts
from tests.bootstrap_pair import Pair, bootstraps, ids
from tests.fakes.tables import MemoryTables
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.waiting import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_rows_and_deletes_from_before_arrive_with_their_versions(pair: Pair) -> None:
    pair.write(0, 100)
    pair.east.fold(pair.spec)
    pair.wal.delete(pair.spec, [{"id": 5}])
    pair.write(50, 60)
    pair.begin()
    pair.connect()
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec) == [i for i in range(110) if i != 5]
    before = len(pair.west.versions(pair.spec))
    pair.write(200, 10)
    pair.wal.append(pair.spec, rows(5, 1))
    pair.east.register()
    pair.level()
    assert len(pair.west.versions(pair.spec)) == before + 11
    assert set(pair.west.versions(pair.spec)) <= set(pair.east.versions(pair.spec))


def test_a_coverage_that_one_frame_cannot_hold_comes_in_several(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Coverage.parts
    monkeypatch.setattr(Coverage, "parts", lambda coverage: parts(coverage, 1))
    for at in range(3):
        pair.wal = Wal(pair.east, f"more-{at}")
        pair.write(at * 10, 10)
    pair.begin()
    pair.connect()
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec) == list(range(30))
    found = pair.west.ledger.landing.coverage(pair.spec.uuid)
    assert pair.east.ledger.landing.coverage(pair.spec.uuid).items() <= found.items()
    (file,) = (row.file for row in bootstraps(pair.east))
    assert found[StreamId(file, pair.spec.uuid, "default")].prefix(0) >= 4  # rows, and one for each WAL


def test_a_disk_that_is_nearly_full_puts_a_bootstrap_off_and_says_why(pair: Pair) -> None:
    pair.write(0, 100)
    pair.begin()
    pair.connect()
    pair.east.keeper.keep_free_bytes = 1 << 60
    pair.east.keeper.run_once()
    assert "there is no space here for the copy of its rows" in pair.east.keeper.state[f"west {pair.spec.name}"]
    assert bootstraps(pair.east) == []
    pair.east.restart()
    pair.finish()
    pair.level()


def test_a_table_that_cannot_be_read_is_tried_more_and_more_rarely_until_it_can(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(0, 10)
    pair.begin()
    clock = 0.0
    pair.east.keeper.monotonic = lambda: clock

    def fail(*_: object, **__: object) -> None:
        raise StorageError("a file of it is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(pair.east.tables, "attach", fail)
        for turn in range(200):
            clock = turn / 5
            pair.east.keeper.run_once()
            assert "damaged" in pair.east.keeper.state[f"west {pair.spec.name}"]
            tries = bootstraps(pair.east)[-1].file.number - pair.wal.file.number
            assert tries <= 3 or clock > 2.0
        assert 3 < tries < 8
    clock += 30.0
    pair.connect()
    pair.finish()
    pair.level()


def test_without_a_bootstrap_the_rows_of_a_gap_stay_absent_and_with_one_they_come(pair: Pair) -> None:  # scenario 5
    pair.east.send_to(pair.west, pair.spec)
    pair.connect()
    pair.write(0, 10)
    wait_until(
        lambda: pair.west.replay() and pair.west.tables.exists(pair.spec.name) and len(ids(pair.west, pair.spec))
    )
    pair.stack.close()
    pair.east.ledger.rules.disable("west", pair.spec.uuid, ["default"], pair.east.term)
    pair.write(10, 10)
    pair.east.send_to(pair.west, pair.spec)
    pair.write(20, 10)
    pair.connect()
    wait_until(lambda: pair.west.replay() and len(ids(pair.west, pair.spec)) == 20)
    assert ids(pair.west, pair.spec) == [*range(10), *range(20, 30)]
    pair.east.ledger.rules.begin_bootstrap("west", pair.spec.uuid, pair.east.term)
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec) == list(range(30))
    assert pair.west.versions(pair.spec) == pair.east.versions(pair.spec)


def test_a_bootstrap_that_brings_nothing_new_leaves_no_number_that_no_row_has(pair: Pair) -> None:
    pair.write(0, 10)
    pair.begin()
    pair.connect()
    pair.finish()
    pair.level()
    pair.east.ledger.rules.begin_bootstrap("west", pair.spec.uuid, pair.east.term)
    pair.finish()
    name = pair.spec.name + CHANGES
    pair.west.tables.compact(name, 1)
    pair.west.tables.expire(name, 10**16, 1)
    pair.west.restart()
    pair.write(10, 10)
    pair.level()
    assert ids(pair.west, pair.spec) == list(range(20)) and not pair.west.replay().held


def test_what_is_written_meanwhile_comes_once_by_whatever_way(pair: Pair) -> None:
    pair.write(0, 50)
    pair.begin()
    pair.connect()
    pair.write(40, 20)  # in the snapshot, and shipped as frames
    wait_until(lambda: pair.west.ledger.landing.coverage(pair.spec.uuid))
    pair.east.keeper.run_once()
    pair.write(60, 20)
    pair.west.replay()
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec) == list(range(80))
    assert len(pair.west.versions(pair.spec)) <= 90


def test_until_a_bootstrap_is_complete_replicated_time_stands_and_says_why(pair: Pair) -> None:
    def at_west() -> tuple[int, str]:
        found = pair.west.ledger.time.replicated(pair.spec.uuid).get(pair.east.cluster)
        return (found.t, found.held_by) if found else (0, "")

    pair.write(0, 10)
    pair.begin()
    pair.connect()
    wait_until(lambda: "is being bootstrapped from east" in at_west()[1])
    assert at_west()[0] == 0
    pair.finish()
    wait_until(lambda: pair.west.replay() and at_west()[0] > 0)


class Killed(Exception):
    """The process is gone at this very place."""


def test_an_export_that_was_killed_is_begun_anew(pair: Pair) -> None:
    pair.write(0, 10)
    pair.begin()
    finish = pair.east.ledger.bootstraps.finish_file

    class KilledExport(BaseException):
        """The keeper goes on after an ``Exception``."""

    def die(*_: object) -> None:
        raise KilledExport

    pair.east.ledger.bootstraps.finish_file = die  # type: ignore[method-assign]
    with pytest.raises(KilledExport):
        pair.east.keeper.run_once()
    pair.east.ledger.bootstraps.finish_file = finish  # type: ignore[method-assign]
    (left,) = bootstraps(pair.east)
    assert not left.closed
    pair.east.restart()
    pair.connect()
    pair.finish()
    pair.level()
    files = [row.file for row in bootstraps(pair.east)]
    assert left.file not in files


def test_snapshots_that_a_killed_export_held_are_let_go_once_it_is_begun_anew(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(0, 10)
    pair.east.fold(pair.spec)
    pair.begin()
    east = pair.east

    class KilledExport(BaseException):
        """The keeper goes on after an ``Exception``."""

    def die(*_: object) -> None:
        raise KilledExport

    def held() -> list[str]:
        tidy(east.tables, east.ledger, pair.spec, time.time_ns() // 1000)
        return [tag for layout in layouts(pair.spec) for tag in east.tables.history(layout.name).tags if HOLD in tag]

    with monkeypatch.context() as patch, pytest.raises(KilledExport):
        patch.setattr(east.tables, "untag", die)
        east.keeper.run_once()
    assert held(), "they go before anybody knows that the export was killed"
    east.restart()
    east.keeper.run_once()
    assert not held()


def test_an_export_begun_on_a_host_that_died_is_written_by_the_one_that_replays_now(pair: Pair) -> None:
    pair.write(0, 10)
    pair.begin()
    east = pair.east
    with east.host("h7") as other:
        (wanted,) = other.ledger.bootstraps.wanted()
        begun = other.ledger.bootstraps.begin_file(wanted, "h7", str(other.config.wal_dir), other.boot)
    assert begun.host == "h7"
    pair.connect()
    pair.finish()
    pair.level()
    assert east.ledger.files.get(begun.file) is None
    assert not [row for row in east.ledger.files.all() if row.host == "h7"]


@pytest.mark.parametrize("step", ["append", "appended", "adopted", "marked"])
def test_a_peer_killed_at_any_step_takes_the_rows_once(pair: Pair, step: str) -> None:
    pair.write(0, 10)
    pair.wal.delete(pair.spec, [{"id": 3}])
    pair.east.register()
    pair.east.replay()
    pair.begin()
    pair.connect()
    pair.east.keeper.run_once()
    west, adopted, killed = pair.west, list[str](), list[str]()
    wait_until(lambda: any(row.closed for row in bootstraps(west)))
    adopt, mark = west.ledger.bootstraps.adopt, west.ledger.replay.checkpoint_applied

    def die(at: str) -> None:
        if step == at and adopted and not killed:
            killed.append(at)
            raise Killed

    def adopts(parts: Sequence[tuple[FileId, int, int, Coverage]]) -> Mapping[StreamId, Ranges]:
        made = adopt(parts)
        adopted.append(str(parts))
        die("adopted")
        return made

    def marks(given: ReplayCheckpoint) -> None:
        mark(given)
        if any(row.file in given.positions for row in bootstraps(west)):
            die("marked")

    assert isinstance(west.tables, MemoryTables)
    west.tables.fail = lambda at: die(at.partition(" ")[0])
    west.ledger.bootstraps.adopt = adopts  # type: ignore[method-assign]
    west.ledger.replay.checkpoint_applied = marks  # type: ignore[method-assign]
    wait_until(lambda: west.replayer.round() and killed, what=f"the kill when {step}")
    west.restart()
    pair.finish()
    pair.level()
    assert ids(west, pair.spec) == [i for i in range(10) if i != 3]


def test_a_source_killed_before_rules_go_live_ends_the_bootstrap_when_it_is_back(pair: Pair) -> None:
    pair.write(0, 10)
    pair.begin()
    pair.connect()
    pair.east.keeper.run_once()
    (file,) = [row.file for row in bootstraps(pair.east)]
    wait_until(lambda: pair.west.replay() and pair.east.ledger.bootstraps.is_applied(file))
    assert pair.east.phases("west") == [Phase.BOOTSTRAPPING]
    pair.east.restart()
    pair.east.keeper.run_once()
    assert pair.east.phases("west") == [Phase.LIVE]
    assert [row.file for row in pair.east.ledger.files.retirable("h0") if row.kind is FileKind.BOOTSTRAP] == [file]


def test_a_bootstrap_waits_for_the_own_replay_and_delays_no_other_table(pair: Pair) -> None:
    other = table("ops.other")
    pair.east.ledger.tables.create(other)
    pair.east.send_to(pair.west, other)
    pair.wal.append(pair.spec, rows(0, 10))
    pair.east.register()
    pair.begin()
    pair.east.keeper.run_once()
    assert "own replay has not applied" in pair.east.keeper.state["west ops.flights"]
    pair.connect()
    pair.wal.append(other, rows(0, 5))
    wait_until(lambda: pair.west.replay() and pair.west.tables.exists(other.name) and len(ids(pair.west, other)) == 5)
    assert Phase.BOOTSTRAPPING in pair.east.phases("west")
    pair.east.replay()
    pair.finish()
    pair.level()


def test_a_bootstrap_that_is_complete_ends_before_another_table_is_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted((pair.spec, table("ops.other")), key=lambda spec: str(spec.uuid))
    for spec in (first, second):
        if spec != pair.spec:
            pair.east.ledger.tables.create(spec)
        pair.spec = spec
        pair.write(0, 10)
    pair.begin()
    pair.connect()
    pair.east.keeper.run_once()
    (file,) = [row.file for row in bootstraps(pair.east)]
    wait_until(lambda: pair.west.replay() and pair.east.ledger.bootstraps.is_applied(file))
    pair.spec = first
    pair.begin()
    attach, phases = pair.east.tables.attach, list[set[Phase]]()

    def attaches(*args: Any, **more: Any) -> None:
        phases.append({rule.phase for rule in pair.east.ledger.rules.all() if rule.table == second.uuid})
        attach(*args, **more)

    monkeypatch.setattr(pair.east.tables, "attach", attaches)
    pair.east.keeper.run_once()
    assert phases and phases[0] == {Phase.LIVE}


def test_a_bootstrap_goes_on_through_a_chain(pair: Pair, tmp_path: Path) -> None:
    south = TableSite(tmp_path, "south")
    pair.west.ledger.tables.create(pair.spec)
    pair.west.send_to(south, pair.spec)
    pair.write(0, 20)
    pair.begin()
    pair.connect()
    with south.receiver() as receiver, pair.west.worker():
        pair.west.assign(south.cluster, receiver.port)
        pair.finish()
        pair.write(20, 5)
        pair.level()

        def there() -> bool:
            south.replay()
            return south.tables.exists(pair.spec.name) and len(ids(south, pair.spec)) == 25

        wait_until(there, what="the rows at south")
        assert south.versions(pair.spec) == pair.west.versions(pair.spec)
    south.close()
