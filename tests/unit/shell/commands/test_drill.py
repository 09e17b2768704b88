"""What ``walship drill`` asks for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from peer.drill import run
from peer.drill.schedule import DrillSchedule
from replication.core.roles import Role
from replication.errors import CoordinationError, RequestError
from replication.ledger.base import Drill
from replication.settings import DrillsSection
from replication.wall_clock import now_us
from shell.cli.find import FoundCluster
from shell.cli.invocation import Invocation
from shell.cli.render import Printer, moment_text
from shell.commands import drill

CLUSTER = SimpleNamespace(config=SimpleNamespace(drills=DrillsSection()))


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
        yield CLUSTER, FoundCluster("east", target), Printer(True)

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


@pytest.mark.parametrize("passed", [True, False])
def test_a_drill_that_did_not_pass_exits_so_though_its_report_has_no_reader(
    passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield CLUSTER, FoundCluster("east", "east.toml"), Printer(True)

    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    report = SimpleNamespace(drill=SimpleNamespace(report="", passed=passed))
    monkeypatch.setattr(drill, "_opened", opened)
    monkeypatch.setattr(drill, "_show", no_reader)
    monkeypatch.setattr(run, "RunningDrill", lambda *_: SimpleNamespace(run=lambda: report))
    monkeypatch.setattr("os.nice", lambda _: 0)
    with pytest.raises(BrokenPipeError if passed else typer.Exit):
        drill.drill(Invocation(), "east")


def test_each_phase_of_a_drill_is_told_in_words() -> None:
    phases = re.findall(r'self\._phase\("(.*?)"\)', inspect.getsource(run))
    assert set(phases) == set(drill._PHASES)


def test_the_next_drill_is_told_as_the_schedule_runs_it_after_the_clock_was_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = now_us()
    DrillSchedule("0 3 * * *", "east", (), full=False, folder="/", since=now).save(tmp_path)
    ahead = Drill("20990101t030000_0000", "h0", "", now + 400 * 86_400_000_000, 0, ended=1, scheduled=True)
    ledger = SimpleNamespace(drills=SimpleNamespace(all=lambda: [ahead]))
    config = SimpleNamespace(drills_dir=tmp_path, cluster=SimpleNamespace(host="h0"))
    drill._list(cast(Any, SimpleNamespace(ledger=ledger, config=config)), Printer(False))
    due = DrillSchedule("0 3 * * *", "east", (), full=False, folder="/", since=now).due((), "h0")
    assert f"next {moment_text(due)}" in capsys.readouterr().out


@pytest.mark.parametrize("active", [{"east"}, {"east", "north"}], ids=["one is ACTIVE", "two are"])
def test_the_switchover_is_planned_on_the_active_one_of_several_clusters_whose_files_are_here(
    active: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def coordination(name: str) -> Any:
        if name == "south":
            raise CoordinationError("ZooKeeper of south does not answer", "")
        return SimpleNamespace(state=SimpleNamespace(role=Role.ACTIVE if name in active else Role.STANDBY))

    @contextmanager
    def connected(name: str, **_: object) -> Iterator[Any]:
        yield SimpleNamespace(name=name, coordination=SimpleNamespace(role=lambda: coordination(name)))

    routes = [SimpleNamespace(source=SimpleNamespace(name=name)) for name in ("east", "north", "south")]
    west = SimpleNamespace(name="west", ledger=SimpleNamespace(landing=SimpleNamespace(routes=lambda: routes)))
    monkeypatch.setattr(drill, "_found", lambda name: FoundCluster(name, name))
    monkeypatch.setattr("peer.client.connect.connect", connected)
    monkeypatch.setattr(
        "peer.failover.switchover.plan_switchover", lambda context, to: (context.cluster.name, to), raising=True
    )
    plan = drill._rehearsal(cast(Any, west))
    if len(active) == 1:
        assert cast(Any, plan()) == ("east", "west")
        return
    with pytest.raises(RequestError, match="the only ACTIVE one must be here"):
        plan()
