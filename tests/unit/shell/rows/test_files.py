"""Rows out of files, with the types of the table they go to."""

import io
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from replication.errors import FormatError, RequestError
from shell.cli.render import to_json
from shell.rows.files import batches_of, schema_of
from shell.rows.reading import save_rows

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


def test_a_folder_and_a_sample_of_an_unknown_suffix_are_named(tmp_path):
    for take in (lambda: list(batches_of(str(tmp_path))), lambda: schema_of(tmp_path)):
        with pytest.raises(RequestError, match="is a folder"):
            take()
    with pytest.raises(RequestError) as refused:
        schema_of(tmp_path / "a.dat")
    assert ".csv" in refused.value.hint and ".jsonl" in refused.value.hint and "--format" not in refused.value.hint
    with pytest.raises(RequestError) as refused:
        list(batches_of(str(tmp_path / "a.dat")))
    assert refused.value.hint == "Use --format parquet|arrow|orc|csv|json"


def test_a_json_number_that_does_not_fit_is_shown_as_it_was_written(tmp_path):
    for written in ("1.5", '"1.5"'):
        (tmp_path / "a.json").write_text(f'{{"id": {written}}}\n')
        with pytest.raises(FormatError, match=f"int64: {written} does not fit"):
            list(batches_of(str(tmp_path / "a.json"), schema=SCHEMA))


@pytest.mark.parametrize("schema", [SCHEMA, None])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_json_of_so_many_levels_that_arrow_would_crash_is_refused(tmp_path, schema, opened, closed):
    file = tmp_path / "deep.json"
    file.write_text('{"id": 1}\n{"id": 2, "name": ' + opened * 200_000 + "0" + closed * 200_000 + "}\n")
    with pytest.raises(FormatError, match="row 2 is nested too deeply"):
        list(batches_of(str(file), schema=schema))
    file.write_text('{"id": 1, "name": "' + "[" * 200_000 + '"}\n')
    [batch] = batches_of(str(file), schema=schema)
    assert batch.column("name").to_pylist() == ["[" * 200_000]


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(RequestError, match="No such file"):
        list(batches_of(str(tmp_path / "a.csv")))


def test_a_value_of_another_type_is_said(tmp_path):
    (tmp_path / "a.csv").write_text("id\nx\n")
    with pytest.raises(FormatError, match="line 2, column 'id': 'x' is not a decimal whole number"):
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
    with pytest.raises(RequestError, match="'jsonl' is not a format"):
        list(batches_of(str(tmp_path / "a.csv"), "jsonl"))
    with pytest.raises(RequestError, match="format of '-' is unknown"):
        list(batches_of("-"))


TYPES = {
    "b": (pa.bool_(), [True, False, None]),
    "i": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "l": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "f": (pa.float32(), [0.10000000149011612, math.inf, None]),
    "d": (pa.float64(), [math.nan, -math.inf, 1e300]),
    "dec": (pa.decimal128(38, 5), [Decimal("-1.10000"), Decimal("123456789012345678901234567890123.00001"), None]),
    "s": (pa.string(), ['a"\\x00é\n', "", None]),
    "bin": (pa.binary(), [bytes(range(256)), b"", None]),
    "dt": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "ts": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2020, 2, 29, 1, 2, 3, 4), None]),
    "tz": (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, 0, 0, 0, 1, UTC), None]),
    "li": (pa.list_(pa.field("element", pa.binary())), [[b"\xff\\", None], [], None]),
    "ma": (pa.map_(pa.date32(), pa.float64()), [[(date(2020, 1, 1), math.nan)], [], None]),
    "st": (
        pa.struct([("at", pa.timestamp("us", "UTC")), ("m", pa.map_(pa.string(), pa.decimal128(9, 2)))]),
        [{"at": datetime(2020, 1, 1, tzinfo=UTC), "m": [("k", Decimal("1.10"))]}, {"at": None, "m": None}, None],
    ),
}


@pytest.mark.parametrize("name", [*TYPES, "all"])
def test_whatever_is_printed_as_json_is_read_back(tmp_path, name):
    names = list(TYPES) if name == "all" else [name]
    table = pa.table({"n": [1, 2, 3], **{n: pa.array(TYPES[n][1], TYPES[n][0]) for n in names}})
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f"{to_json(row)}\n" for row in table.to_pylist()))
    [batch] = batches_of(str(file), schema=table.schema)
    assert batch.schema == table.schema
    assert str(batch.to_pylist()) == str(table.to_pylist())


