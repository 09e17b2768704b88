"""Who asks for a job waits for it in vain neither where replay does not answer nor while Spark is off."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replication.local_socket import address
from replication.tables.spark import queries
from replication.tables.spark.application import Application
from replication.tables.spark.queries import Queries, Query, ask
from replication.tables.work import WorkDone

pytestmark = pytest.mark.heavy

QUERY = Query("select 1", list, 100, "a query")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Queries]:
    made = Queries(Application(lambda: pytest.fail("it is wanted once"), 60.0), WorkDone(), 10, tmp_path)
    yield made
    made.close()


def ask_once(folder: Path, served: Queries) -> object:
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, folder, QUERY, pytest.fail)
        while not asked.done():
            served.run_once(lambda: False)
    return asked.result()


def test_where_replay_does_not_run_or_was_killed_nobody_waits(tmp_path: Path) -> None:
    assert not ask(tmp_path / "nowhere", QUERY, pytest.fail) and not ask(tmp_path, QUERY, pytest.fail)
    with socket.socket(socket.AF_UNIX) as left, address(tmp_path, "queries") as name:
        left.bind(name)
    assert not ask(tmp_path, QUERY, pytest.fail)


def test_a_job_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, served: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_ANSWER_S", 0.05)
    assert not ask(tmp_path, QUERY, pytest.fail)
    served.run_once(lambda: False)  # who asked has gone


@pytest.mark.parametrize(("end", "is_all"), [(pickle.dumps(True), True), (pickle.dumps(False), False), (b"", False)])
def test_pieces_count_as_all_only_if_the_job_says_so_at_their_end(tmp_path: Path, end: bytes, is_all: bool) -> None:
    taken: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server, address(tmp_path, "queries") as name, ThreadPoolExecutor(1) as thread:
        server.bind(name)
        server.listen()
        asked = thread.submit(ask, tmp_path, QUERY, taken.append)
        client, _ = server.accept()
        with client, client.makefile("rb") as questions:
            assert pickle.load(questions) == QUERY
            client.sendall(pickle.dumps(b"first") + pickle.dumps(b"second") + end)
        assert asked.result() is is_all and taken == [b"first", b"second"]


def test_while_spark_is_off_the_answer_is_that_there_is_none(tmp_path: Path, served: Queries) -> None:
    assert ask_once(tmp_path, served) is False


def test_a_question_of_other_code_ends_nothing(tmp_path: Path, served: Queries) -> None:
    with socket.socket(socket.AF_UNIX) as other, address(tmp_path, "queries") as name:
        other.connect(name)
        other.sendall(pickle.dumps(QUERY).replace(b"Query", b"Quest"))
        served.run_once(lambda: False)
    assert ask_once(tmp_path, served) is False
