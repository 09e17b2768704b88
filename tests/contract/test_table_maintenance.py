"""What every warehouse promises of maintenance: it changes no rows, and appends go on beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import duckdb
import pyarrow as pa

from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError
from replication.tables.base import Rows, Tables
from tests.contract.warehouse_rows import row, shown
from tests.tables_made import as_decode, keyed
from tests.waiting import wait_until

FOREVER = 10**16


def test_rows_replaced_again_and_again_and_compacted_are_there_once(
    tables: Tables, spec: TableSpec, given: Callable[[str], Rows]
) -> None:
    at = tables.append(spec.name, row(tables, spec, "a", 0), None, {})
    at = tables.append(spec.name, row(tables, spec, "b", 0), at, {})
    for turn in range(1, 4):
        both = f"{row(tables, spec, 'a', turn)} union all {row(tables, spec, 'c', turn)}"
        keys = "select 'a' as k union all select 'c' as k"
        at = tables.replace(spec.name, ["k"], given(keys), given(both), at, {"walship.x": str(turn)})
        assert shown(tables, spec.name) == {"a": turn, "b": 0, "c": turn}
        by_engine = tables.query(f"select k, v from {tables.ref(spec.name)} order by k").to_pylist()
        assert by_engine == [{"k": "a", "v": turn}, {"k": "b", "v": 0}, {"k": "c", "v": turn}]
    tables.compact(spec.name, 1)
    assert shown(tables, spec.name) == {"a": 3, "b": 0, "c": 3}
    current = tables.history(spec.name).current
    assert current is not None
    tables.replace(spec.name, ["k"], given("select 'a' as k"), given(row(tables, spec, "a", 9)), current, {})
    assert shown(tables, spec.name) == {"a": 9, "b": 0, "c": 3}


def test_maintenance_adds_no_rows_that_an_append_would_stumble_over(tables: Tables, spec: TableSpec) -> None:
    at = None
    for number, key in enumerate("abc"):
        at = tables.append(spec.name, row(tables, spec, key, number), at, {"walship.x": str(number)})
    assert at is not None
    tables.tag(spec.name, "kept", at)
    assert tables.compact(spec.name, 2) > 0
    tables.delete(spec.name, "k = 'b'")
    after = tables.append(spec.name, row(tables, spec, "d", 4), at, {"walship.x": "after"})
    tables.expire(spec.name, FOREVER, 1)
    history = tables.history(spec.name)
    assert set(history.snapshots) == {after, at}
    assert not history.whole
    assert history.tags == {"kept": at}
    assert shown(tables, spec.name, at) == {"a": 0, "b": 1, "c": 2}
    assert shown(tables, spec.name) == {"a": 0, "c": 2, "d": 4}
    by_engine = tables.query(f"select k, v from {tables.ref(spec.name)} order by k").to_pylist()
    assert by_engine == [{"k": "a", "v": 0}, {"k": "c", "v": 2}, {"k": "d", "v": 4}]
    tables.untag(spec.name, "kept")
    assert not tables.history(spec.name).tags


def test_snapshots_that_are_new_young_or_tagged_do_not_expire(tables: Tables, spec: TableSpec) -> None:
    made: list[int] = []
    for number in range(8):
        current = tables.history(spec.name).current
        made.append(tables.append(spec.name, row(tables, spec, str(number), number), current, {}) or 0)
        time.sleep(0.002)  # Iceberg counts milliseconds
    tables.tag(spec.name, "kept", made[1])
    at = tables.history(spec.name).snapshots[made[5]].at
    for older_than, keep, left in ((at, 1, [1, 5, 6, 7]), (at, 5, [1, 5, 6, 7]), (FOREVER, 2, [1, 6, 7])):
        tables.expire(spec.name, older_than, keep)
        assert sorted(made.index(each) for each in tables.history(spec.name).snapshots) == left
        assert shown(tables, spec.name, made[1]) == {"0": 0, "1": 1}


def test_rows_of_every_type_are_unchanged_by_maintenance(tables: Tables) -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.string())])
    values: dict[str, tuple[pa.DataType, object]] = {
        "yes": (pa.bool_(), True),
        "i": (pa.int32(), -1),
        "f": (pa.float32(), 0.5),
        "d": (pa.float64(), float("inf")),
        "day": (pa.date32(), date(1, 1, 1)),
        "at": (pa.timestamp("us"), datetime(9999, 12, 31, 23, 59, 59, 999_999)),
        "utc": (pa.timestamp("us", tz="UTC"), datetime(1883, 11, 18, tzinfo=UTC)),
        "text": (pa.string(), "\ud7ff\U0010ffff"),
        "bytes": (pa.binary(), b"\0\xff"),
        "amount": (pa.decimal128(38, 9), Decimal("-1.000000001")),
        "many": (pa.list_(pa.int64()), [1, None]),
        "pairs": (pa.map_(pa.string(), struct), [("x", {"a": None, "b": "y"})]),
        "both": (struct, {"a": 1, "b": None}),
    }
    schema = pa.schema([("k", pa.string()), *((name, kind) for name, (kind, _) in values.items())])
    spec = keyed(f"c{uuid4().hex[:8]}.t", schema)
    tables.create(spec)
    written = [
        {"k": "full", **{name: value for name, (_, value) in values.items()}},
        {"k": "null", **dict.fromkeys(values)},
        {"k": "empty", **dict.fromkeys(values), "text": "", "bytes": b"", "many": [], "pairs": []},
    ]
    at = None
    for values_of_row in [*written, {"k": "gone", **dict.fromkeys(values)}]:
        at = tables.append(spec.name, as_decode(pa.Table.from_pylist([values_of_row], schema)), at, {})
    tables.delete(spec.name, "k = 'gone'")
    assert tables.compact(spec.name, 2) > 0
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        tables.attach(connection, "shown", spec.name)
        names = ", ".join(f'"{name}"' for name in schema.names)
        after = connection.sql(f"select {names} from shown").to_arrow_table().cast(schema)
    assert sorted(after.to_pylist(), key=str) == sorted(written, key=str)


def test_maintenance_beside_appends_loses_none_of_their_rows(tables: Tables, spec: TableSpec) -> None:
    tables.append(spec.name, row(tables, spec, "0", 0), None, {})
    stop, appended = threading.Event(), [0]

    def append() -> None:
        while not stop.is_set():
            current = tables.history(spec.name).current
            with suppress(CommitConflictError):
                tables.append(spec.name, row(tables, spec, str(len(appended)), len(appended)), current, {})
                appended.append(len(appended))

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(append)
        try:
            for turn in range(3):
                wait_until(lambda n=turn: len(appended) > 3 * n + 3 or other.done(), timeout_s=120, what="appends")
                with suppress(CommitConflictError):  # appends came first several times
                    tables.compact(spec.name, 2)
                with suppress(CommitConflictError):
                    tables.delete(spec.name, f"k = '{turn}'")
                    appended[turn] = -1
        finally:
            stop.set()
        other.result()
    assert sorted(shown(tables, spec.name).values()) == [value for value in appended if value >= 0]
