"""From rows to acks."""

from __future__ import annotations

import threading
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.definition.text import parse_schema
from replication.core.frame import Codec, encode_envelope, read_end_record
from replication.core.position import Position
from replication.core.rows.batch import LogBatch
from replication.core.rows.convert import upserts_from_rows
from replication.core.rows.mutation import Mutation
from replication.errors import (
    BackpressureError,
    CoordinationError,
    HistoryError,
    NullKeyError,
    RequestError,
    SchemaError,
    StorageError,
    WaitTimeoutError,
)
from replication.writer.group_commit import GroupCommit
from replication.writer.merge import FrameMerge
from replication.writer.pending import AppendStep, FewRows, PendingAppend
from replication.writer.wal.recovery import recover_file
from tests.unit.writer.site import EAST, Site, flushed, some
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def test_an_ack_means_published_and_the_position_says_where(site: Site) -> None:  # 004-26
    with site.writer() as writer:
        first = writer.upsert(site.table, [{"k": 1, "v": b"a"}])
        assert site.logged() == [{"_op": 0, "k": 1, "v": b"a"}]
        second = writer.upsert(site.table, some(2, 100))
        (stream,) = first.sequences
        assert (first.sequences[stream], second.sequences[stream]) == (0, 1)
        assert second.commit > first.commit
        (file,) = second.ends
        assert second.ends[file] == site.published(site.rows()[0])
        assert Position.from_json(second.to_json()) == second
        assert first.join(second) == second


def test_closing_writes_the_end_record_and_leaves_the_ledger(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, some(0, 100))
    writer.upsert(site.other, some(0, 100))
    assert [row.writer for row in site.ledger.time.writers()] == [writer.name]
    writer.close()
    writer.close()
    (row,) = site.rows()
    assert row.closed
    handle = site.files.open(row.path)
    record = read_end_record(handle.read(row.closed_length, handle.size()))
    assert {s.table: sequence for s, (sequence, _) in record.streams.items()} == {
        site.table.uuid: 0,
        site.other.uuid: 0,
    }
    assert {digest for _, digest in record.streams.values()} == {frame.hash for frame, _ in site.frames()}
    assert record.index == (256,)
    assert site.ledger.time.writers() == []
    assert site.files.names("/data/wal") == ["000000000000.len", "000000000000.wal"], "no lock file stays"
    for append in (writer.upsert, writer.upsert_async):
        for rows in ([{"k": 1}], some(0, 1000)):
            with pytest.raises(RequestError, match="closed"):
                append(site.table, rows)


def test_small_appends_that_wait_together_become_one_frame_in_their_order(site: Site) -> None:
    with site.writer() as writer:
        first = site.gate.hold(writer, site.table, -1)
        futures = [writer.upsert_async(site.table, [{"k": k}]) for k in range(50)]
        futures += [writer.upsert_async(site.table, pa.table({"k": [k]})) for k in range(50, 60)]
        site.gate.set()
        assert first.result(20).commit < futures[0].result(20).commit
        assert {tuple(future.result(20).ends.items()) for future in futures} == {
            tuple(futures[0].result(20).ends.items())
        }
        assert site.logged_keys() == [-1, *range(60)]
        assert [frame.header.row_count for frame, _ in site.frames()] == [1, 60]


def test_what_a_future_is_given_is_the_callers_again_at_once(site: Site) -> None:
    rows, keys, frame = [{"k": 1, "v": bytearray(b"a")}], [{"k": 2}], pd.DataFrame({"k": [3]})
    with site.writer() as writer:
        held = site.gate.hold(writer, site.table, 0)
        futures = [writer.upsert_async(site.table, rows), writer.delete_async(site.table, keys)]
        futures.append(writer.upsert_async(site.table, frame))
        rows[0]["v"][0:1] = b"b"
        rows[0]["k"] = 9
        for given in (rows, keys):
            given.clear()
        frame.loc[0, "k"] = 9
        site.gate.set()
        for future in (held, *futures):
            future.result(20)
        assert [(row["_op"], row["k"], row["v"]) for row in site.logged()][1:] == [
            (0, 1, b"a"),
            (1, 2, None),
            (0, 3, None),
        ]