@pytest.mark.parametrize("name", [name for name, (kind, _) in TYPES.items() if not pa.types.is_nested(kind)])
def test_whatever_is_saved_as_csv_is_read_back(tmp_path, name):
    kind, values = TYPES[name]
    table = pa.table({"n": [1, 2, 3], name: pa.array(values, kind)})
    if name == "s":
        table = table.set_column(1, name, pa.array(["NA", "", None]))
    assert save_rows(tmp_path / "a.csv", iter(table.to_batches()), table.schema) == 3
    [batch] = batches_of(str(tmp_path / "a.csv"), schema=table.schema)
    assert str(batch.to_pylist()) == str(table.to_pylist())


@given(st.lists(st.none() | st.binary(), min_size=1))
def test_any_bytes_come_back_from_csv_and_json(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("bytes")
    table = pa.table({"n": range(len(values)), "b": pa.array(values, pa.binary())})
    save_rows(folder / "a.csv", iter(table.to_batches()), table.schema)
    (folder / "a.jsonl").write_text("".join(f"{to_json(row)}\n" for row in table.to_pylist()))
    for name in ("a.csv", "a.jsonl"):
        [batch] = batches_of(str(folder / name), schema=table.schema)
        assert batch.column("b").to_pylist() == values


def test_json_numbers_and_text_may_mix_in_a_decimal_column(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"dec": "1.10"}\n{"dec": 1.1}\n{"dec": 2}\n')
    [batch] = batches_of(str(tmp_path / "a.jsonl"), schema=pa.schema([("dec", pa.decimal128(9, 2))]))
    assert batch.column("dec").to_pylist() == [Decimal("1.10"), Decimal("1.10"), Decimal(2)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), '"5"'),
        (pa.int64(), "1.5"),
        (pa.int32(), "3000000000"),
        (pa.bool_(), "1"),
        (pa.string(), "5"),
        (pa.float64(), '"1.5"'),
        (pa.float64(), "true"),
        (pa.float64(), "1e400"),
        (pa.float32(), "1e39"),
        (pa.date32(), '"2020-13-01"'),
        (pa.timestamp("us"), '"2020-01-01T00:00:00.0000001"'),
        (pa.timestamp("us"), "5"),
        (pa.decimal128(9, 2), '"1.123"'),
        (pa.decimal128(9, 2), '"NaN"'),
        (pa.decimal128(3, 2), "12345"),
        (pa.list_(pa.int64()), '["a"]'),
        (pa.map_(pa.string(), pa.int64()), "[1]"),
        (pa.struct([("a", pa.int64())]), '{"b": 1}'),
        (pa.struct([("a", pa.int64())]), "[1]"),
    ],
)
def test_a_json_value_that_does_not_fit_is_named_with_row_column_and_type(tmp_path, kind, value):
    (tmp_path / "a.jsonl").write_text(f'{{"n": 1}}\n{{"n": 2, "x": {value}}}\n')
    with pytest.raises(FormatError) as refused:
        list(batches_of(str(tmp_path / "a.jsonl"), schema=pa.schema([("n", pa.int64()), ("x", kind)])))
    assert f"row 2, column 'x', which holds {kind}: " in refused.value.what


@pytest.mark.parametrize("value", ["99999999999.5", '"99999999999.5"', "1.234", '"1e50"', '"NaN"', "1" * 45])
def test_a_json_decimal_that_does_not_fit_is_told_the_digits_there_are(tmp_path, value):
    (tmp_path / "a.json").write_text(f'{{"p": 12345678.10}}\n{{"p": {value}}}\n')
    with pytest.raises(FormatError, match=r"row 2.*5?\"? is not a number with at most 8 digits before .* and 2 after"):
        list(batches_of(str(tmp_path / "a.json"), schema=pa.schema([("p", pa.decimal128(10, 2))])))


