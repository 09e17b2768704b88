"""What salvage carries over to the file of copies is found in time by frames and rules, not by their product."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replication.core.frame import FILE_HEADER_BYTES
from replication.ledger.sql.queries import salvage
from tests.contract.ledger_stores import FLIGHTS, FRAME, claims, stream, wal

MANY = 300


def test_where_very_many_rules_begin_in_the_copies_of_very_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is locked meanwhile. Every third frame was copied."""
    compared: list[int] = []

    class Offset(int):
        def __gt__(self, other: int) -> bool:
            compared.append(self)
            return int(self) > other

        def __le__(self, other: int) -> bool:
            compared.append(self)
            return int(self) <= other

    frames = claims(stream(FLIGHTS, wal()), 0, MANY, FILE_HEADER_BYTES)
    readable = [SimpleNamespace(stream=f.stream, sequence=f.sequence, end=Offset(f.end)) for f in frames]
    copies = {
        (f.stream, f.sequence): SimpleNamespace(end=FILE_HEADER_BYTES + (n + 1) * FRAME)
        for n, f in enumerate(frames[::3])
    }
    began = [(rule, FILE_HEADER_BYTES + rule * FRAME) for rule in range(MANY)]  # after that many frames
    added: list[dict[str, int]] = []

    def execute(statement: Any, rows: Any = ()) -> Any:
        added.extend(rows)
        return began if statement.is_select else None

    monkeypatch.setattr(salvage, "count_up", lambda *_: 1)
    decisions: Any = SimpleNamespace(applied=dict, readable=SimpleNamespace(frames=readable))
    salvage.carry_over(SimpleNamespace(execute=execute), decisions, 1, 2, copies)  # type: ignore[arg-type]
    copied = [(row["begin"] - FILE_HEADER_BYTES) // FRAME for row in added]
    assert copied == [-(-rule // 3) for rule in range(MANY)]
    assert len(compared) < MANY * MANY / 10
