"""Reads messages of ``proto/walship.proto`` that another process sent: as declared, with numbers that fit a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from replication.core.arrow import pa
from replication.core.ids import COUNT_END
from replication.errors import FormatError

_SMALL_BYTES, _FIELDS_MAX = 1 << 20, 1 << 22
_NUMBER, _SIZED, _FIXED = 0, 2, {1: 8, 5: 4}  # what protobuf's fields are written as
_SHOWN_MAX = 300  # it may quote what was sent, and is logged
_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Within the block, raise FormatError for ``what`` in place of the errors of bytes and values that are none."""
    try:
        yield
    except (DecodeError, ValueError, KeyError, TypeError, OSError, StopIteration, pa.ArrowException) as error:
        raise FormatError(f"{what} cannot be read: {str(error)[:_SHOWN_MAX]}") from None


def read_message(kind: type[_M], raw: bytes) -> _M:
    """Read one message.

    Raises:
        FormatError: it is no such message, or has a number of 2^62 or more, which no offset, sequence or time reaches.
    """
    with reading("a message of the link"):
        check_fields(kind, raw)
        message: _M = kind.FromString(raw)
    check_numbers(message)
    return message


def at_most(found: Sequence[_T], most: int, who: str, what: str) -> Sequence[_T]:
    """``found``; FormatError when it is more than ``most``."""
    if len(found) > most:
        raise FormatError(f"{who} {len(found)} {what}, more than {most}", "Ask for fewer at once")
    return found


def check_fields(kind: type[Message], raw: bytes) -> None:
    """Raise FormatError when a message has very many fields: of two bytes each, 64 MiB become gigabytes."""
    if len(raw) > _SMALL_BYTES:
        _left(kind.DESCRIPTOR, raw, 0, len(raw), _FIELDS_MAX)


def _left(kind: Descriptor, raw: bytes, at: int, end: int, left: int) -> int:
    """How many fields there may be after those of one message, and of the messages in it."""
    while at < end:
        if (left := left - 1) < 0:
            raise FormatError(f"a message of the link has more than {_FIELDS_MAX:,} fields", "Send fewer tables")
        tag, at = read_varint(raw, at)
        if tag & 7 == _SIZED:
            size, at = read_varint(raw, at)
            field = kind.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                left = _left(field.message_type, raw, at, min(at + size, end), left)
            at += size
        elif tag & 7 == _NUMBER:
            _, at = read_varint(raw, at)
        else:
            at += _FIXED.get(tag & 7, 0)
    return left


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset after it."""
    value = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise FormatError("a message of the link is cut short")


def check_numbers(message: Message) -> None:
    """Raise FormatError when a number of the message, or of one in it, is 2^62 or more."""
    for field, value in message.ListFields():
        if field.cpp_type in _WIDE:
            _check_each(field.name, value if isinstance(value, Iterable) else (value,))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if isinstance(value, Mapping):
                _check_each(field.name, (each for each in value.values() if isinstance(each, int)))
            elif isinstance(value, Message):
                check_numbers(value)
            else:
                for each in value:
                    check_numbers(each)


def _check_each(name: str, values: Iterable[int]) -> None:
    for value in values:
        if abs(value) >= COUNT_END:
            raise FormatError(f"a message of the link has an impossible number, {name} {value}")