@pytest.mark.parametrize(("kind", "end"), [(pa.int32(), 1 << 31), (pa.int64(), 1 << 63)])
def test_a_json_integer_out_of_range_is_told_the_range(tmp_path, kind, end):
    schema = pa.schema([("n", kind), ("l", pa.list_(kind))])
    (tmp_path / "a.json").write_text(f'{{"n": {-end}, "l": [{end - 1}]}}')
    [batch] = batches_of(str(tmp_path / "a.json"), schema=schema)
    assert batch.to_pylist() == [{"n": -end, "l": [end - 1]}]
    for value in (f'"n": {end}', f'"l": [1, {-end - 1}]'):
        (tmp_path / "a.json").write_text(f"{{{value}}}")
        with pytest.raises(FormatError, match=f"is not a decimal whole number in the range of {kind}"):
            list(batches_of(str(tmp_path / "a.json"), schema=schema))


@pytest.mark.parametrize(
    "text",
    [
        '{"d": 99999999999}',
        '{"d": -999999}',
        '{"n": ' + "1" * 5000 + "}",
        '{"n": ' + "[" * 100_000 + "}",
        '{"n": 1e99999999999999999999}',
    ],
)
def test_json_without_measure_is_refused_by_its_row(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FormatError, match="row 1"):
        list(batches_of(str(tmp_path / "a.json"), schema=pa.schema([("d", pa.date32()), ("n", pa.int64())])))


@pytest.mark.parametrize("text", ['{"n": 1}\n[2]\n', '{"n": 1}\n{"n": \n', '{"n": 1}\n{"n": 2, "n": 3}'])
def test_what_is_no_json_object_is_named_by_its_row(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(FormatError, match=r"a\.jsonl, row 2"):
        list(batches_of(str(tmp_path / "a.jsonl"), schema=pa.schema([("n", pa.int64())])))


def test_a_backslash_that_stands_for_no_byte_is_named_by_row_and_column(tmp_path):
    (tmp_path / "a.csv").write_text("n,b\n1,ok\n2,a\\n\n")
    (tmp_path / "a.jsonl").write_text('{"b": "ok"}\n{"b": "a\\\\n"}\n')
    for name, where in (("a.csv", "line 3"), ("a.jsonl", "row 2")):
        with pytest.raises(FormatError, match=rf"{name}, {where}, column 'b'"):
            list(batches_of(str(tmp_path / name), schema=pa.schema([("b", pa.binary())])))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), "0xFFFFFFFF"),
        (pa.int64(), " 0x1F"),
        (pa.int32(), "2147483648"),
        (pa.float64(), "1e400"),
        (pa.float32(), "-1e39"),
        (pa.float64(), "x" * 100),
    ],
)
def test_csv_numbers_that_their_column_does_not_hold_are_refused_with_line_and_column(tmp_path, kind, value):
    (tmp_path / "a.csv").write_text(f"n,id\n1,1\n,1\n{value},0xAB\n")
    schema = pa.schema([("n", kind), ("id", pa.string())])
    with pytest.raises(FormatError, match="line 4, column 'n': '") as refused:
        list(batches_of(str(tmp_path / "a.csv"), schema=schema))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pa.timestamp("us"), "noon", "'noon' is not a time as"),
        (pa.timestamp("us", "UTC"), "2024-01-31T12:30:00", "is not a time with a zone, as"),
        (pa.date32(), "2024-13-01", "'2024-13-01' is not a date as"),
        (pa.bool_(), "maybe", "'maybe' is not true, false"),
        (pa.decimal128(5, 2), "1.255", "'1.255' is not a number with at most 3 digits before the point and 2 after"),
        (pa.decimal128(5, 2), "1e3", "'1e3' is not a number with at most 3 digits"),
        (pa.string(), b"caf\xe9", "'caf\N{REPLACEMENT CHARACTER}' is not text in UTF-8"),
    ],
)
def test_a_csv_value_that_does_not_fit_is_named_by_its_line_also_after_values_of_several(tmp_path, kind, value, said):
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbf"a\nb",v\r\n"1\n2",\r\n\r\n3,\n'
        + b"4,"
        + (value if isinstance(value, bytes) else value.encode())
        + b"\n"
    )
    with pytest.raises(FormatError) as refused:
        list(batches_of(str(tmp_path / "a.csv"), schema=pa.schema([("v", kind), ("a\nb", pa.string())])))
    assert "a.csv, line 7, column 'v': " in refused.value.what and said in refused.value.what


def test_a_csv_row_of_too_many_or_too_few_values_is_named_by_its_line(tmp_path):
    for row, count in (("3,4,5", "3 values"), ("3", "1 value")):
        (tmp_path / "a.csv").write_text(f'a,b\n1,"x\ny"\n\n{row}\n')
        with pytest.raises(FormatError, match=rf"a\.csv, line 5 has {count}, and the header 2: {row}"):
            list(batches_of(str(tmp_path / "a.csv"), schema=pa.schema([("a", pa.int64()), ("b", pa.string())])))


