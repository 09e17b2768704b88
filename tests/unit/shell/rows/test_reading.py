"""Rows printed and saved: every type, every name, and targets that cannot be written."""

import json
import os
import resource
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from replication.errors import NoSpaceError, RequestError
from shell.cli.render import Printer
from shell.commands.data import sql
from shell.rows.files import batches_of
from shell.rows.reading import print_rows, save_rows

ROW = pa.record_batch({"x": ["a"]})


def test_any_type_is_printed_as_text(capfdbinary):
    span = pa.array([pa.MonthDayNano([0, 1, 0])], pa.month_day_nano_interval())
    batch = pa.record_batch({"iv": span, "du": pa.array([timedelta(1)]), "b": [b"\x00a"], "li": [[b"\xff"]]})
    print_rows(Printer(as_json=False), iter([batch]), batch.schema)
    printed = capfdbinary.readouterr().out
    assert b"days=1" in printed and rb"\x00a" in printed and rb"\\xff" in printed


def test_a_time_finer_than_python_has_is_to_be_cast_where_it_cannot_be_printed():
    """Arrow gives it as pandas' own, which the command does not load."""
    script = """
import pyarrow as pa
from replication.errors import RequestError
from replication.tables.pandas_later import load_pandas_later
from shell.cli.render import Printer
from shell.rows.reading import print_rows
load_pandas_later()
for kind in (pa.timestamp("ns"), pa.time64("ns")):
    batch = pa.record_batch({"at": pa.array([1], kind)})
    try:
        print_rows(Printer(as_json=True), iter([batch]), batch.schema)
    except RequestError as error:
        print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.count("Cast it in the query, for instance COLUMN::varchar") == 2, done


def test_columns_of_one_name_are_told_apart(capfd, tmp_path):
    batch = pa.RecordBatch.from_arrays([pa.array([i]) for i in range(4)], names=["x", "x_1", "x", "x"])
    print_rows(Printer(as_json=True), iter([batch]), batch.schema)
    assert json.loads(capfd.readouterr().out) == {"x": 0, "x_1": 1, "x_2": 2, "x_3": 3}


def test_the_header_is_printed_without_rows_too_so_that_write_reads_it(capfdbinary, tmp_path):
    print_rows(Printer(as_json=False), iter([]), ROW.schema)
    printed = capfdbinary.readouterr().out
    assert printed == b'"x"\n'
    (tmp_path / "a.tsv").write_bytes(printed)
    assert [(batch.schema, batch.num_rows) for batch in batches_of(str(tmp_path / "a.tsv"), "", ROW.schema)] == [
        (ROW.schema, 0)
    ]


def test_no_rows_are_told_once_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_rows(Printer(as_json=False), iter([]), ROW.schema)
    assert capfd.readouterr().out.count("rows") == 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_that_cannot_be_written_is_said(tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / "closed").mkdir(mode=0o500)
    targets = [(f"nosuch/a{suffix}", "No such file"), (f"folder{suffix}", ".*is a directory")]
    if os.geteuid():
        targets.append((f"closed/a{suffix}", "Permission denied"))
    for name, why in targets:
        with pytest.raises(RequestError, match=f"cannot be written: (?i:{why})"):
            save_rows(tmp_path / name, iter([ROW]), ROW.schema)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_whose_name_is_not_utf8_is_said(tmp_path, suffix):
    with pytest.raises(RequestError, match="its name is not UTF-8"):
        save_rows(tmp_path / f"\udcff.{suffix}", iter([ROW]), ROW.schema)


@pytest.mark.parametrize("name", ["a:1.parquet", "s3:a.parquet", "file:%20a#?.parquet", "a:1.csv"])
def test_a_file_whose_name_looks_like_an_address_is_written_here(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert save_rows(Path(name), iter([ROW]), ROW.schema) == 1
    assert os.listdir() == [name]


def test_a_file_without_room_is_said_with_the_remedy(tmp_path):
    (tmp_path / "x.csv").symlink_to("/dev/full")
    with pytest.raises(NoSpaceError, match=r"x\.csv cannot be written: No space left on device\. Make room"):
        save_rows(tmp_path / "x.csv", iter([ROW]), ROW.schema)


def test_of_a_file_for_whose_end_there_is_no_room_nothing_stays(tmp_path):
    assert save_rows(tmp_path / "a.parquet", iter([ROW]), ROW.schema) == 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "a.parquet").stat().st_size - 1, limits[1]))
    try:
        with pytest.raises(RequestError, match=r"b\.parquet cannot be written: File too large"):
            save_rows(tmp_path / "b.parquet", iter([ROW]), ROW.schema)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "b.parquet").exists()


def test_a_column_that_parquet_has_no_type_for_is_named_and_nothing_is_written(tmp_path):
    gap = pa.array([(0, 1, 0)], pa.month_day_nano_interval())
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    for column in (gap, pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), gap), union):
        odd = pa.record_batch({"gap": column})
        with pytest.raises(RequestError, match="no type for column 'gap'"):
            save_rows(tmp_path / "a.parquet", iter([odd]), odd.schema)
        assert not (tmp_path / "a.parquet").exists()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2_000_000_000], pa.timestamp("s")),
        pa.array([2_000_000_000_000], pa.timestamp("ms")),
        pa.array([2_000_000_000_000_000_000], pa.timestamp("ns")),
        pa.array([None, [2_000_000_000_000_000]], pa.list_(pa.timestamp("us"), 1)),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([2_000_000_000_000_000], pa.timestamp("us"))]),
    ],
)
def test_a_time_of_these_years_is_written_in_csv_as_whatever_type_a_query_gives_it(tmp_path, column):
    batch = pa.record_batch({"at": column})
    assert save_rows(tmp_path / "a.csv", iter([batch]), batch.schema) == len(column)
    assert "2033-05-18" in (tmp_path / "a.csv").read_text()


@pytest.mark.parametrize(
    ("last", "kind"),
    [(2147483647, pa.date32()), (1 << 62, pa.timestamp("us", "UTC")), (253_402_300_800, pa.timestamp("s"))],
)
def test_a_time_that_arrow_has_no_text_for_is_refused_in_csv(tmp_path, last, kind):
    """DuckDB's infinity, and times of distant years. Arrow writes a remark, or another year."""
    batches = [pa.record_batch({"at": pa.array(values, kind)}) for values in ([0, None], [], [None], [None, last])]
    with pytest.raises(RequestError, match="cannot be printed.*'at'.*varchar"):
        print_rows(Printer(as_json=False), iter(batches), batches[0].schema)
    with pytest.raises(RequestError, match="cannot be printed.*'at'.*varchar"):
        save_rows(tmp_path / "a.csv", iter(batches), batches[0].schema)
    assert not (tmp_path / "a.csv").exists()


