r"""Any bytes come back from text: alone, and in columns that are sliced and have NULLs."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.rows.escaped import escaped, escaped_column, unescaped, unescaped_column
from replication.errors import FormatError


@given(st.binary())
def test_bytes_come_back_from_printable_text(value):
    text = escaped(value)
    assert text.isascii() and (text.isprintable() or not text)
    assert unescaped(text) == value


@given(st.lists(st.none() | st.binary()), st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_columns_come_back_slices_and_nulls_too(values, begin, kind):
    column = pa.array(values, kind).slice(begin)
    text = escaped_column(column)
    assert text.to_pylist() == [None if v is None else escaped(v) for v in values[begin:]]
    assert unescaped_column(text, "b", 1).to_pylist() == values[begin:]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\\")))
def test_other_characters_are_their_utf8(text):
    assert unescaped(text) == text.encode()


def test_bytes_look_as_in_the_hbase_shell():
    assert escaped(b"a\\b\x00\xff\n~") == r"a\\b\x00\xff\x0a~"
    assert unescaped(r"\xC3\xa9\\x41") == "é".encode() + rb"\x41"


@pytest.mark.parametrize("text", ["\\", r"\x4\\1", "a\\n", r"\x4", r"\xg0", "\\\\\\"])
def test_a_backslash_before_anything_else_is_refused_with_its_row(text):
    with pytest.raises(FormatError, match="is not an escaped byte"):
        unescaped(text)
    with pytest.raises(FormatError, match="row 8, column 'b'"):
        unescaped_column(pa.array(["a", text]), "b", 7)
