"""What the verbs of tables say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.tables import TableOptions, altertable, createtable, describetable
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


def test_a_described_table_is_shown_without_what_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    spec = keyed("ops.t")
    rule = SimpleNamespace(table=spec.uuid, peer="west", group="default", remote_table="ops.t")
    ledger = SimpleNamespace(rules=SimpleNamespace(all=lambda: [rule]))

    def described(as_json: bool) -> str:
        @contextmanager
        def connect() -> Iterator[Any]:
            yield SimpleNamespace(table=lambda _: spec, ledger=ledger), Printer(as_json)

        describetable(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t")
        return capsys.readouterr().out

    shown = described(False)
    assert "replicated_to      west: group default as ops.t\n" in shown and "partition" not in shown
    told = json.loads(described(True))
    assert (told["partition"], told["replicated_to"]) == ("", ["west: group default as ops.t"])


def test_who_drops_a_column_that_hooks_read_is_told_what_they_find_instead(capsys: pytest.CaptureFixture[str]) -> None:
    spec, derived = keyed("ops.t"), keyed("ops.t_out")
    derivation = SimpleNamespace(table=derived.uuid, source=spec.uuid)
    ledger = SimpleNamespace(derivations=SimpleNamespace(all=lambda: [derivation]))

    @contextmanager
    def connect() -> Iterator[Any]:
        altered = SimpleNamespace(alter_table=lambda *_, **__: spec, tables=lambda: [spec, derived], ledger=ledger)
        yield altered, Printer(False)

    altertable(cast(Invocation, SimpleNamespace(connect=connect)), "ops.t", drop="n")
    told = " ".join(capsys.readouterr().err.split())
    assert "so a condition on n leaves these rows out" in told and told.endswith(": ops.t_out")
