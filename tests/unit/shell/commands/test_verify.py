"""What ``verify`` says besides its table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from peer.verify.verdict import Holding, Verdict
from replication.errors import WaitTimeoutError
from shell import main
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.verify import verify


def test_who_is_told_to_wait_longer_is_told_an_option_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    east, west = Holding("east", 1, "a"), Holding("west", 1, "b")
    moving = Verdict("ops.t", east, west, 1, moving=1)
    monkeypatch.setattr("peer.client.comparison.other_side", lambda *_: nullcontext(SimpleNamespace(name="west")))
    monkeypatch.setattr("peer.client.comparison.own_side", lambda *_: nullcontext())
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: moving)

    @contextmanager
    def connect() -> Iterator[Any]:
        rules = SimpleNamespace(peers=lambda: [SimpleNamespace(name="west")])
        yield SimpleNamespace(name="east", ledger=SimpleNamespace(rules=rules)), Printer(True)

    with pytest.raises(WaitTimeoutError, match="did not settle") as late:
        verify(cast(Invocation, SimpleNamespace(connect=connect)), "west", ["ops.t"])
    option = late.value.hint.split()[-1]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(main.make_app(), ["verify", "--help"]).output
    assert option.startswith("--") and option in shown.split()
