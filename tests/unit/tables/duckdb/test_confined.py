"""SQL in DuckDB is one query, and reads no file but those of the warehouse."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replication.errors import RequestError
from replication.tables.duckdb.confined import confine, one_query, refusal


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A warehouse behind a link, and a file beside it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "warehouse").symlink_to(tmp_path / "real")
    for name in ("real/rows.parquet", "other.parquet"):
        pq.write_table(pa.table({"a": [1, 2]}), tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("address", ["{place}/warehouse", "file://{place}/warehouse", "file:{place}/real"])
def test_only_files_of_the_warehouse_are_read(place: Path, address: str) -> None:
    with duckdb.connect(":memory:") as connection:
        for _ in range(2):
            confine(connection, address.format(place=place))
        for name in ("warehouse" if "warehouse" in address else "real",):
            file = place / name / "rows.parquet"
            assert connection.execute(f"select count(*) from read_parquet('{file}')").fetchone() == (2,)
        (place / "real" / "link.parquet").symlink_to(place / "other.parquet")
        for refused in (
            f"select * from read_parquet('{place}/other.parquet')",
            f"select * from '{place}/warehouse/../other.parquet'",
            f"select * from read_parquet('{place}/real/link.parquet')",
            "select * from read_text('/etc/passwd')",
            "select * from glob('/etc/*')",
            f"copy (select 1) to '{place}/out.csv'",
            f"attach '{place}/other.db'",
            "load httpfs",
        ):
            with pytest.raises((duckdb.PermissionException, duckdb.IOException)):
                connection.execute(refused)
        for undone in ("set enable_external_access = true", "set allowed_directories = ['/']"):
            with pytest.raises(duckdb.InvalidInputException):
                connection.execute(undone)
    assert not (place / "out.csv").exists()


def test_what_does_not_fit_into_memory_still_goes_to_files(tmp_path: Path) -> None:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(f"set memory_limit = '24MB'; set temp_directory = '{tmp_path / 'spill'}'")
        confine(connection, str(tmp_path))
        connection.execute("create table t as select range as a, random() as b from range(2000000)")
        query = "select sum(a) from (select * from t order by b limit 1500000)"
        assert connection.execute(query).fetchone() is not None
        assert any((tmp_path / "spill").iterdir())


@pytest.mark.parametrize("text", ["select 1", "with a as (select 1) from a", "from range(3)", "describe select 1; "])
def test_a_query_is_one(text: str) -> None:
    with duckdb.connect(":memory:") as connection:
        assert connection.sql(one_query(connection, text)).fetchall()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("select 1; select 2", "more than one statement"),
        ("", "no statement"),
        ("-- nothing", "no statement"),
        ("copy (select 1) to '/x'", "COPY is not a query.*--output"),
        ("attach '/x'", "ATTACH is not a query"),
        ("set threads = 1", "SET is not a query"),
        ("selec", "syntax error"),
        ("select '\udcff'", "not text in UTF-8"),
    ],
)
def test_anything_else_is_refused(text: str, why: str) -> None:
    with duckdb.connect(":memory:") as connection, pytest.raises(RequestError, match=why):
        one_query(connection, text)


def test_a_table_that_is_not_there_is_not_one_of_duckdb_itself() -> None:
    hints = []
    with duckdb.connect(":memory:") as connection:
        for name in ("nosuch", "flight"):
            connection.execute("create or replace table flights as select 1")
            with pytest.raises(duckdb.CatalogException) as caught:
                connection.sql(f"select * from {name}")
            hints.append(refusal(caught.value).hint)
    assert hints == ["See walship listtables", 'Did you mean "flights"?']
