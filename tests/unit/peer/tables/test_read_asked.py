"""What is asked of a read is checked before it becomes part of a query."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import duckdb
import numpy as np
import pytest

from peer.tables.fold import merge_changes
from peer.tables.read import query_result, read
from replication.errors import RequestError
from replication.tables.base import open_duckdb
from tests.fakes.tables import MemoryTables
from tests.tables_made import keyed
from tests.versions import Version, append, shown


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"limit": "x"}, "limit='x' is not a number of rows"),
        ({"limit": -1}, "limit=-1 is not a number of rows"),
        ({"limit": 1.5}, r"limit=1\.5 is not a number of rows"),
        ({"limit": 1 << 63}, "limit=9223372036854775808 is not a number of rows"),
        ({"columns": "id"}, "columns='id' is not a list of names"),
        ({"columns": [1]}, r"columns=\[1\] is not a list of names"),
        ({"as_of": "2026-01-01"}, "as_of='2026-01-01' is not a commit time"),
        ({"as_of": datetime(2026, 1, 1)}, r"as_of=datetime.*is not a commit time"),
        ({"as_of": 1.5}, r"as_of=1\.5 is not a commit time"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_give(asked: dict[str, Any], told: str) -> None:
    tables, spec = MemoryTables(), keyed("ops.t")
    tables.create(spec)
    with pytest.raises(RequestError, match=told) as refused:
        read(tables, spec, **asked)
    assert "Give" in (refused.value.hint or "")


def test_a_condition_may_end_with_a_comment() -> None:
    tables, spec = MemoryTables(), keyed("ops.t")
    tables.create(spec)
    append(tables, spec, [Version(key, "default", 0, None, 1, "e:1", 1, 0, 5) for key in "abc"], 1)
    assert read(tables, spec, where="v > 1 -- all", limit=2).read_all().num_rows == 2


def test_nothing_is_a_number_of_rows() -> None:
    tables, spec = MemoryTables(), keyed("ops.t")
    tables.create(spec)
    for number in (0, np.int64(0)):
        assert read(tables, spec, limit=number).read_all().num_rows == 0


def test_a_read_as_of_a_time_says_why_no_time_can_be_read_as_of() -> None:
    tables, spec = MemoryTables(), keyed("ops.t")
    tables.create(spec)
    version = Version("a", "default", 0, None, 5, "e:1", 0, 0, 1)
    append(tables, spec, [version], 1)
    merge_changes(tables, spec, 10)
    tables.compact(spec.name, 1)  # as another program may, which also expires every other snapshot
    tables.expire(spec.name, 1 << 60, 1)
    with pytest.raises(RequestError, match="not known how far ops.t is folded.*without a time"):
        shown(tables, spec, as_of=20)
    assert shown(tables, spec) == [{"k": "a", "v": 1}]


def test_a_query_that_fails_after_its_first_rows_is_refused_with_what_duckdb_says() -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set streaming_buffer_size = '100KB'")
        late = "select case when i > 2900000 then error('no such day') else i end as v from range(3000000) t(i)"
        rows = query_result(connection, late)
        assert rows.read_next_batch().num_rows
        with pytest.raises(RequestError, match="no such day"):
            rows.read_all()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("340282366920938463463374607431768211455::uhugeint", "340282366920938463463374607431768211455"),
        ("md5_number('a')", "129134844867590561315626153795017621772"),
        ("'101'::bit", "101"),
        ("['101'::bit]", "[101]"),
        ("'12:30:00+05:30'::timetz", "12:30:00+05:30"),
        ("12::bignum", "12"),
        ("{'a': 1::variant}", "{'a': 1}"),
    ],
)
def test_a_value_of_a_type_that_arrow_does_not_have_is_given_as_text(value: str, text: str) -> None:
    connection = open_duckdb()
    found = query_result(connection, f'select {value} as "a b", 1 as one').read_all()
    assert found.to_pylist() == [{"a b": text, "one": 1}]
    connection.close()


def test_a_struct_stays_one_though_a_field_has_the_name_of_such_a_type() -> None:
    connection = open_duckdb()
    found = query_result(connection, "select {'BIT': 1, 'VARIANT': 2} as s, 'BIT'::enum('BIT') as e").read_all()
    assert found.to_pylist() == [{"s": {"BIT": 1, "VARIANT": 2}, "e": "BIT"}]
    connection.close()
