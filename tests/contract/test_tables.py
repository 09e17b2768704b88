"""What every warehouse promises: compare-and-swap appends, replacing in one step, maintenance that adds no rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

from replication.core.definition.alter import add_column, drop_column, rename_column, set_properties, widen_column
from replication.core.definition.schema import TableSpec, user_field
from replication.errors import CommitConflictError, SchemaError, UnknownTableError
from replication.tables.base import Rows, Tables
from replication.tables.layout import LATEST, TOMBSTONES
from replication.tables.spark.iceberg import IcebergTables
from tests.contract.warehouse_rows import row, shown
from tests.tables_made import as_decode, keyed
from tests.waiting import wait_until

FOREVER = 10**16


def test_a_view_shows_its_query_until_it_is_another(tables: Tables, spec: TableSpec) -> None:
    tables.append(spec.name, row(tables, spec, "a", 1), None, {})
    near = tables.near(spec.name)
    view = f"select v from {tables.ref(spec.name + LATEST)}"
    tables.show(spec, f"select k, v from {near}")
    tables.append(spec.name, row(tables, spec, "b", 2), tables.history(spec.name).current, {})
    for wanted, query in (([1, 2], f"select k, v from {near}"), ([3, 4], f"select k, v + 2 as v from {near}")):
        tables.show(spec, query)
        tables.show(spec, query)
        assert sorted(tables.query(view).column(0).to_pylist()) == wanted
    assert [found.name for found in tables.specs() if found.name == spec.name] == [spec.name]
    with pytest.raises(CommitConflictError):
        tables.show(add_column(spec, "more", pa.int64(), "", uuid4(), 1), f"select k, v, v as more from {near}")
    with pytest.raises(UnknownTableError):
        tables.show(keyed("ops.no_such_table"), f"select k, v from {near}")


def test_tables_of_a_dropped_one_of_the_name_are_put_aside_and_of_a_live_one_left(
    tables: Tables, spec: TableSpec
) -> None:
    tables.append(spec.name, row(tables, spec, "a", 1), None, {})
    again = keyed(spec.name)
    assert tables.has(spec) and not tables.has(again)
    with pytest.raises(SchemaError, match="another"):
        tables.create(again, lambda table: table != spec.uuid)
    assert tables.has(spec) and shown(tables, spec.name) == {"a": 1}
    for _ in range(2):
        tables.create(again, lambda table: table == spec.uuid)
    assert tables.has(again) and not tables.has(spec)
    assert shown(tables, again.name) == {}
    assert shown(tables, f"{spec.name}__dropped_{spec.uuid.hex[:8]}") == {"a": 1}
    assert [found.uuid for found in tables.specs() if found.name == spec.name] == [again.uuid]


def test_the_first_append_and_the_next_carry_their_summaries(tables: Tables, spec: TableSpec) -> None:
    assert tables.history(spec.name).current is None
    first = tables.append(spec.name, row(tables, spec, "a", 1), None, {"walship.x": "1"})
    second = tables.append(spec.name, row(tables, spec, "b", 2), first, {"walship.x": "2"})
    chain = list(tables.history(spec.name).chain())
    assert [s.id for s in chain] == [second, first]
    assert [s.summary["walship.x"] for s in chain] == ["2", "1"]
    assert tables.history(spec.name).whole
    assert shown(tables, spec.name) == {"a": 1, "b": 2}
    assert shown(tables, spec.name, first) == {"a": 1}


@pytest.mark.parametrize("partition", [(), ("k",)], ids=["whole", "partitioned"])
def test_decoded_rows_that_are_none_are_no_commit(tables: Tables, partition: tuple[str, ...]) -> None:
    spec = keyed(f"c{uuid4().hex[:8]}.t", partition=partition)
    tables.create(spec)
    first = tables.append(spec.name, row(tables, spec, "a", 1), None, {})
    none = as_decode(pa.table({"k": pa.array([], pa.string()), "v": pa.array([], pa.int64())}))
    assert tables.append(spec.name, none, first, {"walship.x": "2"}) is None
    assert tables.history(spec.name).current == first


def test_an_append_on_an_older_snapshot_is_refused(tables: Tables, spec: TableSpec) -> None:
    first = tables.append(spec.name, row(tables, spec, "a", 1), None, {"walship.x": "1"})
    tables.append(spec.name, row(tables, spec, "b", 2), first, {"walship.x": "2"})
    for expect in (first, None):
        with pytest.raises(CommitConflictError):
            tables.append(spec.name, row(tables, spec, "c", 3), expect, {"walship.x": "3"})
    assert shown(tables, spec.name) == {"a": 1, "b": 2}


def test_replacing_deletes_and_appends_in_one_step(
    tables: Tables, spec: TableSpec, given: Callable[[str], Rows]
) -> None:
    first = tables.append(spec.name, row(tables, spec, "a", 1), None, {})
    second = tables.append(spec.name, row(tables, spec, "b", 2), first, {"walship.x": "2"})
    gone_keys = given("select 'a' as k union all select 'z' as k")
    replaced = tables.replace(spec.name, ["k"], gone_keys, given(row(tables, spec, "a", 9)), second, {"walship.x": "3"})
    assert tables.history(spec.name).current == replaced
    assert shown(tables, spec.name) == {"a": 9, "b": 2}
    nothing = given(row(tables, spec, "a", 9) + " where 1 = 0")
    gone = tables.replace(spec.name, ["k"], given("select 'b' as k"), nothing, replaced, {"walship.x": "4"})
    assert shown(tables, spec.name) == {"a": 9}
    assert tables.history(spec.name).snapshots[gone].summary["walship.x"] == "4"


def test_the_first_rows_are_tried_again_after_an_attempt_that_failed(tables: Tables, spec: TableSpec) -> None:
    broken = row(tables, spec, "a", 1).replace("cast(1 as bigint)", "cast('x' as bigint)")
    with pytest.raises(Exception, match="x"):
        tables.replace(spec.name, ["k"], "select 'a' as k where 1 = 0", broken, None, {}, spec)
    assert tables.history(spec.name).current is None
    tables.replace(spec.name, ["k"], "select 'a' as k where 1 = 0", row(tables, spec, "a", 1), None, {}, spec)
    assert shown(tables, spec.name) == {"a": 1}


def test_a_snapshot_is_named_while_others_commit(tables: Tables, spec: TableSpec) -> None:
    first = tables.append(spec.name, row(tables, spec, "0", 0), None, {})
    stop = threading.Event()
    appended: list[int] = []

    def commit() -> None:
        while not stop.is_set():
            current = tables.history(spec.name).current
            with suppress(CommitConflictError):  # Iceberg salvages at the fifth change of a tag that comes between
                appended.append(tables.append(spec.name, row(tables, spec, str(len(appended) + 1), 0), current, {}))

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(commit)
        try:
            for turn in range(5):
                tables.tag(spec.name, "kept", first)
                tables.untag(spec.name, "kept")
                wait_until(lambda n=turn: len(appended) > n or other.done(), timeout_s=120, what="another append")
        finally:
            stop.set()
        other.result()
    assert len(shown(tables, spec.name)) == len(appended) + 1


def test_replacing_what_has_moved_is_refused(tables: Tables, spec: TableSpec, given: Callable[[str], Rows]) -> None:
    first = tables.append(spec.name, row(tables, spec, "a", 1), None, {"walship.x": "1"})
    tables.append(spec.name, row(tables, spec, "b", 2), first, {"walship.x": "2"})
    with pytest.raises(CommitConflictError):
        tables.replace(
            spec.name, ["k"], given("select 'a' as k"), given(row(tables, spec, "a", 9)), first, {"walship.x": "3"}
        )
    assert shown(tables, spec.name) == {"a": 1, "b": 2}


def swapped(spec: TableSpec, one: str, two: str) -> TableSpec:
    """The definition after two columns took each other's names."""
    for old, new in ((one, "between"), (two, one), ("between", two)):
        spec = rename_column(spec, old, new, 1)
    return spec


