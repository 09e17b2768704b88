"""Selecting frames by header, decoding them, layouts and summaries: what of replay needs no warehouse."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import cast
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.frames import select
from peer.frames.decode import FrameRef, find_poison, plan_decode
from peer.frames.hosts import HostReader, Hosts
from peer.frames.select import ReplaySelection, Selector
from peer.replay.loop import pause_after
from peer.replay_report import ReplayReport
from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import Folded
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.core.succession import Succession, Successions
from replication.errors import PoisonFrameError, SchemaError
from replication.ledger.base import Ledger
from replication.tables.base import LABEL, History, Snapshot
from replication.tables.layout import layouts, version_column
from replication.tables.partition import check_partition, parse_partition
from tests.origin import OriginWal, new_ledger
from tests.tables_made import SIMPLE, cell, grouped, keyed

LOCAL = HostReader(Hosts())


class Origin:
    def __init__(self, directory: Path) -> None:
        self.ledger: Ledger = new_ledger(directory)
        self.wal = OriginWal(self.ledger, directory / "wal")
        self.one, self.two = keyed("ops.one"), keyed("ops.two")
        for spec in (self.one, self.two):
            self.ledger.tables.create(spec)

    def put(self, spec: TableSpec, value: int) -> None:
        self.wal.upsert(spec, [{"k": "a", "v": value}])
        self.wal.register()


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path)


def counts(selection: ReplaySelection) -> dict[object, int]:
    return {table: len(frames) for table, frames in selection.frames.items()}


def test_level_tables_share_a_pass_and_a_held_one_catches_up_on_its_own(origin: Origin) -> None:
    for value in range(2):
        origin.put(origin.one, value)
        origin.put(origin.two, value)
    pending = origin.ledger.replay.pending()
    file = origin.wal.row.file
    end = origin.wal.registered
    both = Selector(LOCAL, pending, 1 << 20).shared()
    assert counts(both) == {origin.one.uuid: 2, origin.two.uuid: 2}
    assert both.ranges == {file: (FILE_HEADER_BYTES, end)} and not both.more
    assert both.payload_bytes == sum(each.end - each.begin for frames in both.frames.values() for each in frames)
    level = Selector(LOCAL, pending, 1 << 20).shared(frozenset({origin.one.uuid}))
    assert counts(level) == {origin.two.uuid: 2}
    own = Selector(LOCAL, pending, 1 << 20, {file: end}).own(origin.one.uuid)
    assert counts(own) == {origin.one.uuid: 2}
    assert not Selector(LOCAL, pending, 1 << 20).own(origin.one.uuid).frames


def test_a_pass_stops_at_its_bytes_and_goes_on_where_it_stopped(origin: Origin) -> None:
    for value in range(3):
        origin.put(origin.one, value)
    pending = origin.ledger.replay.pending()
    passed: dict[FileId, int] = {}
    seen = []
    for _ in range(3):
        part = Selector(LOCAL, pending, 1, passed).shared()
        seen += part.frames[origin.one.uuid]
        passed = {file: end for file, (_, end) in part.ranges.items()}
    assert [frame.sequence for frame in seen] == [0, 1, 2]
    assert passed == {origin.wal.row.file: origin.wal.registered}


def test_a_pass_stops_at_a_number_of_lost_writes_too(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_LOST_MAX", 2)
    for value in range(3):
        origin.put(origin.one, value)
    succession = cast(Succession, "west")
    monkeypatch.setattr(Successions, "leaving_out", lambda self, header: succession)
    pending = origin.ledger.replay.pending()
    first = Selector(LOCAL, pending, 1 << 20).shared()
    rest = Selector(LOCAL, pending, 1 << 20, {file: end for file, (_, end) in first.ranges.items()}).shared()
    assert [[frame.sequence for frame, _ in part.lost] for part in (first, rest)] == [[0, 1], [2]]
    assert (first.more, rest.more) == (True, False) and rest.ranges[origin.wal.row.file][1] == origin.wal.registered


def test_quarantined_frames_are_passed_over(origin: Origin) -> None:
    origin.put(origin.one, 1)
    origin.put(origin.one, 2)
    pending = origin.ledger.replay.pending()
    selection = Selector(LOCAL, pending, 1 << 20, skip=lambda file, begin: begin == FILE_HEADER_BYTES).shared()
    assert [frame.sequence for frame in selection.frames[origin.one.uuid]] == [1]


def test_a_damaged_header_breaks_only_its_file(origin: Origin, tmp_path: Path) -> None:
    other = OriginWal(origin.ledger, tmp_path / "wal")
    origin.put(origin.one, 1)
    begin = origin.wal.registered
    origin.put(origin.one, 2)
    other.upsert(origin.two, [{"k": "b", "v": 1}])
    other.register()
    raw = bytearray(origin.wal.path.read_bytes())
    raw[begin] ^= 0xFF
    origin.wal.path.write_bytes(raw)
    selection = Selector(LOCAL, origin.ledger.replay.pending(), 1 << 20).shared()
    assert counts(selection) == {origin.one.uuid: 1, origin.two.uuid: 1}
    assert selection.ranges[origin.wal.row.file] == (FILE_HEADER_BYTES, begin)
    assert list(selection.broken) == [origin.wal.row.file]


def refs(origin: Origin, spec: TableSpec) -> list[FrameRef]:
    return Selector(LOCAL, origin.ledger.replay.pending(), 1 << 20).shared().frames[spec.uuid]


def test_frames_decode_to_rows_with_their_place_and_labels(origin: Origin) -> None:
    origin.wal.upsert(origin.one, [{"k": "a", "v": 1}, {"k": "b"}], commit=7)
    origin.wal.delete(origin.one, [{"k": "c"}], commit=9)
    origin.wal.register()
    decode = plan_decode(origin.one, origin.one.versions.values(), refs(origin, origin.one), 5, 2, 77)
    run = pickle.loads(pickle.dumps(decode.run))
    table = pa.Table.from_batches(run(decode.tasks.to_batches()))
    assert table.drop_columns([LABEL]).to_pylist() == [
        {"k": "a", "v": 1, "_op": 0, "_commit": 7, "_seq": 0, "_row": 0},
        {"k": "b", "v": None, "_op": 0, "_commit": 7, "_seq": 0, "_row": 1},
        {"k": "c", "v": None, "_op": 1, "_commit": 9, "_seq": 1, "_row": 0},
    ]
    wal = origin.wal.row.file
    assert [decode.labels[at] for at in table.column(LABEL).to_pylist()] == [
        (str(wal.cluster), wal.local, "default", "east")
    ] * 3
    assert decode.label_columns == ("_origin", "_wal", "_group", "_through")
    assert decode.constants == {"_replay": 5, "_applied": 77}


def test_poison_is_told_by_place_and_reason(origin: Origin) -> None:
    origin.put(origin.one, 1)
    version = origin.one.versions["default"]
    begin = origin.wal.registered
    origin.wal.frame(origin.one.uuid, "default", version.hash, b"junk", 1)
    origin.wal.frame(origin.one.uuid, "default", b"\7" * 32, b"", 0)
    origin.wal.register()
    frames = refs(origin, origin.one)
    decode = plan_decode(origin.one, [version], frames, 1, 1, 0)
    with pytest.raises(PoisonFrameError) as caught:
        list(decode.run(decode.tasks.to_batches()))
    assert caught.value.begin == begin and caught.value.path == origin.wal.row.path
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.path, again.begin, again.reason) == (caught.value.path, begin, caught.value.reason)
    found = find_poison(decode, frames)
    assert [each.frame.sequence for each in found] == [1, 2]
    assert "unknown here" in found[1].reason


def test_a_frame_for_which_memory_is_short_is_no_poison(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be kept apart until a person has it tried again."""
    origin.put(origin.one, 1)
    frames = refs(origin, origin.one)
    decode = plan_decode(origin.one, origin.one.versions.values(), frames, 1, 1, 0)

    def short(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(pa.ipc, "read_record_batch", short)
        find_poison(decode, frames)
    assert not find_poison(decode, frames)


def test_tasks_share_the_bytes(origin: Origin) -> None:
    frame = FrameRef("p", origin.wal.row.file, 0, 10 << 20, uuid4(), origin.wal.row.file, "g", 0, b"")
    decode = plan_decode(origin.one, [], [frame] * 4, 1, 2, 0)
    assert [len(ranges) for ranges in decode.tasks.column("frames").to_pylist()] == [2, 2]


def test_summaries_read_back() -> None:
    file = FileId(ClusterId("east", uuid4()), "h0", 3)
    stamp = CommitMetadata(2, 9, {file: (256, 900)})
    snapshot = Snapshot(1, None, "append", stamp.to_summary(), 0)
    assert CommitMetadata.of(snapshot) == stamp
    assert CommitMetadata.of(Snapshot(2, 1, "replace", {}, 0)) is None
    folded = Folded(4, 100, 3, 90)
    newest = Snapshot(3, 2, "append", folded.to_summary(), 0)
    replaced = Snapshot(4, 3, "replace", {}, 0)
    assert Folded.newest(History(4, {3: newest, 4: replaced})) == folded
    assert Folded.newest(History(None, {})) == Folded()
    assert not Folded.newest(History(4, {4: replaced})).known


def test_layouts_name_what_readers_see() -> None:
    assert [layout.name for layout in layouts(keyed("ops.t"))] == ["ops.t__changes", "ops.t", "ops.t__tombstones"]
    (keyless,) = layouts(keyed("ops.log", SIMPLE, ()))
    assert keyless.schema.names[-6:] == ["_commit", "_origin", "_wal", "_seq", "_row", "_replay"]
    assert "_commit_right_2d1" in layouts(grouped("ops.g"))[1].schema.names
    assert "_ts_cell" in layouts(cell("ops.c"))[1].schema.names
    assert version_column("_seq", "a.b") == "_seq_a_2eb"


def test_partition_transforms_are_read() -> None:
    assert [str(parse_partition(text)) for text in ("c", "day(t)", "days(t)", "bucket(16, k)", "truncate(4,k)")] == [
        "('c', IdentityTransform())",
        "('t', DayTransform())",
        "('t', DayTransform())",
        "('k', BucketTransform(num_buckets=16))",
        "('k', TruncateTransform(width=4))",
    ]
    with pytest.raises(SchemaError):
        parse_partition("weekday(t)")
    for wrong in ("bucket(t)", "bucket(0, t)", "bucket(x, t)", "truncate(0, t)", "bucket(2147483648, t)"):
        with pytest.raises(SchemaError, match="is not an Iceberg partition transform"):
            parse_partition(wrong)


LONG = "c" * 201


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        (["day(t)", "day(t)"], r"by day\(t\) and day\(t\)"),
        (["day(t)", "hour(t)"], r"by day\(t\) and hour\(t\)"),
        (["bucket(4, k)", "bucket(8, k)"], "by bucket"),
        (["hour(t)"], "both named t_hour"),
        ([LONG], "folders would be named c+…=VALUE"),
    ],
)
def test_partitions_that_iceberg_would_refuse_later_are_refused(partition: list[str], says: str) -> None:
    columns = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("t_hour", pa.int64()), (LONG, pa.string())])
    with pytest.raises(SchemaError, match=says):
        check_partition(columns, partition)
    check_partition(columns, ["k", "bucket(4, k)", "day(t)"])


def test_a_report_reads_back_on_every_host(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert ReplayReport.load(ledger.replay) is None
    report = ReplayReport(host="h1", pid=1, at=2.0, held={"ops.t": "why"}, away={"h2": "silent"})
    report.save(ledger.replay)
    assert ReplayReport.load(ledger.replay) == report


def test_rounds_rest_as_long_as_they_take_but_not_after_a_single_slow_one() -> None:
    assert pause_after(0.2, 0.0, 0.0) == 0.2
    assert pause_after(0.2, 0.0, 60.0) == 0.2, "the first round, in a cold JVM"
    assert pause_after(0.2, 60.0, 3.0) == 3.0
    assert pause_after(0.2, 3.0, 4.0) == 3.0
