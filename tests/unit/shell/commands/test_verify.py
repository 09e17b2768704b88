"""What ``verify`` says besides its table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from peer.verify.verdict import Holding, Verdict
from replication.errors import DivergenceError, TableExistsError, WaitTimeoutError
from shell import main
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands import verify as verify_module
from shell.commands.verify import verify

EAST, WEST = Holding("east", 1, "a"), Holding("west", 1, "b")


@pytest.fixture
def invocation(monkeypatch: pytest.MonkeyPatch) -> Invocation:
    monkeypatch.setattr("peer.client.comparison.other_side", lambda *_: nullcontext(SimpleNamespace(name="west")))
    monkeypatch.setattr("peer.client.comparison.own_side", lambda *_: nullcontext())

    @contextmanager
    def connect() -> Iterator[Any]:
        rules = SimpleNamespace(peers=lambda: [SimpleNamespace(name="west")])
        yield SimpleNamespace(name="east", ledger=SimpleNamespace(rules=rules)), Printer(True)

    return cast(Invocation, SimpleNamespace(connect=connect))


def test_tables_that_differ_are_told_though_the_list_has_no_reader(
    invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Printer, "value", no_reader)
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: Verdict("ops.t", EAST, WEST, 1, differing=1))
    with pytest.raises(DivergenceError, match=r"1 of 1 tables differ: ops\.t"):
        verify(invocation, "west", ["ops.t"])
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: Verdict("ops.t", EAST, EAST, 1))
    with pytest.raises(BrokenPipeError):
        verify(invocation, "west", ["ops.t"])


def test_a_table_of_which_the_other_cluster_has_another_of_the_name_fails_the_comparison_of_all(
    invocation: Invocation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left_out = [TableExistsError(f"{name} on west is another table than on east") for name in ("ops.a", "ops.b")]
    monkeypatch.setattr("peer.client.comparison.shared_tables", lambda *_: ["ops.t"])
    monkeypatch.setattr("peer.client.comparison.unmatched_tables", lambda *_: left_out)
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: Verdict("ops.t", EAST, EAST, 1))
    with pytest.raises(TableExistsError, match=r"ops\.a on west is another table"):
        verify(invocation, "west")
    out, err = capsys.readouterr()
    assert "ops.t" in out and err.endswith("\nnot compared: ops.b on west is another table than on east\n")
    assert "ops.a" not in err, "which the error names"
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: Verdict("ops.t", EAST, WEST, 1, differing=1))
    with pytest.raises(DivergenceError):
        verify(invocation, "west")
    assert "not compared: ops.a on west" in capsys.readouterr().err
    verify_named = Verdict("ops.t", EAST, EAST, 1)
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: verify_named)
    verify(invocation, "west", ["ops.t"])


def test_who_is_told_to_wait_longer_is_told_an_option_that_there_is(
    invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Verdict("ops.t", EAST, WEST, 1, moving=1)
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: moving)
    with pytest.raises(WaitTimeoutError, match="did not settle") as late:
        verify(invocation, "west", ["ops.t"])
    option = late.value.hint.split()[-1]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(main.make_app(), ["verify", "--help"]).output
    assert option.startswith("--") and option in shown.split()


def test_who_compares_a_held_table_is_not_told_to_wait_longer(
    invocation: Invocation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Verdict("ops.t", EAST, replace(WEST, held="its schema is odd"), 0, moving=1)
    monkeypatch.setattr("peer.client.comparison.compare_sides", lambda *_: held)
    with pytest.raises(WaitTimeoutError, match=r"^ops\.t is held: nobody can tell") as given_up:
        verify(invocation, "west", ["ops.t"])
    assert "--timeout-s" not in given_up.value.hint
    assert "ops.t is held at west: its schema is odd" in capsys.readouterr().err


def test_how_far_it_is_is_told_now_and_then_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(verify_module._shown(["ops.a", "ops.b"], Printer(False))) == ["ops.a", "ops.b"]
    assert capsys.readouterr().err == "", "it was soon done"
    monkeypatch.setattr(verify_module, "_LINE_EVERY_S", 0.0)
    assert list(verify_module._shown(["ops.a", "ops.b"], Printer(False))) == ["ops.a", "ops.b"]
    assert "1 of 2 tables compared, now ops.b" in capsys.readouterr().err
