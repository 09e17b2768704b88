"""Statements that are given to SQLite's driver directly mean what they mean through SQLAlchemy, and fail alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from replication.errors import CoordinationError, LedgerBusyError
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore

TABLE = sa.table("t", sa.column("id", sa.Integer), sa.column("word", sa.Text), sa.column("flag", sa.Boolean))
ADD = Prepared(sa.insert(TABLE).values(id=sa.bindparam("id"), word=sa.bindparam("word"), flag=sa.bindparam("flag")))
FIND = Prepared(sa.select(TABLE).where(TABLE.c.id >= sa.bindparam("low"), TABLE.c.id < 100))
CHANGE = Prepared(sa.update(TABLE).where(TABLE.c.id == sa.bindparam("key")).values(word=sa.bindparam("to")))


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    made = SqlStore(f"sqlite:///{tmp_path}/t.db" if request.param == "file" else "sqlite://", busy_timeout_s=0.2)
    with made.write() as connection:
        connection.exec_driver_sql("create table t (id integer primary key, word text, flag boolean)")
    yield made
    made.close()


def test_rows_go_in_and_come_out(store: SqlStore) -> None:
    with store.write() as connection:
        ADD.run_each(connection, [])
        ADD.run_each(connection, [{"id": n, "word": str(n), "flag": n > 1} for n in (1, 2, 100)])
        ADD.run(connection, {"id": 3, "word": None, "flag": False})
        assert CHANGE.run(connection, {"key": 2, "to": "two"}).rowcount == 1
        assert CHANGE.run(connection, {"key": 9, "to": "nine"}).rowcount == 0
    with store.read() as connection:
        assert sorted(map(tuple, FIND.run(connection, {"low": 2}))) == [(2, "two", 1), (3, None, 0)]


def test_what_fails_undoes_the_transaction_and_is_told_in_the_ledgers_words(store: SqlStore) -> None:
    nowhere = Prepared(sa.insert(sa.table("nowhere", sa.column("id"))).values(id=sa.bindparam("id")))
    with pytest.raises(CoordinationError, match="no such table: nowhere"), store.write() as connection:
        ADD.run(connection, {"id": 1, "word": "one", "flag": True})
        nowhere.run(connection, {"id": 1})
    with store.read() as connection:
        assert not list(FIND.run(connection, {"low": 0}))


def test_a_store_that_stays_locked_is_busy(tmp_path: Path) -> None:
    one, two = (SqlStore(f"sqlite:///{tmp_path}/t.db", busy_timeout_s=0.2) for _ in range(2))
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with one.write() as connection:
            connection.exec_driver_sql("create table t (id integer primary key, word text, flag boolean)")
            taken.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert taken.wait(10)
        with pytest.raises(LedgerBusyError), two.write() as connection:
            ADD.run(connection, {"id": 1, "word": "", "flag": True})
    finally:
        done.set()
        holder.join()
        one.close()
        two.close()


def test_rows_have_the_names_of_their_columns_and_flags_are_flags(store: SqlStore) -> None:
    with store.write() as connection:
        ADD.run_each(connection, [{"id": n, "word": str(n), "flag": n > 1} for n in (1, 2)])
        found = FIND.rows(connection, {"low": 1})
        assert [(row.id, row.word, row.flag) for row in found] == [(1, "1", False), (2, "2", True)]
        assert FIND.row(connection, {"low": 2}).flag is True and FIND.row(connection, {"low": 3}) is None
        assert FIND.scalar(connection, {"low": 2}) == 2 and FIND.scalar(connection, {"low": 3}) is None


def test_a_row_is_put_in_place_of_another_or_not_at_all(store: SqlStore) -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("word", sa.Text))
    put, keep = upsert(table, "id"), upsert(table, keep=True)
    with store.write() as connection:
        put.run(connection, {"id": 1, "word": "one"})
        put.run(connection, {"id": 1, "word": "first"})
        keep.run_each(connection, [{"id": 1, "word": "none"}, {"id": 2, "word": "two"}])
        assert [row.word for row in FIND.rows(connection, {"low": 0})] == ["first", "two"]
