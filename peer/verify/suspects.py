"""Keys that differ between two readings, held from one round of a comparison to the next, in bounded memory.

They lie in a DuckDB file in a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from peer.verify.digest import MEMORY_BYTES_MAX, limit_memory, row_hash
from replication.tables.base import DUCKDB

_SIDES = ("one", "two")


@dataclass(frozen=True, slots=True)
class Seen:
    """A key, on which sides it has rows, and which of its other columns differ."""

    key: dict[str, Any]
    in_left: bool
    in_right: bool
    values: tuple[bool, ...]


class Suspects:
    """The keys that differ between two readings. Use it as a context.

    Args:
        key: the key columns; empty when rows are compared whole.

    Attributes:
        count: how many keys differed in the last round.
        confirmed: how many of them differed in the same way in the round before.
    """

    def __init__(self, key: Sequence[str]) -> None:
        self._key = list(key)
        self._opened = ExitStack()
        self._plain: list[str] = []
        self._names: list[str] = []
        self.count = 0
        self.confirmed = 0

    def __enter__(self) -> Suspects:
        return self

    def __exit__(self, *_: object) -> None:
        """Close and remove the file."""
        self._opened.close()

    @cached_property
    def _db(self) -> duckdb.DuckDBPyConnection:
        """The file, made when something differs: most tables are the same."""
        folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="walship-verify-")))
        config: dict[str, str | bool | int | float | list[str]] = {"threads": 2, "preserve_insertion_order": False}
        made = self._opened.enter_context(closing(duckdb.connect(str(folder / "suspects.db"), config=config)))
        made.execute("set timezone = 'UTC'")
        limit_memory(made, folder / "spill", MEMORY_BYTES_MAX)
        return made

    def add_round(self, left: Iterable[pa.RecordBatch], right: Iterable[pa.RecordBatch]) -> None:
        """Take one round: rows of both sides, as ``Reading.keys`` gives them. Sets ``count`` and ``confirmed``.

        When a side fails, the round before stays: this one is taken again.
        """
        loaded = [self._load(side, rows) for side, rows in zip(_SIDES, (left, right), strict=True)]
        self._db.execute("drop table if exists earlier")
        has_earlier = self.count > 0
        if has_earlier:
            self._db.execute("alter table suspects rename to earlier")
        self._db.execute("drop table if exists suspects")
        self.count = self.confirmed = 0
        if not any(loaded):
            return
        for side, other in (_SIDES, _SIDES[::-1]):
            if side not in (name for name in loaded if name):
                self._db.execute(f"create or replace table {side} as select * from {other} where false")
        named = ", ".join(f"coalesce(a.{name}, b.{name}) as {name}" for name in self._names)
        self._db.execute(
            f"create table suspects as select _kh, {named}, a._seen as _in_one, b._seen as _in_two,"
            " a._values as _of_one, b._values as _of_two from one a full join two b using (_kh)"
            " where a._seen is distinct from b._seen"
        )
        self.count = self._number("select count(*) from suspects")
        if has_earlier:
            self.confirmed = self._number(f"select count(*) from {self._again()}")

    def listed(self, limit: int) -> Iterator[Seen]:
        """The confirmed keys, in order, at most ``limit``."""
        named = ", ".join(f"s.{name}" for name in self._names)
        order = ", ".join(str(n + 1) for n in range(len(self._names)))
        query = f"select {named}, s._in_one, s._in_two, s._of_one, s._of_two from {self._again()} order by {order}"
        for row in self._db.execute(f"{query} limit {int(limit)}").fetchall():
            *values, in_left, in_right, one, two = row
            differ = tuple(a != b for a, b in zip(one or (), two or (), strict=False))
            yield Seen(dict(zip(self._plain, values, strict=True)), in_left is not None, in_right is not None, differ)

    @staticmethod
    def _again() -> str:
        return (
            "suspects s join earlier e on s._kh = e._kh and s._in_one is not distinct from e._in_one"
            " and s._in_two is not distinct from e._in_two"
        )

    def _load(self, side: str, rows: Iterable[pa.RecordBatch]) -> str:
        """Load a side's keys, one row for each key; "" when there are none."""
        self._db.execute(f"drop table if exists {side}")
        failed: list[Exception] = []
        batches = _noting(rows, failed)
        first = next(batches, None)
        if first is None:
            return ""
        reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        self._plain = [name for name in first.schema.names if name not in ("_low", "_high", "_values")]
        self._names = [DUCKDB.name(name) for name in self._plain]
        kept = ", ".join(f"any_value({name}) as {name}" for name in self._names)
        hashed = (
            row_hash(self._key) if self._key else "_high::uhugeint * 18446744073709551616::uhugeint + _low::uhugeint"
        )
        self._db.register("incoming", reader)
        try:
            self._db.execute(
                f"create table {side} as select _kh, {kept}, any_value(_values) as _values,"
                " concat_ws(':', sum(_low::hugeint), sum(_high::hugeint), count(*)) as _seen"
                f" from (select *, {hashed} as _kh from incoming) group by _kh"
            )
        except duckdb.Error:
            if failed:  # DuckDB gives only its text
                raise failed[0] from None
            raise
        finally:
            self._db.unregister("incoming")
        return side

    def _number(self, query: str) -> int:
        found = self._db.execute(query).fetchone()
        assert found is not None
        return int(found[0])


def _noting(rows: Iterable[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    """The same batches; ``failed`` gets the error of one that does not come."""
    try:
        yield from rows
    except Exception as error:
        failed.append(error)
        raise
