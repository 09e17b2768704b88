"""What ``walship drill`` asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.drill import run
from shell.cli.find import FoundCluster
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands import drill


@pytest.mark.parametrize(
    ("target", "expected"),
    [("zk1:2181,zk2:2181/walship/east", "zk1:2181,zk2:2181/walship/east"), ("walship.toml", "{folder}/walship.toml")],
)
def test_probes_find_the_cluster_wherever_they_run(
    target: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walship.toml").touch()
    asked: list[str] = []

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(), FoundCluster("east", target), Printer(True)

    class Running:
        def __init__(self, cluster: object, request: run.DrillRequest) -> None:
            asked.append(request.target)

        def run(self) -> Any:
            return SimpleNamespace(drill=SimpleNamespace(report="", passed=True))

    monkeypatch.setattr(drill, "_opened", opened)
    monkeypatch.setattr(drill, "_show", lambda *_: None)
    monkeypatch.setattr(run, "RunningDrill", Running)
    monkeypatch.setattr("os.nice", lambda _: 0)
    drill.drill(Invocation(), "east")
    assert asked == [expected.format(folder=tmp_path)]
