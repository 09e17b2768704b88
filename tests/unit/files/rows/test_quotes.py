"""A quote that would swallow the rows after it is an error, however the bytes are read."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.errors import FormatError
from replication.files.rows.csv_rows import csv_batches
from replication.files.rows.csv_values import RowError
from replication.files.rows.quotes import Quoted
from replication.files.rows.row_files import RowFile

SIZES = (1, 2, 3, 5, 1 << 20)


def looked_at(content: bytes, size: int, delimiter: str = ",") -> None:
    quoted = Quoted(io.BytesIO(content), delimiter)
    parts = iter(lambda: quoted.read(size), b"")
    assert b"".join(parts) == content
    quoted.check()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'k,v\n7,"abc\n8,x\n9,y\n', 2),
        (b'k,v\n7,x\n8,"abc\n9,"x"\n10,y\n', 3),
        (b'k,v\n7,"abc"d\n9,y\n', 2),
        (b'k,v\n7,"', 2),
        (b'k,v\n7,"""\n', 2),
        (b'"k,v\n7,x\n', 1),
    ],
)
def test_a_quote_not_closed_at_the_end_of_its_value_is_an_error_with_its_line(
    content: bytes, line: int, size: int
) -> None:
    with pytest.raises(FormatError, match=f"in line {line} (never closes|closes before its end)"):
        looked_at(content, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xef\xbb\xbf" + b'"k",v\r\n1,"2"\r\n',
        b'k,v\n5" pipe, "x\n1,"a\n\nb"',
        b'k,v\r7,"ab\rc"\r9,y\r',
        b'k,v\n1,""""\n2,""\n',
    ],
)
def test_correct_quotes_are_accepted(content: bytes, size: int) -> None:
    looked_at(content, size)


@given(
    st.lists(st.lists(st.text('a", \n\r\t', max_size=6), min_size=1, max_size=4), max_size=6), st.sampled_from(SIZES)
)
def test_csv_from_the_standard_library_is_accepted(rows: list[list[str]], size: int) -> None:
    for delimiter in ",\t":
        written = io.StringIO()
        csv.writer(written, delimiter=delimiter).writerows(rows)
        looked_at(written.getvalue().encode(), size, delimiter)


def test_no_row_is_read_from_a_file_with_such_a_quote(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(b'k,v\n7,"abc\n8,x\n9,y\n')
    with RowFile(file) as rows, pytest.raises(FormatError, match=r"rows\.csv, the quote .* in line 2 never closes"):
        list(rows.batches())


@pytest.mark.parametrize(
    ("content", "said"),
    [("k,v\n1,2\n".encode("utf-16"), "UTF-16 and not UTF-8"), (gzip.compress(b"k\n1\n", mtime=0), "gzip")],
)
def test_what_is_no_text_in_utf_8_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    with RowFile(file) as rows, pytest.raises(FormatError, match=rf"rows\.csv, its bytes are .*{said}"):
        list(rows.batches())


def test_a_row_of_a_pipe_with_too_many_values_is_named_without_a_line() -> None:
    with pytest.raises(RowError, match="^a row has 3 values, and the header 2: 1,2,3"):
        list(csv_batches(io.BytesIO(b"k,v\n1,2,3\n"), ",", None))


def test_a_row_with_too_many_values_that_is_not_utf_8_is_named_and_nothing_else_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RowError, match='^a row has 3 values, and the header 2: 1,\ufffd,"3\n4"'):
        list(csv_batches(io.BytesIO(b'k,v\n1,\xff,"3\n4"\n'), ",", None))
    assert capfd.readouterr() == ("", "")


def test_values_of_several_lines_may_lie_anywhere_in_a_file(tmp_path: Path) -> None:
    file, count = tmp_path / "rows.csv", 900_000
    file.write_bytes(b"k,v\n" + b"".join(b'%d,"a\nb,c\nd"\n' % number for number in range(count)))
    with RowFile(file) as rows:
        batches = list(rows.batches())
    assert sum(batch.num_rows for batch in batches) == count
    assert {value for batch in batches for value in batch.column(1).unique().to_pylist()} == {"a\nb,c\nd"}