def test_every_kind_of_append_has_a_future_and_all_keep_their_order(site: Site) -> None:
    with site.writer() as writer:
        held = site.gate.hold(writer, site.table, 0)
        writes = [
            writer.upsert_async(site.table, some(1, 100)),
            writer.delete_async(site.table, [{"k": 5}]),
            writer.delete_async(site.table, pa.table({"k": range(200, 300)})),
            writer.upsert_async(site.table, [{"k": 5}]),
        ]
        cells = [
            writer.apply_async(site.cells, Mutation("r").put("f", "q", "v")),
            writer.apply_async(site.cells, (Mutation("r").delete("f", "q") for _ in range(1))),
        ]
        assert not any(future.done() for future in (*writes, *cells))
        site.gate.set()
        held.result(20)
        commits = [future.result(20).commit for future in writes]
        assert commits == sorted(commits)
        assert [(row["_op"], row["k"]) for row in site.logged()][101:] == [
            (1, 5),
            *((1, k) for k in range(200, 300)),
            (0, 5),
        ]
        for future in cells:
            future.result(20)
        assert [row["_op"] for row in site.logged(site.cells)] == [0, 1]
        with pytest.raises(SchemaError, match="not a cell table"):
            writer.apply_async(site.table, Mutation("r").put("f", "q", "v"))
        with pytest.raises(HistoryError):
            writer.apply_async(site.cells, Mutation("r").put("f", "q", "v", timestamp=1))


def test_a_future_cannot_be_cancelled_and_whatever_a_caller_does_to_it_stops_no_other(site: Site) -> None:
    with site.writer() as writer:
        first = site.gate.hold(writer, site.table, -1)
        futures = [writer.upsert_async(site.table, [{"k": k}]) for k in range(3)]
        assert not any(future.cancel() for future in futures)
        futures[0].set_exception(ValueError("mine"))
        site.gate.set()
        for future in (first, *futures[1:]):
            future.result(20)
        writer.upsert(site.table, [{"k": 3}])
        assert site.logged_keys() == [-1, 0, 1, 2, 3]


def test_small_and_large_upserts_and_deletes_of_one_caller_keep_their_order(site: Site) -> None:
    with site.writer() as writer:
        futures = [site.gate.hold(writer, site.table, 0)]
        futures.append(writer.upsert_async(site.table, [{"k": 1}]))
        futures.append(writer.upsert_async(site.table, some(2, 1000)))
        futures.append(writer.upsert_async(site.table, [{"k": 1002}]))
        site.gate.set()
        writer.delete(site.table, [{"k": 1003}])
        futures.append(writer.upsert_async(site.table, [{"k": 1004}]))
        for future in futures:
            future.result(20)
        assert site.logged_keys() == list(range(1005))
        assert [row["_op"] for row in site.logged()] == [0] * 1003 + [1, 0]


def test_upserts_and_deletes_in_one_group_keep_their_order(site: Site) -> None:
    with site.writer() as writer:
        first = site.gate.hold(writer, site.table, 0)
        threads = []
        for step in range(4):
            call = writer.delete if step % 2 else writer.upsert
            threads.append(threading.Thread(target=call, args=(site.table, [{"k": step}])))
            threads[-1].start()
            wait_until(lambda wanted=step + 1: len(writer._commit._queue) == wanted)  # type: ignore[misc]
        site.gate.set()
        first.result(20)
        for thread in threads:
            thread.join(20)
        assert [(row["_op"], row["k"]) for row in site.logged()] == [(0, 0), (0, 0), (1, 1), (0, 2), (1, 3)]
        assert len(site.frames()) == 2


def test_a_bad_append_fails_alone(site: Site) -> None:
    with site.writer() as writer:
        held = site.gate.hold(writer, site.table, 0)
        good = [writer.upsert_async(site.table, [{"k": 1}]), writer.upsert_async(site.table, [{"k": 2}])]
        null = writer.upsert_async(site.table, [{"k": None}])
        unknown = writer.upsert_async(site.table, [{"k": 3, "w": 1}])
        misfit = writer.upsert_async(site.table, [{"k": 4, "v": 5}])
        odd = writer.delete_async(site.table, [{5: 5}])
        site.gate.set()
        for future in (held, *good):
            future.result(20)
        assert isinstance(null.exception(20), NullKeyError)
        assert isinstance(unknown.exception(20), SchemaError)
        assert isinstance(misfit.exception(20), SchemaError)
        assert isinstance(odd.exception(20), SchemaError)
        assert site.logged_keys() == [0, 1, 2]


