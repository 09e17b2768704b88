"""An SQL probe is stopped at its timeout, whatever it does at that moment."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from peer.drill import probes
from peer.drill.fork import ForkTables
from peer.drill.probes import run_probe
from peer.drill.session import Answered
from replication.errors import RequestError

stopped: list[str] = []


class Between:
    """A session that prepares its next query when the timeout is over, and then runs it until it is interrupted."""

    def __init__(self, fork: ForkTables) -> None:
        self._is_prepared, self._interrupted = threading.Event(), threading.Semaphore(0)

    def interrupt(self) -> None:
        if self._is_prepared.is_set():
            self._interrupted.release()
        self._is_prepared.set()

    def run(self, query: str, rows_max: int) -> Answered:
        assert self._is_prepared.wait(60)
        assert self._interrupted.acquire(timeout=60), "nothing ended the query"
        stopped.append(query)
        raise RequestError("INTERRUPT Error: Interrupted!")

    def close(self) -> None:
        """Nothing to close."""


def test_a_probe_whose_timeout_comes_between_two_queries_is_stopped_in_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "ForkSession", Between)
    probe = tmp_path / "long.sql"
    probe.write_text("-- all of it\nselect count(*) from t, t u;")
    stopped.clear()
    result = run_probe(probe, cast(ForkTables, cast(Any, None)), {}, 0.01)
    assert not result.passed and result.why == "all of it: it was stopped after 0.01 s"
    assert len(stopped) == 1
