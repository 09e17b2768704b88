"""The worker reads its rules again when the ledger has changed, and while they depend on the time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from replication.coordination.session import Coordination
from replication.core.succession import Succession
from replication.errors import CoordinationError, FormatError
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.worker.rules import RulesCache
from tests.contract.ledger_stores import EAST, WEST, peer, table


def test_rules_are_read_once_until_the_ledger_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url, WEST)
    ledger, other = open_ledger(url), open_ledger(url)
    workers: list[Any] = [SimpleNamespace(), SimpleNamespace()]
    coordination = cast(Coordination, SimpleNamespace(members=lambda kind: workers or _damaged()))
    reads: list[int] = []
    clock = [100.0]
    read = type(ledger.tables).revision
    monkeypatch.setattr(type(ledger.tables), "revision", lambda tables: reads.append(1) or read(tables))
    try:
        other.tables.create(table("ops.one", 1))
        rules = RulesCache(ledger, coordination, lambda: clock[0])
        assert [rules.refresh() for _ in range(4)] == [False] * 4 and len(reads) == 1
        other.rules.define(peer(), 0)
        other.rules.enable(peer().name, table("ops.one", 1).uuid, ["default"], "ops.one", 0)
        assert rules.refresh() and rules.refresh() is False and len(reads) == 2

        other.successions.record(Succession(EAST, WEST, 3, 7, is_planned=False))
        assert rules.refresh() and rules.refresh() is False, "peers are to hear who took over"

        monkeypatch.setattr(ledger, "decided", lambda: None)
        monkeypatch.setattr(type(ledger.tables), "revision", _fails)
        with capture_logs() as logs:
            assert rules.refresh() is None and rules.refresh() is None
        assert [entry["event"] for entry in logs] == ["rules_not_read"], "a failure is logged when it begins"
        monkeypatch.undo()
        assert rules.refresh() is False and rules.rate(peer().name) == 0.0

        other.rules.set_rate(peer().name, 1000, 0)
        rules.refresh()
        workers.append(SimpleNamespace())
        rules.refresh()
        assert rules.rate(peer().name) == pytest.approx(1000.0 / 2), "what time alone changes is read every 3 s"
        clock[0] += 3.0
        rules.refresh()
        assert rules.rate(peer().name) == pytest.approx(1000.0 / 3), "workers share it, and one more came"
        workers.clear()
        clock[0] += 3.0
        assert rules.refresh() is False and rules.rate(peer().name) == pytest.approx(1000.0 / 3)
    finally:
        ledger.close()
        other.close()


def _fails(tables: object) -> int:
    raise CoordinationError("the ledger does not answer")


def _damaged() -> list[object]:
    raise FormatError("the member node in ZooKeeper holds no fields")
