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
        asked = thread.submit(ask, folder, QUERY)
        while not asked.done():
            served.run_once(lambda: False)
    return asked.result()


def test_where_replay_does_not_run_or_was_killed_nobody_waits(tmp_path: Path) -> None:
    assert ask(tmp_path / "nowhere", QUERY) is None and ask(tmp_path, QUERY) is None
    with socket.socket(socket.AF_UNIX) as left, address(tmp_path, "queries") as name:
        left.bind(name)
    assert ask(tmp_path, QUERY) is None


def test_a_job_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, served: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_ANSWER_S", 0.05)
    assert ask(tmp_path, QUERY) is None
    served.run_once(lambda: False)  # who asked has gone


def test_while_spark_is_off_the_answer_is_that_there_is_none(tmp_path: Path, served: Queries) -> None:
    assert ask_once(tmp_path, served) is None


def test_a_question_of_other_code_ends_nothing(tmp_path: Path, served: Queries) -> None:
    with socket.socket(socket.AF_UNIX) as other, address(tmp_path, "queries") as name:
        other.connect(name)
        other.sendall(pickle.dumps(QUERY).replace(b"Query", b"Quest"))
        served.run_once(lambda: False)
    assert ask_once(tmp_path, served) is None
