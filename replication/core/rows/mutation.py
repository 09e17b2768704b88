"""Mutations of a cell table's row, with an API like those of Accumulo and HBase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from replication.core.definition.aging import accepted_from
from replication.core.definition.schema import TableSpec
from replication.errors import ConditionalMutationError, HistoryError, SchemaError


class Mutation:
    """Puts and deletes of one row's cells; ``put`` and ``delete`` return the mutation for chaining.

    Timestamps are microseconds since 1970. Without one, the commit time orders the version. Bytes for a family,
    qualifier or visibility are read as UTF-8.
    """

    __slots__ = ("cells", "conditions", "row")

    def __init__(self, row: bytes | str) -> None:
        self.row = _bytes(row)
        self.cells: list[dict[str, Any]] = []
        self.conditions: list[tuple[str, str, bytes | str | None, str]] = []

    def put(
        self,
        family: bytes | str,
        qualifier: bytes | str,
        value: bytes | str,
        visibility: bytes | str = "",
        timestamp: int | None = None,
    ) -> Mutation:
        """Write a cell."""
        return self._add(family, qualifier, visibility, timestamp, value=_bytes(value), delete=False)

    def delete(
        self,
        family: bytes | str,
        qualifier: bytes | str,
        visibility: bytes | str = "",
        timestamp: int | None = None,
    ) -> Mutation:
        """Delete a cell: with ``timestamp`` its versions up to that time, else all up to now."""
        return self._add(family, qualifier, visibility, timestamp, value=None, delete=True)

    def condition(
        self, family: str, qualifier: str, value: bytes | str | None = None, visibility: str = ""
    ) -> Mutation:
        """Add a condition: the cell has ``value``, or is absent for None. ``apply`` raises ConditionalMutationError."""
        self.conditions.append((family, qualifier, value, visibility))
        return self

    def _add(
        self,
        family: bytes | str,
        qualifier: bytes | str,
        visibility: bytes | str,
        timestamp: int | None,
        **rest: Any,
    ) -> Mutation:
        if timestamp is not None and type(timestamp) is not int:
            raise SchemaError(f"timestamp {timestamp!r} is not an integer", "Give microseconds since 1970, or none")
        cell = {
            "row": self.row,
            "family": _text(family, "family"),
            "qualifier": _text(qualifier, "qualifier"),
            "visibility": _text(visibility, "visibility"),
            "timestamp": timestamp,
        }
        self.cells.append(cell | rest)
        return self


def cells_of(mutations: Iterable[Mutation], table: str) -> list[dict[str, Any]]:
    """Return the cells of ``mutations``, in order, for ``convert.cells``.

    Raises:
        ConditionalMutationError: a mutation has a condition.
        SchemaError: an item is not a mutation.
    """
    cells: list[dict[str, Any]] = []
    for mutation in mutations:
        if not isinstance(mutation, Mutation):
            raise SchemaError(f"{table}: {mutation!r} is not a Mutation", "For instance Mutation(row).put(family, ...)")
        if mutation.conditions:
            raise ConditionalMutationError(
                f"{table}: conditional mutations cannot be replicated: two clusters would test the condition against "
                "different rows, and one could accept what the other refuses",
                "Read first, then write without a condition; the newest version wins on every cluster",
            )
        cells += mutation.cells
    return cells


def check_history(cells: Iterable[Mapping[str, Any]], spec: TableSpec, now: int) -> None:
    """Raise HistoryError when a user timestamp is older than the table's ``history_s`` allows at ``now``.

    ``now`` is the later of the wall clock and the newest commit time, in microseconds since 1970, since tombstones
    expire by commit times.
    """
    oldest = accepted_from(spec, now)
    for cell in cells:
        timestamp = cell.get("timestamp")
        if timestamp is not None and timestamp < oldest:
            raise HistoryError(
                f"{spec.name}: timestamp {timestamp} of row {cell['row']!r} is {(now - timestamp) / 1e6:.0f} s old, "
                f"more than the table's history_s allows ({(now - oldest) // 1_000_000})",
                "Tombstones of that age may have expired; write the row with a newer timestamp, or none",
            )


def _text(given: bytes | str, what: str) -> str:
    with suppress(UnicodeDecodeError):
        if isinstance(given, bytes | bytearray):
            return given.decode()
    if not isinstance(given, str):
        raise SchemaError(f"{what} {given!r} is not text", "Give text, or bytes that are UTF-8")
    return given


def _bytes(given: bytes | str) -> bytes:
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"{given!r} has half a surrogate pair, which UTF-8 cannot encode") from None
    if not isinstance(given, bytes | bytearray | memoryview):
        raise SchemaError(f"{given!r} is neither bytes nor text", "A row and a value are bytes, or text as UTF-8")
    return bytes(given)