def test_rows_made_before_columns_took_each_others_names_are_refused(
    tables: Tables, spec: TableSpec, given: Callable[[str], Rows]
) -> None:
    both = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.int64())])
    before = keyed(spec.name.replace(".", ".s"), both)
    tables.create(before)
    made = row(tables, before, "a", 1) + ", cast(2 as bigint) as w"
    first = tables.replace(before.name, ["k"], given("select 'a' as k"), given(made), None, {}, before)
    after = swapped(before, "v", "w")
    tables.create(after)
    with pytest.raises(CommitConflictError):
        tables.replace(before.name, ["k"], given("select 'a' as k"), given(made), first, {}, before)
    assert tables.history(before.name).current == first
    tables.replace(before.name, ["k"], given("select 'b' as k"), given(made.replace("'a'", "'b'")), first, {}, after)
    with duckdb.connect() as connection:
        tables.attach(connection, "shown", before.name)
        assert connection.execute("select k, v, w from shown order by k").fetchall() == [("a", 2, 1), ("b", 1, 2)]


def test_tombstones_made_before_key_columns_took_each_others_names_are_refused(
    tables: Tables, spec: TableSpec, given: Callable[[str], Rows]
) -> None:
    before = keyed(spec.name.replace(".", ".t"), pa.schema([("i", pa.string()), ("j", pa.string())]), ("i", "j"))
    tables.create(before)
    name = before.name + TOMBSTONES
    order = "'default' as _group, 1 as _op, cast(0 as bigint) as _ts, cast(1 as bigint) as _commit, 'x' as _origin"
    made = f"select 'a' as i, 'b' as j, {order}, 'x' as _wal, cast(0 as bigint) as _seq, 0 as _row"
    first = tables.append(name, given(made), None, {}, before)
    tables.append(name, given(made), first, {}, before)
    current = tables.history(name).current
    tables.create(swapped(before, "i", "j"))
    with pytest.raises(CommitConflictError):
        tables.append(name, given(made), current, {}, before)
    with duckdb.connect() as connection:
        tables.attach(connection, "shown", name)
        assert connection.execute("select j, i from shown").fetchall() == [("a", "b"), ("a", "b")]


