"""Repeating a batch adds what is missing and nothing else, whoever repeats it and whenever."""

from __future__ import annotations

import itertools
import threading
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.text import parse_schema
from replication.core.frame import Codec
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.rows.batch import FRAME_ROWS_MAX, EncodedBatch
from replication.core.rows.canonical import canonical
from replication.core.rows.convert import log_batches, upserts_from_arrow
from replication.errors import BackpressureError, BatchConflictError, PoisonedFileError, RequestError, WaitTimeoutError
from replication.ledger.base import BatchPart
from replication.writer.group_commit import GroupCommit
from replication.writer.pending import AppendStep
from replication.writer.wal import batch_ids
from replication.writer.writer import Writer
from tests.unit.writer.site import SCHEMA, Site, flushed, some
from tests.unit.writer.wal.test_recovery import kill
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def test_a_repeated_batch_adds_nothing_and_gives_a_position_that_includes_it(site: Site) -> None:
    with site.writer() as writer:
        first = writer.upsert(site.table, some(0, 100), batch_id="load")
        again = writer.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == list(range(100))
        assert again.sequences == first.sequences and again.ends == first.ends
        site.register()
        registered = writer.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == list(range(100))
        assert registered.sequences == first.sequences and registered.ends == first.ends
        writer.upsert(site.other, some(0, 1), batch_id="load")
        assert len(site.logged(site.other)) == 1, "ids are the table's own"


def test_a_batch_that_another_cluster_began_is_finished_here(site: Site) -> None:
    rows, west = some(0, FRAME_ROWS_MAX + 10), ClusterId("west", UUID(int=2))
    batch = batch_ids.IdempotentBatch("load", list(log_batches(rows, site.table)))
    first, _ = next(batch.encodings(Codec.LZ4))
    begun = BatchPart("default", 0, 2, first.sha256, FileId(west, "h0", 3), 7, 0)
    site.ledger.batches.put(site.table.uuid, "load", [begun], 1)
    with site.writer() as writer:
        position = writer.upsert(site.table, rows, batch_id="load")
        assert len(site.logged_keys()) == 10
        there = StreamId(begun.wal, site.table.uuid, "default")
        assert position.sequences[there] == 7 and len(position.sequences) == 2
        assert [file.cluster for file in position.ends] == [position.cluster]


def test_dicts_and_arrow_of_the_same_rows_are_the_same_batch(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, some(0, 10), batch_id="load")
        writer.upsert(site.table, some(0, 10).to_pylist(), batch_id="load")
        assert len(site.logged_keys()) == 10


def test_rows_of_a_stream_are_the_same_batch_in_whatever_pieces_they_come(site: Site) -> None:
    spec = typed_table(
        "t.g", SCHEMA.append(pa.field("w", pa.int64())), ["k"], uuids=iter(uuid4, None), groups={"g": ["w"]}
    )
    site.ledger.tables.create(spec)
    rows = some(0, FRAME_ROWS_MAX + 10)
    rows = rows.append_column("w", rows.column("k"))
    with site.writer() as writer:
        for size in (len(rows), 10_000, 7):
            pieces = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=size))
            writer.upsert(spec, pieces, batch_id="load")
        writer.upsert(spec, rows, batch_id="load")
        found = [(frame.header.group, frame.header.row_count) for frame, _ in site.frames()]
        assert found == [("g", FRAME_ROWS_MAX), ("default", FRAME_ROWS_MAX), ("g", 10), ("default", 10)]
        two = rows.slice(0, 10).to_batches(max_chunksize=5)
        (log, *_) = log_batches(pa.Table.from_batches(two[:1]), spec)
        begun = EncodedBatch.encode(canonical(log), Codec.LZ4).sha256
        there = BatchPart("g", 0, 4, begun, site.rows()[0].file, 0, site.published(site.rows()[0]))
        site.ledger.batches.put(spec.uuid, "begun by an earlier version", [there], 1)
        stream = pa.RecordBatchReader.from_batches(rows.schema, two)
        writer.upsert(spec, stream, batch_id="begun by an earlier version")
        assert len(site.frames()) == 7


