"""Files imported between whole clusters, with the peer's receiver killed while one is on its way."""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from peer.client.comparison import compare_clusters
from replication.core.shipping.chunk import Assignment
from tests.e2e.conftest import RANGE_BYTES
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS = 150_000


def rows(first: int, count: int) -> pa.Table:
    """Rows that do not compress."""
    raw = secrets.token_hex(16 * count)
    return pa.table(
        {"id": range(first, first + count), "text": [raw[32 * i : 32 * i + 32] for i in range(count)]}, SCHEMA
    )


@pytest.fixture(scope="module")
def table(sites):
    east, _ = sites
    name = f"e2e.bulk{uuid4().hex[:8]}"
    with east.connect() as cluster:
        cluster.create_table(name, SCHEMA, ["id"])
    east.shell("enablereplication", "-t", name, "west")
    return name


def test_an_import_whose_receiver_is_killed_midway_arrives_whole_and_once(sites, table, tmp_path):
    east, west = sites
    files = [tmp_path / f"{n}.parquet" for n in range(2)]
    for n, file in enumerate(files):
        pq.write_table(rows(n * ROWS, ROWS), file)
    east.shell("throttle", "west", "1MiB")
    try:
        told = east.json("import", "-t", table, *map(str, files))
        assert (told["rows"], [file["repeated"] for file in told["files"]]) == (2 * ROWS, [False, False])
        with east.connect() as here, west.connect() as there:
            wals = [row for row in here.ledger.files.all() if row.length > 1 << 20 and row.closed]

            def landed() -> int:
                return sum(there.ledger.landing.received(row.file).total for row in wals)

            def ranges() -> set[tuple[int, int]]:
                """Those of the files that workers have been given."""
                given = [Assignment.decode(read.content) for read in here.coordination.assignments().values()]
                return {(c.begin, c.end) for each in given for c in each.chunks if c.file in {row.file for row in wals}}

            assert min(row.length for row in wals) > 2 * RANGE_BYTES
            wait_until(lambda: len(ranges()) >= 3, timeout_s=400, what="the files to be shipped as ranges")
            wait_until(lambda: landed() > 1 << 20, timeout_s=400, what="some of the files to land")
            assert all(end - begin <= RANGE_BYTES for begin, end in ranges())
            old = west.kill("receiver")
            assert landed() < sum(row.length for row in wals), "killed while it was on its way"
            wait_until(lambda: west.ready("receiver", other_than=old), timeout_s=400, what="west's receiver again")
    finally:
        east.shell("throttle", "west", "off")
    again = east.json("import", "-t", table, *map(str, files), "--wait", "west", "--timeout-s", "400")
    assert again["rows"] == 0 and all(file["repeated"] for file in again["files"])
    with east.connect() as here, west.connect() as there:
        verdict = compare_clusters(here, there, [table], 120)[0]
        assert verdict.same and verdict.identical, verdict
        found = there.read(table, columns=["id"]).read_all().column("id").to_pylist()
        assert sorted(found) == list(range(2 * ROWS))


def test_a_bad_file_is_refused_and_those_before_it_stay(sites, table, tmp_path):
    east, _ = sites
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("id,text\n1000000,a\n")
    bad.write_text("id,text\n1000001,b\n,c\n")
    said = east.shell("import", "-t", table, str(good), str(bad), code=3)
    assert "bad.csv" in said and "NULL" in said
    with east.connect() as here:
        position = here.import_files(table, good)
        here.wait(position, until="visible", timeout_s=400)
        assert here.read(table, where="id >= 1000000").read_all().to_pylist() == [{"id": 1_000_000, "text": "a"}]


def test_files_of_every_format_arrive_with_their_very_values(sites, tmp_path):
    east, west = sites
    name = f"e2e.formats{uuid4().hex[:8]}"
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us")), ("n", pa.float64())])
    texts = ['a, "quoted"', "of\ntwo lines", "größer 漢字", None]
    moments = [
        datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime(2026, 2, 28, 1, 2, 3, 4),
        None,
        datetime(1700, 1, 1),
    ]
    made = {}
    for number, suffix in enumerate(("parquet", "arrow", "orc", "csv")):
        ids = [10 * number + i for i in range(4)]
        file = tmp_path / f"rows.{suffix}"
        made[file] = pa.table({"id": ids, "text": texts, "at": moments, "n": [0.1, -0.0, None, 1e300]}, schema)
        write(made[file], file)
    with east.connect() as here, west.connect() as there:
        here.create_table(name, schema, ["id"])
        east.shell("enablereplication", "-t", name, "west")
        told = east.json("import", "-t", name, *map(str, made), "--wait", "west", "--timeout-s", "400")
        assert told["rows"] == 16 and not any(file["repeated"] for file in told["files"])
        wanted = pa.concat_tables(made.values()).to_pylist()
        wait_until(lambda: here.read(name).read_all().num_rows == 16, timeout_s=400, what="the rows at home")
        for cluster in (here, there):
            assert sorted(cluster.read(name).read_all().to_pylist(), key=lambda row: row["id"]) == wanted


def write(table: pa.Table, file: Path) -> None:
    match file.suffix:
        case ".parquet":
            pq.write_table(table, file)
        case ".arrow":
            with pa.ipc.new_file(file, table.schema) as sink:
                sink.write_table(table)
        case ".orc":
            pa.orc.write_table(table, file)
        case ".csv":
            pa.csv.write_csv(table, file)