def test_tables_are_made_once(tables: Tables, spec: TableSpec) -> None:
    tables.create(spec)
    assert tables.exists(spec.name) and tables.exists(spec.name + "__changes")
    assert not tables.exists("ops.no_such_table")
    with pytest.raises(UnknownTableError):
        tables.history("ops.no_such_table")


def contents(tables: Tables, name: str, columns: str, spec: TableSpec | None = None) -> list[tuple]:
    with duckdb.connect() as connection:
        tables.attach(connection, "shown", name, columns=spec.columns if spec else None)
        return connection.execute(f"select {columns} from shown order by 1").fetchall()


def test_new_columns_are_added(tables: Tables, spec: TableSpec) -> None:
    tables.append(spec.name, row(tables, spec, "a", 1), None, {})
    wider = add_column(spec, "extra", pa.string(), "", uuid4(), 1)
    assert not tables.fits(wider)
    tables.create(wider)
    assert tables.fits(wider) and not tables.fits(spec)
    assert contents(tables, spec.name, "k, v, extra") == [("a", 1, None)]
    with pytest.raises(SchemaError, match="has extra, which the definition here does not have yet"):
        tables.create(spec)


def test_columns_are_renamed_widened_dropped_and_added_at_once_and_values_stay(tables: Tables) -> None:
    schema = pa.schema(
        [("k", pa.string()), ("v", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(9, 2)), ("gone", pa.string())]
    )
    spec = keyed(f"c{uuid4().hex[:8]}.t", schema)
    tables.create(spec)
    older = "select 'a' as k, 7 as v, cast(0.5 as float) as f, cast(1.25 as decimal(9, 2)) as d, 'x' as gone"
    zeros = ", ".join(f"cast(0 as bigint) as {c}_default" for c in ("_ts", "_commit", "_seq"))
    texts = ", ".join(f"'x' as {c}_default" for c in ("_origin", "_wal"))
    rest = f"{zeros}, {texts}, 0 as _row_default"
    first = tables.append(spec.name, f"{older}, {rest}", None, {})
    changed = rename_column(rename_column(rename_column(spec, "k", "id", 1), "v", "w", 2), "f", "v", 3)
    changed = widen_column(widen_column(changed, "w", pa.int64()), "v", pa.float64())
    changed = widen_column(changed, "d", pa.decimal128(30, 2))
    changed = add_column(drop_column(changed, "gone"), "gone", pa.int64(), "", uuid4(), 4)
    assert contents(tables, spec.name, "id, w, v, d, gone", changed) == [("a", 7, 0.5, Decimal("1.25"), None)]
    tables.create(changed)
    assert tables.fits(changed)
    newer = "select 'b' as id, 5000000000 as w, cast(0.1 as double) as v, cast(2.5 as decimal(30, 2)) as d"
    tables.append(spec.name, f"{newer}, cast(9 as bigint) as gone, {rest}", first, {})
    rows = [("a", 7, 0.5, Decimal("1.25"), None), ("b", 5_000_000_000, 0.1, Decimal("2.50"), 9)]
    assert contents(tables, spec.name, "id, w, v, d, gone") == rows
    assert tables.query(f"select id, w, v, d, gone from {tables.ref(spec.name)} order by id").to_pylist() == [
        dict(zip(("id", "w", "v", "d", "gone"), values, strict=True)) for values in rows
    ]
    swapped = rename_column(rename_column(rename_column(changed, "w", "x", 5), "v", "w", 6), "x", "v", 7)
    tables.create(swapped)
    assert contents(tables, spec.name, "id, v, w") == [("a", 7, 0.5), ("b", 5_000_000_000, 0.1)]
    tables.create(swapped)


