"""What ``failover --at`` takes, and what ``lostwrites export`` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.failover.role_change import RoleChange
from peer.failover.switchover import SwitchedOver
from replication.core.clock import moment_text
from replication.errors import RequestError
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.failover import _moment, lostwrites_discard, lostwrites_export, lostwrites_merge, switchover


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000_000),
        ("1769860800000000", 1_769_860_800_000_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
    ],
)
def test_a_time_is_a_text_or_microseconds(text: str, micros: int) -> None:
    assert _moment(text) == micros
    assert moment_text(micros).startswith(text[:10] if "T" in text else "2026-01-31")


@pytest.mark.parametrize(
    "text",
    ["noon", "0", "-5", "1769860800", "20260131", "253402300800000000", "999999999999999999", "9" * 5000],
)
def test_what_is_not_a_time_up_to_the_year_9999_is_refused_and_seconds_are_not_taken_for_1970(text: str) -> None:
    with pytest.raises(RequestError, match="is not a time") as refused:
        _moment(text)
    assert "microseconds since 1970" in refused.value.hint


def test_lost_writes_that_cannot_be_exported_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), Printer(True)

    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.rows_of", lambda *_: [pa.RecordBatch.from_pydict({"a": [1]})])
    file = tmp_path / "missing" / "lost.parquet"
    with pytest.raises(RequestError, match=r"lost\.parquet cannot be written: No such file"):
        lostwrites_export(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", file)
    file.parent.mkdir()
    lostwrites_export(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", file)
    assert pq.read_table(file).to_pylist() == [{"a": 1}]


def test_a_role_change_goes_on_though_its_steps_have_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def switching(context: RoleChange, to: str) -> SwitchedOver:
        context.report("west gets ready")
        done.append(to)
        return SwitchedOver("east", to, 2, 0.1, 0.2)

    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), Printer(False)

    monkeypatch.setattr("peer.failover.switchover.switchover", switching)
    monkeypatch.setattr(Printer, "line", no_reader)
    with pytest.raises(BrokenPipeError):
        switchover(cast(Invocation, SimpleNamespace(connect=connect)), "west")
    assert done == ["west"]


def test_where_no_lost_writes_are_kept_there_is_nothing_to_confirm_or_to_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(), Printer(False)

    monkeypatch.setattr("peer.failover.lost_writes.lost_writes", lambda *_: [])
    monkeypatch.setattr("peer.failover.lost_writes.merge", lambda *_: 0)
    for verb in (lostwrites_discard, lostwrites_merge):
        verb(cast(Invocation, SimpleNamespace(connect=connect)))
        assert capsys.readouterr().out == "no lost writes\n"
