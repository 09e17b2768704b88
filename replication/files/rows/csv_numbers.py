"""Exact numbers from CSV. Arrow alone reads ``0xFFFFFFFF`` as -1 and ``1e400`` as infinity, without an error."""

from __future__ import annotations

import pyarrow as pa

from replication.errors import FormatError

_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())


def is_number(wanted: pa.DataType) -> bool:
    """Whether a column of this type is read as text and converted by ``numbers``."""
    return wanted in _NUMBERS


def numbers(text: pa.StringArray, wanted: pa.DataType, name: str, first_row: int) -> pa.Array:
    """Convert a column of text to numbers. Blanks around a number are ignored.

    Args:
        text: the column as it is in the file.
        wanted: a type for which ``is_number`` is true.
        name: the column's name, for errors.
        first_row: the number of the first row, for errors.

    Raises:
        FormatError: a value is not a decimal number, or out of range; names row, column and value.
    """
    import pyarrow.compute as pc  # deferred: it loads slowly, and few commands need it

    if _may_contain(text, b" \t"):
        text = pc.utf8_trim_whitespace(text)
    try:
        values = text.cast(wanted)
    except pa.ArrowInvalid:
        at = next(at for at, value in enumerate(text) if not _fits(value, wanted))
        raise _refused(text, at, wanted, name, first_row) from None
    if pa.types.is_integer(wanted):
        if not _may_contain(text, b"xX"):
            return values
        misread = pc.match_substring(text, "x", ignore_case=True)
    else:
        misread = pc.is_inf(values)
        if pc.any(misread).as_py():
            misread = pc.and_(misread, pc.invert(pc.match_substring(text, "inf", ignore_case=True)))
    at = pc.index(misread, True).as_py()
    if at >= 0:
        raise _refused(text, at, wanted, name, first_row)
    return values


def _may_contain(text: pa.StringArray, wanted: bytes) -> bool:
    content = (text.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
    return any(byte in content for byte in wanted)


def _fits(value: pa.StringScalar, wanted: pa.DataType) -> bool:
    try:
        value.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _refused(text: pa.StringArray, at: int, wanted: pa.DataType, name: str, first_row: int) -> FormatError:
    value = text[at].as_py()
    shown = repr(value if len(value) <= 40 else f"{value[:40]}…")
    kind = "whole number" if pa.types.is_integer(wanted) else "number"
    return FormatError(
        f"row {first_row + at}, column {name!r}: {shown} is not a decimal {kind} in the range of {wanted}",
        "Correct the file, or widen the column",
    )
