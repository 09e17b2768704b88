"""What the verbs of tables say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.tables import TableOptions, createtable
from tests.tables_made import keyed


@pytest.mark.parametrize(("before", "told"), [(0, "ops.t is created"), (1, "ops.t was here already, and has all")])
def test_a_table_like_a_peers_that_was_here_already_is_not_called_new(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], before: int, told: str
) -> None:
    spec = keyed("ops.t")
    peering = SimpleNamespace(adopt=lambda *_: spec)

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(ledger=None, peering=peering, tables=lambda: [spec] * before), Printer(False)

    monkeypatch.setattr("shell.commands.tables.refuse_standby", lambda _: None)
    createtable(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", TableOptions(like="west"))
    assert capsys.readouterr().out.startswith(told)