def arrays(kind: pa.DataType, beneath: int) -> pa.Array:
    """1, NULL, 3 as integers, or within what they are told to be in; beneath the NULL lies what nobody may see."""
    bits = pa.py_buffer(bytes([0b101 | beneath << 3]))
    numbers = pa.Array.from_buffers(pa.int64(), 3, [bits, pa.array([1, beneath, 3], pa.int64()).buffers()[1]])
    middle, text = pa.array([False, True, False]), str(beneath)
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    if pa.types.is_string(kind):
        return pa.Array.from_buffers(kind, 3, [bits, offsets.buffers()[1], pa.py_buffer(f"a{text}c".encode())])
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, 3, [None, bits])
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([pa.array([1, beneath, 3]), numbers], ["a", "b"], mask=middle)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(offsets, arrays(kind.value_type, beneath), kind, mask=middle)
    if pa.types.is_map(kind):
        values = arrays(kind.item_type, beneath)
        return pa.MapArray.from_arrays(offsets, pa.array(["k", text, "l"]), values, kind, mask=middle)
    return numbers


@pytest.mark.parametrize(
    "kind",
    [
        "bigint",
        "string",
        "boolean",
        "list<bigint>",
        "struct<a: bigint, b: bigint>",
        "map<string, struct<a: bigint, b: bigint>>",
        "list<struct<a: bigint, b: bigint>>",
        "list<list<bigint>>",
    ],
)
def test_rows_that_are_equal_are_the_same_batch_whatever_lies_beneath_their_nulls(site: Site, kind: str) -> None:
    spec = typed_table("t.n", parse_schema(f"k bigint, v {kind}"), ["k"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    of = spec.by_name["v"].type
    one, two = (pa.table({"k": [1, 2, 3], "v": arrays(of, beneath)}) for beneath in (6, 9))
    assert one.equals(two)
    with site.writer() as writer:
        for rows in (one, two, one.to_pylist()):
            writer.upsert(spec, rows, batch_id="load")
        (frame,) = site.frames()
        assert [row["v"] for row in site.logged(spec)] == one.column("v").to_pylist()
        (log,) = upserts_from_arrow(two, spec)
        earlier = EncodedBatch.encode(log, Codec.LZ4).sha256
        assert earlier != frame[0].header.payload_sha256
        there = BatchPart("default", 0, 1, earlier, site.rows()[0].file, 0, site.published(site.rows()[0]))
        site.ledger.batches.put(spec.uuid, "earlier", [there], 1)
        writer.upsert(spec, two, batch_id="earlier")
        assert len(site.frames()) == 1
        with pytest.raises(BatchConflictError):
            writer.upsert(spec, two.slice(1), batch_id="load")


def test_a_batch_begun_with_another_codec_is_finished_with_it(site: Site) -> None:
    rows = some(0, FRAME_ROWS_MAX * 2)
    with site.writer(codec="zstd") as writer:
        writer.upsert(site.table, rows, batch_id="whole")
        (first, _), _ = site.frames()
        head = first.header
        there = BatchPart("default", 0, 2, head.payload_sha256, site.rows()[0].file, 0, first.end)
        site.ledger.batches.put(site.table.uuid, "torn", [there], 1)
    with site.writer() as writer:
        writer.upsert(site.table, rows, batch_id="whole")
        writer.upsert(site.table, rows, batch_id="torn")
    assert [frame.header.part for frame, _ in site.frames()] == [0, 1, 1]
    with site.writer(codec="none") as writer:
        writer.upsert(site.table, rows, batch_id="torn")
    assert len(site.frames()) == 3


@pytest.mark.parametrize("registered", [False, True])
def test_other_content_under_the_same_id_is_refused(site: Site, registered: bool) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, some(0, 100), batch_id="load")
        if registered:
            site.register()
        for other in (some(1, 100), some(0, 99), some(0, 101), some(0, FRAME_ROWS_MAX + 1), []):
            with pytest.raises(BatchConflictError, match="other content"):
                writer.upsert(site.table, other, batch_id="load")
        assert site.logged_keys() == list(range(100))


@pytest.mark.parametrize("machine", [False, True])
def test_a_batch_that_was_durable_but_not_registered_when_its_writer_died_is_found(site: Site, machine: bool) -> None:
    writer = site.writer()
    writer.upsert(site.table, some(0, 100), batch_id="load")
    kill(site, writer, machine=machine)
    with site.writer() as another:
        position = another.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == list(range(100))
        assert [stream.wal for stream in position.sequences] == [site.rows()[0].file]


def test_a_batch_of_a_live_writer_is_found_before_it_is_registered(site: Site) -> None:
    with site.writer() as one, site.writer() as two:
        one.upsert(site.table, some(0, 100), batch_id="load")
        two.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == list(range(100))


def test_only_missing_parts_are_added(site: Site) -> None:
    rows = some(0, FRAME_ROWS_MAX * 3)
    with site.writer() as writer:
        writer.upsert(site.table, rows, batch_id="whole")
    parts = {f.header.part: (f.header.parts, f.header.payload_sha256) for f, _ in site.frames()}
    assert len(parts) == 3
    wal = site.rows()[0]
    some_there = [BatchPart("default", n, *parts[n], wal.file, n, wal.length) for n in (0, 2)]
    site.ledger.batches.put(site.table.uuid, "torn", some_there, 1)
    before = len(site.logged_keys())
    with site.writer() as writer:
        writer.upsert(site.table, rows, batch_id="torn")
    added = site.logged_keys()[before:]
    assert added == list(range(FRAME_ROWS_MAX, FRAME_ROWS_MAX * 2))


def test_a_batch_over_several_groups(site: Site) -> None:
    schema = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    spec = typed_table("t.g", schema, ["k"], uuids=iter(uuid4, None), groups={"l": ["a"], "r": ["b"]})
    site.ledger.tables.create(spec)
    rows = pa.table({"k": [1], "a": [1], "b": [1]})
    with site.writer() as writer:
        writer.upsert(spec, rows, batch_id="x")
        writer.upsert(spec, rows, batch_id="x")
        assert len(site.frames()) == 2


def test_what_a_failed_sync_took_is_added_again(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": -1}])
        site.files.faults.sync_failures = 1
        with pytest.raises(PoisonedFileError) as failed:
            writer.upsert(site.table, some(0, 100), batch_id="load")
        assert not failed.value.is_partial
        writer.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == [-1, *range(100)]


def test_a_batch_whose_caller_gave_up_waiting_is_not_added_twice(site: Site) -> None:
    with site.writer(append_timeout_s=0.2) as writer:
        site.gate.clear()
        with pytest.raises(WaitTimeoutError):
            writer.upsert(site.table, some(0, 100), batch_id="load")
        with pytest.raises(RequestError, match="another thread"):
            writer.upsert(site.table, some(0, 100), batch_id="load")
        site.gate.set()
        flushed(writer)
        writer.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == list(range(100))


def test_a_batch_that_did_not_fit_in_whole_keeps_its_id_until_what_was_queued_of_it_is_dealt_with(site: Site) -> None:
    rows = some(0, FRAME_ROWS_MAX * 3)
    with site.writer(append_timeout_s=0.3, buffer_bytes_max=1 << 20, codec="none") as writer:
        site.gate.clear()
        for _ in range(2):
            with pytest.raises((BackpressureError, RequestError)):
                writer.upsert(site.table, rows, batch_id="load")
        with pytest.raises(RequestError, match="another thread"):
            writer.upsert(site.table, some(0, 100), batch_id="load")
        site.gate.set()

        def conflicts() -> bool:
            try:
                writer.upsert(site.table, some(0, 100), batch_id="load")
            except BatchConflictError:
                return True
            except RequestError as error:  # of what was queued, something is still on its way
                assert "another thread" in str(error)
            return False

        wait_until(conflicts)
    with site.writer(codec="none") as patient:
        patient.upsert(site.table, rows, batch_id="load")
        assert site.logged_keys() == list(range(FRAME_ROWS_MAX * 3))


def test_a_derived_batch_whose_ack_came_late_is_not_added_twice(site: Site) -> None:
    logs = upserts_from_arrow(some(0, 10), site.table)
    with site.writer(append_timeout_s=0.2) as writer:
        site.gate.clear()
        for error in (WaitTimeoutError, RequestError):
            with pytest.raises(error):
                writer.derive(site.table, logs, "load")
        site.gate.set()
        flushed(writer)
        writer.derive(site.table, logs, "load")
        assert site.logged_keys() == list(range(10))


def test_a_batch_cut_short_as_its_writer_closes_gives_its_id_back(site: Site) -> None:
    with site.writer() as writer:
        writer.close()
        for _ in range(2):
            with pytest.raises(RequestError, match="closed"):
                writer.upsert(site.table, some(0, 100), batch_id="load")


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("step", [0, 1])
def test_a_batch_interrupted_while_it_is_queued_gives_its_id_back(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: int, queued: bool
) -> None:
    rows, submit = some(0, FRAME_ROWS_MAX * 2), GroupCommit.submit
    steps = itertools.count()

    def interrupted(commit: GroupCommit, step_now: AppendStep) -> None:
        if next(steps) == step:
            if queued:
                submit(commit, step_now)
            raise KeyboardInterrupt
        submit(commit, step_now)

    with site.writer(append_timeout_s=5) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(GroupCommit, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.upsert(site.table, rows, batch_id="load")
        writer.upsert(site.table, rows, batch_id="load")
        assert sorted(site.logged_keys()) == list(range(FRAME_ROWS_MAX * 2))  # type: ignore[type-var]


def test_threads_that_repeat_the_same_batch_at_once_add_it_once(site: Site) -> None:
    with site.writer() as writer:
        threads = [
            threading.Thread(target=writer.upsert, args=(site.table, some(0, 100)), kwargs={"batch_id": "load"})
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert site.logged_keys() == list(range(100))


def test_writers_that_append_the_same_new_batch_at_once_add_it_once(site: Site) -> None:
    writers = [site.writer() for _ in range(4)]
    failures: list[Exception] = []
    ready = threading.Barrier(len(writers))

    def append(writer: Writer) -> None:
        ready.wait()
        try:
            writer.upsert(site.table, some(0, FRAME_ROWS_MAX * 2), batch_id="load")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for writer in writers:
        writer.close()
    assert not failures
    assert site.logged_keys() == list(range(FRAME_ROWS_MAX * 2))


def test_a_batch_that_a_live_writer_has_begun_waits_for_it_and_says_whom_for(site: Site) -> None:
    with site.writer() as one, site.writer(append_timeout_s=0.2) as two:
        writer = one.name
        assert site.ledger.batches.hold(site.table.uuid, "load", writer, "h0") == writer
        with pytest.raises(RequestError, match=writer):
            two.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == []
    with site.writer() as patient:
        patient.upsert(site.table, some(0, 100), batch_id="load")
        assert site.logged_keys() == list(range(100))


def test_batches_are_never_merged_with_other_appends(site: Site) -> None:
    with site.writer() as writer:
        for n in range(5):
            writer.upsert(site.table, [{"k": n}], batch_id=str(n))
        assert [frame.header.batch_id for frame, _ in site.frames()] == list("01234")


@pytest.mark.parametrize("bad", ["", "x" * 256, "half \ud800", "a\0b", 7])
def test_ids_are_bounded(site: Site, bad: Any) -> None:
    with site.writer() as writer, pytest.raises(RequestError, match="batch id"):
        writer.upsert(site.table, [{"k": 1}], batch_id=bad)


def test_a_batch_too_large_for_memory_is_refused_and_nothing_of_it_is_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_ids, "BATCH_BYTES_MAX", 1 << 20)
    endless = ({"k": n, "v": bytes(10)} for n in itertools.count())
    with site.writer() as writer:
        with pytest.raises(RequestError, match="more than 1 MiB of rows") as caught:
            writer.upsert(site.table, endless, batch_id="load")
        assert "walship import" in caught.value.hint and site.logged() == []
        writer.upsert(site.table, some(0, 1000), batch_id="load")
    assert site.logged_keys() == list(range(1000))


def test_a_batch_with_a_future_is_there_once_and_its_position_includes_what_was(site: Site) -> None:
    with site.writer() as writer:
        first, again = (writer.upsert_async(site.table, some(0, 100), batch_id="load").result(20) for _ in range(2))
        assert (again.ends, again.sequences) == (first.ends, first.sequences)
        assert site.logged_keys() == list(range(100))
        with pytest.raises(BatchConflictError):
            writer.upsert_async(site.table, some(0, 99), batch_id="load")
        assert writer.upsert(site.table, some(0, 100), batch_id="load").ends == first.ends, "the id was let go"