def test_rows_decoded_for_an_older_definition_are_refused(tables: Tables, spec: TableSpec) -> None:
    schema = pa.schema([user_field(column) for column in spec.columns])
    decoded = as_decode(pa.table({"k": ["a"], "v": [1]}).cast(schema))
    changed = rename_column(spec, "v", "w", 1)
    tables.create(changed)
    with pytest.raises(CommitConflictError, match="altered"):
        tables.append(spec.name + "__changes", decoded, None, {})
    assert tables.history(spec.name + "__changes").current is None


def test_sort_order_and_properties_follow_the_definition(spark_tables: IcebergTables) -> None:
    spec = keyed(f"c{uuid4().hex[:8]}.t")
    spark_tables.create(spec)
    given = {"sort": "v desc,k", "codec": "snappy", "write.x": "1"}
    spark_tables.create(set_properties(spec, given, 1))

    def there() -> tuple[list[tuple[int, str]], str, str | None]:
        table = spark_tables._catalog.load(spec.name)
        order = [(f.source_id, f.direction.name) for f in table.sort_order().fields]
        return order, table.properties["write.parquet.compression-codec"], table.properties.get("write.x")

    assert there() == ([(2, "DESC"), (1, "ASC")], "snappy", "1")
    reset = set_properties(set_properties(spec, given, 1), dict.fromkeys(given, ""), 2)
    spark_tables.create(drop_column(reset, "v"))
    assert there() == ([], "zstd", None)


def test_what_somebody_else_did_to_an_iceberg_table_is_refused_not_undone(spark_tables: IcebergTables) -> None:
    spec = keyed(f"c{uuid4().hex[:8]}.t")
    spark_tables.create(spec)
    spark_tables.query(f"alter table {spark_tables.ref(spec.name)} add column extra string")
    wider = add_column(spec, "extra", pa.string(), "", uuid4(), 1)
    with pytest.raises(SchemaError, match=r"has a column extra of another program.*--rename extra NAME"):
        spark_tables.create(wider)
    spark_tables.query(f"alter table {spark_tables.ref(spec.name)} rename column extra to theirs")
    spark_tables.create(wider)
    assert spark_tables.fits(wider)
    spark_tables.query(f"alter table {spark_tables.ref(spec.name)} drop column extra")
    with pytest.raises(SchemaError, match="column extra was dropped"):
        spark_tables.create(wider)
    spark_tables.create(drop_column(wider, "extra"))
    assert [f.name for f in spark_tables._catalog.load(spec.name).schema().fields][-1] == "theirs"


def test_tables_carry_their_definition(tables: Tables) -> None:
    name = f"ops.d{uuid4().hex[:8]}"
    spec = keyed(name)
    tables.create(spec)
    (found,) = [each for each in tables.specs() if each.name == name]
    assert (found.uuid, found.key, found.groups, found.columns) == (spec.uuid, spec.key, spec.groups, spec.columns)