def test_rows_that_nobody_foresaw_fail_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(rows: list[dict[str, int]], spec: TableSpec) -> list[LogBatch]:
        if any(row["k"] == 2 for row in rows):
            raise TypeError("nobody thought of this")
        return upserts_from_rows(rows, spec)

    monkeypatch.setattr("replication.writer.merge.upserts_from_rows", convert)
    with site.writer() as writer:
        site.gate.hold(writer, site.table, 0)
        one, two, three = (writer.upsert_async(site.table, [{"k": k}]) for k in (1, 2, 3))
        site.gate.set()
        one.result(20)
        three.result(20)
        assert "nobody thought of this" in str(two.exception(20))
        assert site.logged_keys() == [0, 1, 3]


@pytest.fixture
def nested(site: Site) -> TableSpec:
    spec = typed_table("t.nested", parse_schema("k bigint, v list<string>"), ["k"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    return spec


def test_few_rows_with_much_in_a_list_become_frames_that_can_be_written_and_harm_no_other(
    site: Site, nested: TableSpec
) -> None:
    steps = [
        AppendStep(PendingAppend(), 9, FewRows(nested, [{"k": k, "v": ["x" * (31 << 20)]}], False), is_last=True)
        for k in range(3)
    ]
    for merged in FrameMerge.frames(steps, Codec.NONE):
        assert encode_envelope((EAST,), merged.encoded.size + 1000)
    with site.writer(codec="none") as writer:
        site.gate.hold(writer, site.table, 0)
        large = [writer.upsert_async(nested, [{"k": k, "v": ["x" * (20 << 20)]}]) for k in range(2)]
        other = writer.upsert_async(site.other, [{"k": 1}])
        with pytest.raises(SchemaError, match="one row has"):
            writer.upsert_async(nested, [{"k": 9, "v": ["x" * (34 << 20)]}])
        site.gate.set()
        for future in (*large, other):
            future.result(20)
        assert [row["k"] for row in site.logged(nested)] == [0, 1] and site.logged(site.other)


@pytest.mark.parametrize("value", [["x" * 100_000], bytearray(100_000), memoryview(bytes(100_000))])
def test_the_buffer_is_bounded_whatever_the_bytes_are_given_as(site: Site, nested: TableSpec, value: object) -> None:
    spec = nested if isinstance(value, list) else site.other
    with site.writer(buffer_bytes_max=50_000, append_timeout_s=0.1, codec="none") as writer:
        held = site.gate.hold(writer, site.table, 0)
        with pytest.raises(BackpressureError):
            writer.upsert_async(spec, [{"k": 1, "v": value}])
        site.gate.set()
        held.result(20)
        writer.upsert_async(spec, [{"k": 1, "v": value}]).result(20)


@pytest.mark.parametrize("rows", [[{"k": 1}], pa.table({"k": [1]})])
def test_the_buffer_counts_what_small_appends_take_in_memory(site: Site, rows: object) -> None:
    with site.writer(buffer_bytes_max=100_000, append_timeout_s=0.1) as writer:
        site.gate.hold(writer, site.table, 0)
        futures = []
        with pytest.raises(BackpressureError):
            for _ in range(100):
                futures.append(writer.upsert_async(site.table, rows))
        assert len(futures) > 10
        site.gate.set()
        assert all(future.result(20).ends for future in futures)


def failing(*_: object) -> None:
    raise RuntimeError("nobody thought of this")


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_commit_thread_that_ends_says_so_to_who_waits_and_to_who_appends_later(
    site: Site, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    with site.writer() as writer:
        assert writer._commit is not None
        series = writer._commit._series
        acked = site.gate.hold(writer, site.table, 0)
        for name in ("write", "tick", "poison_current"):
            monkeypatch.setattr(series, name, failing)
        futures = [writer.upsert_async(site.table, some(10 * n, 10)) for n in range(waiting)]
        site.gate.set()
        assert acked.result(20).ends
        for future in futures:
            assert isinstance(error := future.exception(20), StorageError) and "nobody thought of this" in error.what
        writer._commit._thread.join(20)
        with pytest.raises(StorageError, match="nobody thought of this"):
            writer.upsert(site.table, [{"k": 1}])
        with pytest.raises(StorageError, match="nobody thought of this"):
            writer.flush()
        assert len(writer._commit._queue) == 0


def test_a_commit_thread_that_ends_lets_go_of_its_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_close(name: str) -> None:
        if name == "files.close":
            raise CoordinationError("out of reach")

    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        (row,) = site.rows()
        site.ledger.fault = no_close
        for name in ("write", "tick"):
            monkeypatch.setattr(writer._commit._series, name, failing)
        monkeypatch.setattr(GroupCommit, "_write", failing)
        with pytest.raises(StorageError):
            writer.upsert(site.table, [{"k": 2}])
        writer._commit._thread.join(20)
        site.ledger.fault = None
        published = site.published(row)
        recover_file(site.ledger, site.files, row, site.boot)
        assert (site.rows()[0].closed_length, site.logged_keys()) == (published, [1])


def test_an_append_larger_than_a_frame_or_the_buffer_gets_through(site: Site) -> None:
    with site.writer(buffer_bytes_max=100_000, codec="none") as writer:
        position = writer.upsert(site.table, some(0, 150_000))
        assert site.logged_keys() == list(range(150_000))
        (sequence,) = position.sequences.values()
        assert sequence == len(site.frames()) - 1 >= 2


def test_an_append_of_nothing_is_acked(site: Site) -> None:
    with site.writer() as writer:
        for rows in ([], pa.table({"k": pa.array([], pa.int64())})):
            position = writer.upsert(site.table, rows)
            assert not position.ends
        assert writer.upsert_async(site.table, []).result(20).cluster == EAST
        assert site.frames() == [] or all(frame.header.row_count == 0 for frame, _ in site.frames())


def test_a_stuck_disk_blocks_then_refuses_and_writes_nothing_of_what_it_refused(site: Site) -> None:
    with site.writer(buffer_bytes_max=20_000, append_timeout_s=0.3, codec="none") as writer:
        accepted = [site.gate.hold(writer, site.table, -3)]
        with pytest.raises(BackpressureError):
            for n in range(100):
                accepted.append(writer.upsert_async(site.table, some(n * 500, 500, 10)))
        with pytest.raises(WaitTimeoutError):
            writer.upsert(site.table, [{"k": -1}])
        site.gate.set()
        for future in accepted:
            future.result(20)
        assert len(accepted) < 10, "the buffer is bounded"
        flushed(writer)
        assert site.logged_keys() == [-3, *range((len(accepted) - 1) * 500), -1], "what timed out waiting was queued"


@pytest.mark.parametrize("delete", [False, True])
def test_rows_that_change_after_a_time_out_are_written_as_they_were_appended(site: Site, delete: bool) -> None:
    with site.writer(append_timeout_s=0.3) as writer:
        site.gate.hold(writer, site.table, 0)
        row: dict[str, object] = {"k": 1} if delete else {"k": 1, "v": b"one"}
        rows = [row]
        with pytest.raises(WaitTimeoutError):
            (writer.delete if delete else writer.upsert)(site.table, rows)
        row["k"] = 2
        rows.append({"k": 3})
        site.gate.set()
        flushed(writer)
        assert [(row["k"], row["v"]) for row in site.logged()] == [(0, None), (1, None if delete else b"one")]


def test_flush_waits_for_everything_before(site: Site) -> None:
    with site.writer() as writer:
        futures = [writer.upsert_async(site.table, some(n * 100, 100)) for n in range(20)]
        writer.flush()
        assert all(future.done() for future in futures)


def test_threads_append_to_several_tables_at_once(site: Site) -> None:
    with site.writer() as writer:

        def append(thread: int) -> None:
            for n in range(40):
                spec = site.table if (thread + n) % 2 else site.other
                writer.upsert(spec, [{"k": thread * 1000 + n}])

        threads = [threading.Thread(target=append, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        everything = sorted(row["k"] for spec in (site.table, site.other) for row in site.logged(spec))  # type: ignore[type-var]
        assert everything == sorted(thread * 1000 + n for thread in range(8) for n in range(40))
        for thread in range(8):
            mine = [k for k in site.logged_keys() if k // 1000 == thread]  # type: ignore[operator]
            assert mine == sorted(mine)  # type: ignore[type-var]
