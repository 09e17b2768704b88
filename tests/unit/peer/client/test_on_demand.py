"""Replay and fold by command: errors of a late replay, and tables without rows."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from peer.client.on_demand import _tables, catch_up, fold_now
from peer.replay_report import ReplayReport
from replication import config as configuration
from replication.core.definition.schema import TableSpec
from replication.errors import LockedFileError, StorageError, WaitTimeoutError
from tests.fakes.tables import MemoryTables
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


@pytest.mark.parametrize(
    ("elsewhere", "hint"),
    [(False, "Replay stopped: run it again with a longer --timeout-s"), (True, "is silent for 2")],
)
def test_a_late_replay_goes_on_only_in_a_replay_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool, hint: str
) -> None:
    stopped = []

    def run_replay(config: Any, ledger: Any, stop: threading.Event, *_: Any) -> None:
        if elsewhere:
            raise LockedFileError("a replay process runs here")
        stopped.append(stop.wait(30))

    monkeypatch.setattr("peer.client.on_demand.run_replay", run_replay)
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    ledger, spec, told = new_ledger(tmp_path), keyed("ops.t"), list[str]()
    ReplayReport(at=time.time() - 20).save(ledger.replay)
    ledger.tables.create(spec)
    wal = OriginWal(ledger, tmp_path / "wal")
    wal.upsert(spec, [{"k": "a", "v": 1}])
    wal.register(closed=wal.now)
    with pytest.raises(WaitTimeoutError, match="bytes are still to be replayed after 0.3 s") as late:
        catch_up(config, ledger, 0.3, lambda _, silent: told.append(silent))
    assert hint in late.value.hint and stopped == ([] if elsewhere else [True])
    assert told[-1].startswith("is silent for 2") == elsewhere
    ledger.close()


def test_other_tables_are_folded_beside_one_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, tables, specs = new_ledger(tmp_path), MemoryTables(), [keyed("ops.empty"), keyed("ops.full")]
    for spec in specs:
        ledger.tables.create(spec)
    tables.create(specs[1])
    monkeypatch.setattr("peer.client.on_demand._tables", lambda config: nullcontext(tables))
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    assert fold_now(config, ledger, specs) == {"ops.empty": None, "ops.full": None}
    ledger.close()


def test_a_table_that_cannot_be_folded_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, tables, specs = new_ledger(tmp_path), MemoryTables(), [keyed("ops.a"), keyed("ops.b")]
    for spec in specs:
        tables.create(spec)
    failed = StorageError("the name of a folder is too long")

    def folding(_tables: object, _ledger: object, spec: TableSpec, *_: object) -> None:
        if spec.name == "ops.a":
            raise failed

    monkeypatch.setattr("peer.client.on_demand._tables", lambda config: nullcontext(tables))
    monkeypatch.setattr("peer.client.on_demand.fold", folding)
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    assert fold_now(config, ledger, specs) == {"ops.a": failed, "ops.b": None}
    ledger.close()


def test_an_error_of_spark_keeps_its_message_after_its_session(tmp_path: Path) -> None:
    class JavaError(Exception):
        __module__ = "pyspark.errors.exceptions.captured"

        def __str__(self) -> str:
            assert "ended" not in said
            return "For input string: x"

    said: list[str] = []
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    with pytest.raises(RuntimeError) as told, _tables(config):
        raise JavaError
    said.append("ended")
    assert str(told.value) == "JavaError: For input string: x"