def test_a_time_after_year_9999_that_a_query_gives_is_refused_with_what_to_do(tmp_path, monkeypatch):
    late = pa.array([1 << 60], pa.timestamp("us"))
    flat = pa.record_batch({"at": late})
    nested = pa.record_batch({"at": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), late)})
    with pytest.raises(RequestError, match="cannot be printed.*varchar"):
        print_rows(Printer(as_json=True), iter([flat]), flat.schema)
    with pytest.raises(RequestError, match="cannot be printed.*varchar"):
        save_rows(tmp_path / "a.csv", iter([nested]), nested.schema)
    assert not (tmp_path / "a.csv").exists()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(RequestError, match="cannot be printed.*varchar"):
        print_rows(Printer(as_json=False), iter([flat]), flat.schema)


@pytest.mark.parametrize("spark", [False, True])
def test_what_a_query_gives_is_saved_like_what_is_read(tmp_path, monkeypatch, capfd, spark):
    rows = pa.table({"id": [1, 2], "b": [b"\x00", b"a"]})
    monkeypatch.setattr("peer.client.on_demand.spark_sql", lambda config, ledger, specs, query: rows)
    cluster = SimpleNamespace(config=None, ledger=None, tables=list, sql=lambda query: rows.to_reader())
    invocation = SimpleNamespace(connect=lambda grace_s, header: nullcontext((cluster, Printer(as_json=True))))
    for name in ("rows.parquet", "rows.csv"):
        sql(invocation, "select", spark=spark, output=tmp_path / name)
        assert json.loads(capfd.readouterr().out) == {"rows": 2, "file": str(tmp_path / name)}
    assert parquet.read_table(tmp_path / "rows.parquet").equals(rows)
    assert (tmp_path / "rows.csv").read_text().splitlines()[1:] == [r'1,"\x00"', '2,"a"']
    rows = rows.slice(0, 0)
    sql(invocation, "select", spark=spark, output=tmp_path / "none.csv")
    sql(invocation, "select", spark=spark, output=tmp_path / "none.parquet")
    assert (tmp_path / "none.csv").read_text().strip() == '"id","b"'
    assert parquet.read_table(tmp_path / "none.parquet").equals(rows)
    capfd.readouterr()
    for query, settings in (("", True), ("", False)):
        with pytest.raises(RequestError, match="takes a QUERY"):
            sql(invocation, query, settings=settings, output=tmp_path / "more.csv")
