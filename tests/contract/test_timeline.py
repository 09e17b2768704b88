"""The contract of a timeline, over records in memory, in a local folder and in an object store."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from replication.core.timeline.instants import Action, Changes, FileVersion, InstantState
from replication.errors import ConfigError, FormatError, RequestError, StorageError
from replication.files.store import RemoteStore
from replication.timeline.base import Records
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import ArchivedRecords, open_records
from tests.fakes.timeline import MemoryRecords

Open = Callable[[], Records]
OUT = "out"


def added(*paths: str, replaces: tuple[str, ...] = (), removes: tuple[str, ...] = ()) -> Changes:
    return Changes(
        tuple(FileVersion("", path, 1) for path in paths),
        tuple(("", path) for path in replaces),
        tuple(("", path) for path in removes),
    )


@pytest.fixture(params=["memory", "folder", "object store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """How a process opens the records of one timeline."""
    if request.param == "memory":
        records = MemoryRecords()
        yield lambda: records
    elif request.param == "folder":
        yield lambda: open_records(f"file://{tmp_path}/timeline")
    else:
        yield lambda: open_records(f"memory://timeline-{tmp_path.name}")


def test_an_instant_goes_from_requested_to_inflight_to_completed(opened: Open) -> None:  # 003-4
    timeline = RecordedTimeline(opened())
    asked = timeline.request(Action.COPY, OUT, root="file:///out", key="monday")
    assert timeline.request(Action.COPY, OUT, key="monday") == asked, "asked again after a crash: the same"
    timeline.start(asked, added("a"))
    (pending,) = timeline.state().pending.values()
    assert (pending.state, [v.path for v in pending.changes.adds]) == (InstantState.INFLIGHT, ["a"])
    done = timeline.complete(asked, added("a"))
    assert timeline.complete(asked, added("a")) == done, "completed again after a crash: the same"
    state = RecordedTimeline(opened()).state()
    assert (state.number, state.instant, dict(state.pending)) == (3, done.completed, {})
    assert state.roots == {OUT: "file:///out"}


def test_an_instant_that_is_asked_for_again_may_be_completed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = RecordedTimeline(MemoryRecords())
    asked = timeline.request(Action.COPY, OUT, key="monday")
    write = timeline._write

    def complete_after(ask: Any) -> Any:
        monkeypatch.setattr(timeline, "_write", write)
        found = write(ask)
        timeline.complete(asked, added("a"))  # as another thread does
        return found

    monkeypatch.setattr(timeline, "_write", complete_after)
    assert timeline.request(Action.COPY, OUT, key="monday") == asked


def test_times_differ_and_grow_whatever_the_clocks_say(opened: Open) -> None:
    ahead, behind = (RecordedTimeline(opened(), clock=lambda now=now: now) for now in (1000, 5))
    done = [timeline.record(Action.COPY, OUT, added("a")) for timeline in (ahead, behind, ahead, behind)]
    assert [each.completed for each in done] == [1000, 1001, 1002, 1003]


def test_processes_that_write_at_once_agree_on_one_order(opened: Open) -> None:
    def write(thread: int) -> None:
        timeline = RecordedTimeline(opened())
        for count in range(10):
            timeline.record(Action.COPY, OUT, added(f"{thread}-{count}"))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(RecordedTimeline(opened()).following(0))
    assert [event.number for event in events] == list(range(1, 41))
    times = [event.instant.completed for event in events]
    assert times == sorted(set(times))


def test_a_timeline_that_read_a_state_before_reads_only_what_is_new() -> None:  # 003-14
    records = MemoryRecords()
    timeline = RecordedTimeline(records)
    for count in range(20):
        timeline.record(Action.COPY, OUT, added(str(count)))
    other = RecordedTimeline(records)
    other.state()
    timeline.record(Action.COPY, OUT, added("new"))
    records.reads = 0
    state = other.state()
    assert (state.number, records.reads) == (21, 2)
    assert state.hash == RecordedTimeline(records).state().hash, "the same hash, however it was reached"


def test_a_timeline_of_another_history_is_refused() -> None:
    records, other = MemoryRecords(), MemoryRecords()
    for each, path in ((records, "a"), (other, "b")):
        timeline = RecordedTimeline(each)
        timeline.record(Action.COPY, OUT, added(path))
    RecordedTimeline(records).record(Action.COPY, OUT, added("c"))
    other.contents = records.contents
    with pytest.raises(FormatError, match="does not follow"):
        timeline.state()


def test_an_undone_pending_instant_cannot_be_completed(opened: Open) -> None:
    timeline = RecordedTimeline(opened())
    asked = timeline.start(timeline.request(Action.COPY, OUT), added("a", "b"))
    undo = timeline.undo(OUT, [asked.time])
    assert set(undo.changes.removes) == {("", "a"), ("", "b")}, "its files are to be deleted"
    timeline.complete(undo, undo.changes)
    assert not timeline.state().pending
    with pytest.raises(RequestError, match="not pending"):
        timeline.complete(asked, added("a", "b"))


def test_undo_names_the_files_to_delete_and_those_that_are_seen_again(opened: Open) -> None:
    timeline = RecordedTimeline(opened())
    timeline.record(Action.COPY, OUT, added("a1", "b1"))
    second = timeline.record(Action.COPY, OUT, added("a2", replaces=("a1",)))
    third = timeline.record(Action.COPY, OUT, added("a3", replaces=("a2",)))
    timeline.record(Action.COPY, "other", added("a3"))
    undo = timeline.undo(OUT, [second.completed, third.completed], action=Action.RESTORE)
    assert set(undo.changes.removes) == {("", "a2"), ("", "a3")}
    assert undo.changes.restores == (("", "a1"),)
    assert timeline.undo(OUT, [second.completed, third.completed], action=Action.RESTORE) == undo, "planned once"


def test_an_instant_whose_replaced_files_are_gone_cannot_be_undone(opened: Open) -> None:
    timeline = RecordedTimeline(opened())
    timeline.record(Action.COPY, OUT, added("a1"))
    second = timeline.record(Action.COPY, OUT, added("a2", replaces=("a1",)))
    timeline.record(Action.CLEAN, OUT, Changes(removes=(("", "a1"),), retained=second.completed))
    with pytest.raises(RequestError, match="a1, which it replaced, is gone"):
        timeline.undo(OUT, [second.completed])
    assert not timeline.state().pending, "the refused undo is not left pending"
    over = timeline.record(Action.COPY, OUT, added("a2", removes=("a2",)))
    with pytest.raises(RequestError, match="gone"):
        timeline.undo(OUT, [over.completed])
    count = timeline.state().number
    for unknown, said in (([7], "no instant 7"), ([8, 7], "no instants 7, 8")):
        with pytest.raises(RequestError, match=f"{said}[.]"):
            timeline.undo(OUT, unknown)
    assert timeline.state().number == count, "a refused undo is no event"


def test_undo_deletes_no_file_that_a_later_instant_wrote_at_the_same_path(opened: Open) -> None:
    timeline = RecordedTimeline(opened())
    first = timeline.record(Action.COPY, OUT, added("a", "b"))
    timeline.record(Action.COPY, OUT, added("a", removes=("a",)))
    assert timeline.undo(OUT, [first.completed]).changes.removes == (("", "b"),)


def test_undo_is_planned_anew_when_an_instant_is_recorded_meanwhile() -> None:
    records = MemoryRecords()
    timeline, other = RecordedTimeline(records), RecordedTimeline(records)
    first = timeline.record(Action.COPY, OUT, added("a", "b"))

    def write_over(number: int) -> None:
        if number == 3:  # the event that would begin the undo
            records.before = lambda number: None
            other.record(Action.COPY, OUT, added("a", removes=("a",)))

    records.before = write_over
    assert timeline.undo(OUT, [first.completed]).changes.removes == (("", "b"),), "a is of another instant now"


def test_a_write_whose_answer_is_lost_counts_once() -> None:
    records = MemoryRecords()
    timeline = RecordedTimeline(records)
    asked = timeline.request(Action.COPY, OUT)

    def lose(number: int) -> None:
        raise StorageError("the answer was lost")

    records.after = lose
    with pytest.raises(StorageError):
        timeline.complete(asked, added("a"))
    records.after = lambda number: None
    done = timeline.complete(asked, added("a"))
    assert [event.instant for event in timeline.following(1)] == [done]


def test_a_write_that_the_driver_tries_again_after_a_lost_answer_counts_once() -> None:
    class Retrying(MemoryRecords):
        def create(self, number: int, content: bytes) -> bool:
            return super().create(number, content) and super().create(number, content)

    timeline = RecordedTimeline(Retrying())
    done = timeline.record(Action.COPY, OUT, added("a"))
    assert [event.instant for event in timeline.following(0)] == [done]


def test_a_store_that_may_replace_what_another_wrote_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ftp may replace.*\[timeline\] url"):
        open_records("ftp://host/timeline")


@pytest.mark.parametrize("url", ["s3://bucket/a::B", "memory://a::B"])
def test_an_address_that_would_be_cut_is_refused_or_clusters_would_share_a_timeline(url: str) -> None:
    with pytest.raises(ConfigError, match=r"has :: in it.*\[timeline\] url"):
        open_records(url)


@pytest.mark.parametrize("rest", [b"", b"\xff"])
def test_damage_of_a_record_is_an_error_that_names_the_file(tmp_path: Path, rest: bytes) -> None:
    timeline = RecordedTimeline(open_records(str(tmp_path)))
    timeline.record(Action.COPY, OUT, added("a"))
    (file,) = tmp_path.rglob("*.json.gz")
    file.write_bytes(file.read_bytes()[:10] + rest)
    with pytest.raises(StorageError, match=file.name):
        RecordedTimeline(open_records(str(tmp_path))).state()


def test_archived_events_are_read_as_before_and_a_process_that_starts_later_reads_only_the_rest(opened: Open) -> None:
    timeline, known_before = RecordedTimeline(opened()), RecordedTimeline(opened())
    for count in range(250):
        timeline.record(Action.COPY, OUT, added(str(count)))
    asked = timeline.request(Action.COPY, OUT)
    assert timeline.archive(keep=40) == 200
    assert timeline.archive(keep=40) == 200, "again: nothing is left to do"
    for each in (timeline, known_before, RecordedTimeline(opened())):
        assert [event.number for event in each.following(0)] == list(range(1, 252))
        assert [event.number for event in each.following(197)][:5] == [198, 199, 200, 201, 202]
        assert each.state() == timeline.state()
        assert next(iter(each.newest_first())).instant == asked
    late = RecordedTimeline(opened())
    reads = count_reads(late)
    assert asked.time in late.state().pending
    assert reads[0] == 52, "the 51 events after the archived ones, and that there is no more"


def count_reads(timeline: RecordedTimeline) -> list[int]:
    counted, read = [0], timeline._records.read

    def counting(number: int) -> bytes | None:
        counted[0] += 1
        return read(number)

    timeline._records.read = counting  # type: ignore[method-assign]
    return counted


@pytest.mark.parametrize("is_local", [True, False])
def test_a_process_that_has_not_noticed_the_archive_writes_no_archived_number_again(
    is_local: bool, tmp_path: Path
) -> None:
    url = str(tmp_path / "timeline") if is_local else f"memory://archived-{tmp_path.name}"
    stale, other = RecordedTimeline(open_records(url)), RecordedTimeline(open_records(url))
    stale.record(Action.COPY, OUT, added("first"))
    for count in range(300):
        other.record(Action.COPY, OUT, added(str(count)))
    assert other.archive(keep=1) == 300
    records = open_records(url)
    assert records.create(2, b"{}") is False
    assert stale.record(Action.COPY, OUT, added("last")).completed == other.state().instant
    state = RecordedTimeline(open_records(url)).state()
    assert state.number == 302
    if is_local:
        assert len(list(tmp_path.glob("timeline/0*/*.json.gz"))) == 2, "packed objects are gone"


def test_an_archiver_that_died_before_it_removed_anything_is_finished_by_the_next(tmp_path: Path) -> None:
    timeline = RecordedTimeline(open_records(str(tmp_path)))
    for count in range(210):
        timeline.record(Action.COPY, OUT, added(str(count)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteStore, "remove", lambda *_: (_ for _ in ()).throw(StorageError("killed")))
        with pytest.raises(StorageError):
            timeline.archive(keep=1)
    assert RecordedTimeline(open_records(str(tmp_path))).archive(keep=1) == 200
    for count in range(100):
        timeline.record(Action.COPY, OUT, added(f"late{count}"))
    assert RecordedTimeline(open_records(str(tmp_path))).archive(keep=1) == 300
    assert [event.number for event in RecordedTimeline(open_records(str(tmp_path))).following(0)] == list(range(1, 311))
    left = sorted(int(file.name.partition(".")[0]) for file in tmp_path.glob("0*/*.json.gz"))
    assert [number for number in left if number > 200] == list(range(301, 311))


def test_an_archived_event_is_the_one_that_was_asked_for_whatever_other_threads_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = RecordedTimeline(open_records(str(tmp_path)))
    for count in range(201):
        timeline.record(Action.COPY, OUT, added(str(count)))
    timeline.archive(keep=1)
    load = ArchivedRecords._load

    def load_another_after(self: ArchivedRecords, first: int) -> object:
        found = load(self, first)
        if first == 101:
            load(self, 1)  # as another thread does, which looks how much is archived
        return found

    monkeypatch.setattr(ArchivedRecords, "_load", load_another_after)
    events = list(RecordedTimeline(open_records(str(tmp_path))).following(149))
    assert [version.path for version in events[0].instant.changes.adds] == ["149"]


def test_threads_that_notice_a_pack_at_once_count_it_once(tmp_path: Path) -> None:
    written = RecordedTimeline(open_records(str(tmp_path)))
    for count in range(150):
        written.record(Action.COPY, OUT, added(str(count)))
    store, both = RemoteStore(str(tmp_path)), threading.Barrier(2)
    records = ArchivedRecords(store)
    assert records.read(50) is not None and written.archive(keep=1) == 100
    load = records._load

    def load_together(first: int) -> list[str] | None:
        found = load(first)
        if first == 1 and threading.current_thread() in threads:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        return found

    records._load = load_together  # type: ignore[method-assign]
    threads = [threading.Thread(target=records.read, args=(60,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert records.read(150) == gzip.decompress(store.load("000000000/000000000150.json.gz") or b"")
