"""Exact values from text in CSV. Arrow alone reads ``0xFFFFFFFF`` as -1 and ``1e400`` as infinity, without an error."""

from __future__ import annotations

import pyarrow as pa

from replication.core.rows.escaped import unescaped, unescaped_column
from replication.core.rows.exact import number_in_words
from replication.errors import FormatError

_SHOWN_CHARACTERS = 40


class RowError(FormatError):
    """A row of a CSV file that is refused.

    Args:
        row: its number, from 1 after the header; None for the first row with too many or too few values.
        why: what is wrong in the row.
        hint: what to do.
    """

    def __init__(self, row: int | None, why: str, hint: str) -> None:
        super().__init__(f"a row{why}" if row is None else f"row {row}{why}", hint)
        self.row = row
        self.why = why


def is_from_text(wanted: pa.DataType) -> bool:
    """Whether a column of this type is read as text, or as the bytes of text, and converted by ``typed``."""
    return _kind(wanted) is not None


def typed(text: pa.Array, wanted: pa.DataType, name: str, first_row: int) -> pa.Array:
    """Convert a column of text to a type for which ``is_from_text`` is true. Blanks around a value are ignored.

    ``text`` need not be UTF-8. ``name`` and ``first_row`` are for errors.

    Raises:
        RowError: a value does not fit; names row, column and value.
    """
    try:
        return _converted(text, wanted)
    except (pa.ArrowInvalid, FormatError):
        fits, refused = 0, len(text)
        while refused - fits > 1:
            middle = (fits + refused) // 2
            fits, refused = (middle, refused) if _fits(text.slice(fits, middle - fits), wanted) else (fits, middle)
        raise _refused(text[fits], wanted, name, first_row + fits) from None


def _converted(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_binary(wanted):
        return unescaped_column(text, "", 0)
    text.validate(full=True)  # UTF-8
    if t.is_string(wanted):
        return text
    import pyarrow.compute as pc  # deferred: it loads slowly, and few commands need it

    try:
        values = text.cast(wanted)
    except pa.ArrowInvalid:
        text = pc.utf8_trim_whitespace(text)
        values = text.cast(wanted)
    misread = None
    if t.is_integer(wanted) and _has_x(text):
        misread = pc.match_substring(text, "x", ignore_case=True)
    elif t.is_floating(wanted) and pc.any(misread := pc.is_inf(values)).as_py():
        misread = pc.and_(misread, pc.invert(pc.match_substring(text, "inf", ignore_case=True)))
    if misread is not None and pc.any(misread).as_py():
        raise pa.ArrowInvalid("misread")
    return values


def _fits(text: pa.Array, wanted: pa.DataType) -> bool:
    try:
        _converted(text, wanted)
    except (pa.ArrowInvalid, FormatError):
        return False
    return True


def _has_x(text: pa.StringArray) -> bool:
    content = (text.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
    return b"x" in content or b"X" in content


def _kind(wanted: pa.DataType) -> str | None:
    """What a value of the type is in a file, in words."""
    t = pa.types
    if number := number_in_words(wanted):
        return number
    if t.is_timestamp(wanted):
        return "a time with a zone, as 2024-01-31T12:30:00Z" if wanted.tz else "a time as 2024-01-31T12:30:00, no zone"
    if t.is_date32(wanted):
        return "a date as 2024-01-31"
    if t.is_boolean(wanted):
        return "true, false, 1 or 0"
    if t.is_string(wanted):
        return "text in UTF-8"
    return "bytes" if t.is_binary(wanted) else None


def _refused(value: pa.Scalar, wanted: pa.DataType, name: str, row: int) -> RowError:
    raw = value.as_buffer().to_pybytes()
    if pa.types.is_binary(wanted):
        try:
            unescaped(raw)
        except FormatError as error:
            return RowError(row, f", column {name!r}: {error.what}", error.hint)
    text = raw.decode(errors="replace")
    shown = repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
    is_number = pa.types.is_integer(wanted) or pa.types.is_floating(wanted) or pa.types.is_decimal(wanted)
    hint = "Correct the file, or widen the column" if is_number else "Correct the value; an empty one is NULL"
    if pa.types.is_string(wanted):
        hint = "Save the file as UTF-8"
    return RowError(row, f", column {name!r}: {shown} is not {_kind(wanted)}", hint)