def test_a_bad_row_of_standard_input_is_named_by_its_number(monkeypatch):
    class Given:
        buffer = io.BytesIO(b"id\n1\nx\n")

    monkeypatch.setattr(sys, "stdin", Given())
    with pytest.raises(FormatError, match="standard input, row 2, column 'id': 'x' is not"):
        list(batches_of("-", "csv", SCHEMA))


@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow", "csv", "json"])
def test_a_named_pipe_may_have_any_format_as_standard_input_may(tmp_path, kind):
    rows, pipe, file = pa.table({"id": [1, 2]}), tmp_path / f"pipe.{kind}", tmp_path / "file"
    match kind:
        case "parquet":
            pq.write_table(rows, file)
        case "orc":
            orc.write_table(rows, str(file))
        case "arrow":
            with pa.ipc.new_file(str(file), rows.schema) as writer:
                writer.write_table(rows)
        case _:
            file.write_text("id\n1\n2\n" if kind == "csv" else '{"id": 1}\n{"id": 2}\n')
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(pipe.write_bytes, file.read_bytes())
        assert [row for batch in batches_of(str(pipe), schema=SCHEMA) for row in batch.to_pylist()] == rows.to_pylist()
        written.result(20)


def test_a_bad_row_of_a_pipe_is_named_by_its_number_without_a_second_look_into_the_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit((tmp_path / "pipe.csv").write_text, "id\n1\nx\n")
        with pytest.raises(FormatError, match=r"pipe\.csv, row 2, column 'id': 'x' is not"):
            list(batches_of(str(tmp_path / "pipe.csv"), schema=SCHEMA))
        written.result()


def test_csv_numbers_may_have_blanks_around_and_be_infinite(tmp_path):
    (tmp_path / "a.csv").write_text('i,f,s\n 12,inf,0x1F\n"-5\t", -Infinity ,\n,nan,NA\nNA,+1.5e3,x\n')
    schema = pa.schema([("i", pa.int32()), ("f", pa.float32()), ("s", pa.string())])
    [batch] = batches_of(str(tmp_path / "a.csv"), schema=schema)
    assert batch.schema == schema
    assert batch.column("i").to_pylist() == [12, -5, None, None]
    assert [str(value) for value in batch.column("f").to_pylist()] == ["inf", "-inf", "nan", "1500.0"]
    assert batch.column("s").to_pylist() == ["0x1F", None, None, "x"]


def test_a_csv_header_alone_has_the_tables_types(tmp_path):
    (tmp_path / "a.csv").write_text("id,name\n")
    [batch] = batches_of(str(tmp_path / "a.csv"), schema=SCHEMA)
    assert batch.num_rows == 0


def test_standard_input_stays_open_for_what_else_is_said_on_it(monkeypatch):
    class Given:
        buffer = io.BytesIO(b'{"id": 1}\n')

    monkeypatch.setattr(sys, "stdin", Given())
    assert [batch.to_pylist() for batch in batches_of("-", "json", SCHEMA)] == [[{"id": 1}]]
    assert not Given.buffer.closed


@pytest.mark.parametrize("schema", [None, SCHEMA])
@pytest.mark.parametrize(
    ("content", "row"), [("null", 1), ("\ufeff null", 1), ('{"id": 1}\nnull\n', 2), ('null\n{"id": 1}', 1)]
)
def test_null_in_place_of_a_json_object_is_refused(tmp_path, content, row, schema):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(FormatError, match=f"row {row} is not a JSON object: null"):
        list(batches_of(str(tmp_path / "a.jsonl"), schema=schema))


def test_a_json_name_that_is_half_a_surrogate_pair_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"id": 1, "\\ud800": 2}')
    with pytest.raises(FormatError, match="x.json is not readable as json"):
        list(batches_of(str(tmp_path / "x.json"), "", pa.schema([("id", pa.int64())])))


def test_null_within_a_text_of_a_json_object_is_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"name": "} null", "id": null}')
    [batch] = batches_of(str(tmp_path / "a.jsonl"), schema=SCHEMA)
    assert batch.to_pylist() == [{"name": "} null", "id": None}]
