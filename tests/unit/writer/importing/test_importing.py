"""Importing a file: all of it or nothing, once however often, with exactly the values that are in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc

from replication.core.definition.define import typed_table
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.errors import (
    BatchConflictError,
    FormatError,
    NullKeyError,
    ReplicationError,
    RequestError,
    SchemaError,
)
from replication.files.rows.row_files import BATCH_ROWS, RowFile
from replication.ledger.base import BatchPart
from replication.writer.importing.file_digest import FileDigest
from replication.writer.importing.importer import Imported
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.times import WriterTimes
from tests.unit.writer.importing.imports import ROWS, bulk_rows, load, parquet
from tests.unit.writer.site import Site, some
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def test_a_file_is_one_closed_wal_with_one_commit_time(site: Site, tmp_path: Path) -> None:  # 004-22
    with site.writer() as writer:
        before = writer.upsert(site.table, [{"k": -1}])
        done = load(writer, site.table, parquet(tmp_path))
        after = writer.upsert(site.table, [{"k": -2}])
        assert site.logged_keys() == [-1, -2, *range(ROWS)]
        assert (done.rows, done.rows_total, done.repeated) == (ROWS, ROWS, False)
        assert done.position is not None and done.wal_bytes > 0
        (row,) = bulk_rows(site)
        assert row.closed and done.position.ends == {row.file: row.closed_length}
        commits = {f.header.commit_hi for f, _ in site.frames() if f.header.wal == row.file}
        assert commits == {done.position.commit} and before.commit < done.position.commit < after.commit
        frames = [f.header for f, _ in site.frames() if f.header.wal == row.file]
        assert len(frames) >= 3
        assert [h.sequence for h in frames] == list(range(len(frames)))
        assert list(done.position.sequences.values()) == [len(frames) - 1]


def test_every_group_of_a_table_gets_its_stream_and_one_batch_id(site: Site, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.float64())])
    spec = typed_table("t.groups", schema, ["k"], uuids=iter(uuid4, None), groups={"left": ["a"], "right": ["b"]})
    site.ledger.tables.create(spec)
    keys = list(range(BATCH_ROWS * 2 + 5))
    path = parquet(tmp_path, pa.table({"k": keys, "a": [str(k) for k in keys], "b": [k / 2 for k in keys]}, schema))
    with site.writer() as writer:
        done = load(writer, spec, path)
        assert done.position is not None
        assert {s.group: n for s, n in done.position.sequences.items()} == {"left": 2, "right": 2}
        marked = [(f.header.group, f.header.part, f.header.parts) for f, _ in site.frames() if f.header.batch_id]
        assert sorted(marked) == [("left", 0, 2), ("right", 1, 2)]
        assert [row["b"] for row in site.logged(spec) if "b" in row] == [k / 2 for k in keys]
        repeated = load(writer, spec, path)
        site.register()
        registered = load(writer, spec, path)
        assert repeated.repeated and registered.repeated
        assert repeated.position is not None and registered.position is not None
        assert repeated.position.sequences == registered.position.sequences == done.position.sequences
        assert repeated.position.ends == registered.position.ends == done.position.ends


FORMATS: dict[str, Callable[[pa.Table, Path], None]] = {
    "a.parquet": lambda rows, path: pq.write_table(rows, path),
    "a.arrow": lambda rows, path: _arrow(rows, path, pa.ipc.new_file),
    "a.arrows": lambda rows, path: _arrow(rows, path, pa.ipc.new_stream),
    "a.orc": lambda rows, path: orc.write_table(rows, str(path)),
}


def _arrow(rows: pa.Table, path: Path, new: Any) -> None:
    with new(str(path), rows.schema) as writer:
        writer.write_table(rows)


@pytest.mark.parametrize("name", FORMATS)
def test_values_of_every_format_survive_exactly(site: Site, tmp_path: Path, name: str) -> None:
    values = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": pa.array(["", None, "ä\0b"], pa.string()),
        "raw": pa.array([b"", b"\0\xff", None], pa.binary()),
        "price": pa.array([Decimal("0.10"), None, Decimal("-12345678.99")], pa.decimal128(12, 2)),
        "x": pa.array([float("inf"), None, -0.0], pa.float64()),
        "at": pa.array(
            [datetime(1969, 12, 31, 23, tzinfo=UTC), None, datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")
        ),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    }
    rows = pa.table(values)
    spec = typed_table("t.exact", rows.schema, ["id"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    FORMATS[name](rows, tmp_path / name)
    with site.writer() as writer:
        assert load(writer, spec, tmp_path / name).rows == 3
        found = [{n: row[n] for n in rows.column_names} for row in site.logged(spec)]
        assert found == rows.to_pylist()


def test_csv_gets_the_tables_types_and_columns_go_by_name(site: Site, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("code", pa.string()), ("on", pa.date32())])
    spec = typed_table("t.csv", schema, ["id"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    (tmp_path / "a.csv").write_text("code,id\n007,1\n,2\n")
    (tmp_path / "a.dat").write_text("id\tcode\n3\tx\n")
    with site.writer() as writer:
        load(writer, spec, tmp_path / "a.csv")
        with pytest.raises(RequestError, match="format.*walship write reads JSON"):
            load(writer, spec, tmp_path / "a.dat")
        assert [(r["id"], r["code"], r["on"]) for r in site.logged(spec)] == [(1, "007", None), (2, None, None)]


def test_cells_are_imported_with_their_timestamps_and_deletes(site: Site, tmp_path: Path) -> None:
    at = int(datetime.now(UTC).timestamp() * 1e6)
    rows = pa.table(
        {"row": [b"r", b"r"], "family": ["f", "f"], "qualifier": ["q", "p"], "value": [b"v", None]}
        | {"timestamp": [at, None], "delete": [False, True]}
    )
    with site.writer() as writer:
        assert load(writer, site.cells, parquet(tmp_path, rows)).rows == 2
        found = [(r["qualifier"], r["value"], r["_ts"]) for r in site.logged(site.cells)]
        assert found == [("q", b"v", at), ("p", None, None)]
        with pytest.raises(SchemaError, match="cell table"):
            load(writer, site.cells, parquet(tmp_path, rows.append_column("odd", [[1, 2]]), "b.parquet"))
        old = rows.set_column(4, "timestamp", pa.array([5, None]))
        with pytest.raises(RequestError, match="history_s"):
            load(writer, site.cells, parquet(tmp_path, old, "c.parquet"))
        (tmp_path / "d.csv").write_text("row,row,family,qualifier,value\nr,s,f,q,v\n")
        with pytest.raises(SchemaError, match="'row' twice"):
            load(writer, site.cells, tmp_path / "d.csv")


@pytest.mark.parametrize(
    ("name", "values"),
    [("delete", ["false"]), ("delete", [0]), ("timestamp", [datetime(2026, 1, 1)]), ("timestamp", ["1"])],
)
def test_what_is_no_timestamp_and_no_delete_of_a_cell_is_refused_by_name(
    site: Site, tmp_path: Path, name: str, values: list[object]
) -> None:
    cells = pa.table({"row": [b"r"], "family": ["f"], "qualifier": ["q"], "value": [b"v"], name: values})
    with site.writer() as writer, pytest.raises(SchemaError, match=f"column '{name}' holds"):
        load(writer, site.cells, parquet(tmp_path, cells))


def test_a_file_whose_import_elsewhere_came_with_one_of_its_groups_can_be_imported_again(
    site: Site, tmp_path: Path
) -> None:
    file, west = parquet(tmp_path), ClusterId("west", UUID(int=2))
    landed = BatchPart("g", 0, 2, bytes(32), FileId(west, "h0", 3), 7, 0)
    site.ledger.batches.put(site.table.uuid, f"sha256:{sha256(file.read_bytes()).hexdigest()}", [landed], 1)
    with site.writer() as writer:
        with pytest.raises(BatchConflictError, match="not landed.*walship import --again"):
            load(writer, site.table, file)
        assert load(writer, site.table, file, again=True).rows == ROWS


def test_a_cell_without_a_value_is_refused_by_its_line_as_write_does(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('row,family,qualifier,value,delete\nr,f,q,"",\nr,f,p,,true\nr,f,o,,\n')
    with site.writer() as writer, pytest.raises(SchemaError, match=r"a\.csv, line 4: a cell has neither a value"):
        load(writer, site.cells, tmp_path / "a.csv")


def null_key() -> pa.Table:
    return pa.concat_tables([some(0, ROWS), pa.table({"k": [None], "v": [b"x"]}, schema=some(0, 1).schema)])


@pytest.mark.parametrize(
    ("rows", "error", "what"),
    [
        (null_key(), NullKeyError, "'k'.*NULL"),
        (some(0, 10).rename_columns(["k", "w"]), SchemaError, "no column 'w'"),
        (pa.table({"v": [b"x"]}), SchemaError, "'k'.*missing"),
        (pa.table({"k": ["1"], "v": [b"x"]}), SchemaError, "holds int64"),
        (pa.table({"k": [1.5]}), SchemaError, "column 'k'"),
        (pa.table({"k": pa.array([1 << 63], pa.uint64())}), SchemaError, "column 'k'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_whole(
    site: Site, tmp_path: Path, rows: pa.Table, error: type[ReplicationError], what: str
) -> None:
    path = parquet(tmp_path, rows)
    with site.writer() as writer:
        with pytest.raises(error, match=what) as refused:
            load(writer, site.table, path)
        assert str(path) in str(refused.value), "it says which file"
        assert site.logged_keys() == []
        for row in bulk_rows(site):
            assert row.closed and row.closed_length == FILE_HEADER_BYTES
            assert site.files.open(row.path).size() == FILE_HEADER_BYTES, "its space is given back"
        writer.upsert(site.table, [{"k": 1}])
    assert site.logged_keys() == [1]


def test_files_that_are_no_files_of_rows_are_refused(site: Site, tmp_path: Path) -> None:
    whole = parquet(tmp_path).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.arrow").write_bytes(b"ARROW1\0\0" + whole[:1000])
    (tmp_path / "no.orc").write_bytes(b"nothing of the kind")
    (tmp_path / "bad.csv").write_text("k\n1\nx\n")
    damaged = bytearray(whole)
    damaged[len(whole) // 3 : len(whole) // 3 + 200_000] = bytes(200_000)
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    with site.writer() as writer:
        for name in ("cut.parquet", "cut.arrow", "no.orc", "bad.csv", "damaged.parquet"):
            with pytest.raises(FormatError, match=rf"{name}( is not readable|, line 3, column 'k')"):
                load(writer, site.table, tmp_path / name)
        with pytest.raises(RequestError, match="No such file"):
            load(writer, site.table, tmp_path / "gone.parquet")
        with pytest.raises(RequestError, match="is a folder"):
            load(writer, site.table, tmp_path, "parquet")
        assert site.logged_keys() == []


def test_the_same_content_is_there_once_unless_it_is_wanted_again(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    with site.writer() as writer:
        first = load(writer, site.table, path)
    with site.writer() as another:
        copy = load(another, site.table, tmp_path / "copy.parquet")
        assert copy.repeated and copy.position is not None and first.position is not None
        assert copy.position.ends == first.position.ends
        site.register()
        assert load(another, site.table, path).repeated
        assert len(site.logged_keys()) == ROWS
        assert not load(another, site.other, path).repeated, "content is known by table"
        assert not load(another, site.table, path, again=True).repeated
        assert len(site.logged_keys()) == 2 * ROWS


def test_two_at_once_import_the_same_content_once(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    done: list[Imported] = []
    with site.writer() as one, site.writer() as two:
        threads = [threading.Thread(target=lambda w=w: done.append(load(w, site.table, path))) for w in (one, one, two)]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(not thread.is_alive() for thread in threads), timeout_s=60)
    assert sorted(each.repeated for each in done) == [False, True, True]
    assert len(site.logged_keys()) == ROWS


def test_the_watermark_of_a_file_that_was_dropped_rises_no_more(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path)
    with site.writer(WriterTimes(heartbeat_s=0.001)) as writer:
        load(writer, site.table, path)
        monkeypatch.setattr(FileDigest, "is_ready", False)  # so that it is found out when everything has been read
        after = threading.Event()
        done = writer.import_file(site.table, path, "", lambda done: done.repeated and after.wait(0.1))
        assert done.repeated and done.rows == ROWS, "a watermark into a file that is closed would fail in its thread"


def test_closed_time_need_not_wait_for_an_import(site: Site, tmp_path: Path) -> None:
    with site.writer() as writer:
        promised: list[int] = []

        def look(_: Imported) -> None:
            if promised:
                return
            (row,) = bulk_rows(site)
            counters = DurableLength.open(row.path, row.boot, site.files)
            assert counters is not None
            before = counters.watermark
            wait_until(lambda: counters.watermark > before)
            promised.append(counters.watermark)
            counters.close()

        done = writer.import_file(site.table, parquet(tmp_path), "", look)
        assert done.position is not None and promised[0] < done.position.commit


def test_a_file_without_rows_is_nothing_to_wait_for(site: Site, tmp_path: Path) -> None:
    with site.writer() as writer:
        done = load(writer, site.table, parquet(tmp_path, some(0, 0)))
        assert done.position is not None and not done.position.ends and done.rows == 0
        assert bulk_rows(site) == []


def test_columns_that_are_missing_from_a_table_are_refused_also_without_rows(site: Site, tmp_path: Path) -> None:
    (tmp_path / "head.csv").write_text("k,nosuch\n")
    with site.writer() as writer, pytest.raises(SchemaError, match="nosuch"):
        writer.import_file(site.table, tmp_path / "head.csv", "", lambda _: None)
    assert bulk_rows(site) == []


def test_large_batches_of_a_file_come_in_pieces(tmp_path: Path) -> None:
    _arrow(some(0, BATCH_ROWS * 2 + 1), tmp_path / "a.arrow", pa.ipc.new_file)
    csv.write_csv(some(0, 10).select(["k"]), tmp_path / "a.csv")
    with RowFile(tmp_path / "a.arrow") as file:
        assert [batch.num_rows for batch in file.batches()] == [BATCH_ROWS, BATCH_ROWS, 1]
        assert file.row_count() is None
    with RowFile(tmp_path / "a.csv", schema=some(0, 1).schema) as file:
        assert sum(batch.num_rows for batch in file.batches()) == 10


def test_a_csv_file_with_a_null_key_is_refused_and_what_was_before_it_stays(site: Site, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("k\n1\n")
    (tmp_path / "bad.csv").write_text("k,v\n2,b\n,c\n")
    with site.writer() as writer:
        load(writer, site.table, tmp_path / "good.csv")
        with pytest.raises(NullKeyError, match=r"bad\.csv, line 3: key column 'k' .* in 1 row"):
            load(writer, site.table, tmp_path / "bad.csv")
        assert site.logged_keys() == [1]
