"""Rows out of files, with the types of the table they go to."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replication.errors import FormatError, RequestError
from shell.rowfiles import batches_of, schema_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def test_csv_values_get_the_tables_types_and_empty_ones_are_null(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('id,name,at\n1,007,2013-01-01T10:00:00Z\n2,,\n3,"",NA\n')
    [batch] = batches_of(str(file), schema=SCHEMA)
    assert batch.schema == SCHEMA
    assert batch.column("name").to_pylist() == ["007", None, ""]
    assert batch.column("at").null_count == 2


def test_tab_separated_json_lines_and_parquet(tmp_path):
    (tmp_path / "a.tsv").write_text("id\tname\n1\ta\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "name": "a"}\n')
    pq.write_table(pa.table({"id": [1], "name": ["a"]}), tmp_path / "a.parquet")
    for name in ("a.tsv", "a.jsonl", "a.parquet"):
        rows = [row for batch in batches_of(str(tmp_path / name)) for row in batch.to_pylist()]
        assert rows == [{"id": 1, "name": "a"}], name


def test_an_unknown_suffix_asks_for_the_format(tmp_path):
    (tmp_path / "a.dat").write_text("id\n1\n")
    with pytest.raises(RequestError, match="format"):
        list(batches_of(str(tmp_path / "a.dat")))
    assert [b.num_rows for b in batches_of(str(tmp_path / "a.dat"), "csv")] == [1]


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(RequestError, match="No such file"):
        list(batches_of(str(tmp_path / "a.csv")))


def test_a_value_of_another_type_is_said(tmp_path):
    (tmp_path / "a.csv").write_text("id\nx\n")
    with pytest.raises(FormatError, match="not readable as csv"):
        list(batches_of(str(tmp_path / "a.csv"), schema=SCHEMA))


def test_columns_come_from_a_sample(tmp_path):
    (tmp_path / "a.csv").write_text("id,v\n1,2.5\n")
    assert schema_of(tmp_path / "a.csv") == pa.schema([("id", pa.int64()), ("v", pa.float64())])


def test_json_columns_that_are_not_there_are_left_out_and_those_that_are_get_the_tables_types(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "at": "2013-01-01T10:00:00Z"}\n{"id": 2}\n')
    [batch] = batches_of(str(tmp_path / "a.jsonl"), schema=SCHEMA)
    assert batch.schema == pa.schema([SCHEMA.field("id"), SCHEMA.field("at")])
    assert batch.column("at").null_count == 1


def test_no_lines_are_no_rows(tmp_path):
    (tmp_path / "a.jsonl").touch()
    assert list(batches_of(str(tmp_path / "a.jsonl"), schema=SCHEMA)) == []


def test_a_format_that_is_none_is_named(tmp_path):
    with pytest.raises(RequestError, match="'jsonl' is no format"):
        list(batches_of(str(tmp_path / "a.csv"), "jsonl"))
    with pytest.raises(RequestError, match="format of '-' cannot be told"):
        list(batches_of("-"))
