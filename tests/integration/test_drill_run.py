"""A whole drill in this process: what it measures, what fails it, and that it leaves nothing but its report."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from peer.drill import run as run_module
from peer.drill.page import save_report
from peer.drill.report import DrillReport
from peer.drill.run import DrillRequest, RunningDrill
from peer.tables.read import read
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.errors import RequestError
from replication.ledger.base import SkewedClock
from replication.link.base import Description
from shell.cli.render import Printer
from shell.commands.drill import _show
from tests.drilling import ForkSite
from tests.tables_made import keyed


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ForkSite]:
    made = ForkSite(tmp_path, drills={"apply_timeout_s": 0.5})
    spec = made.table(keyed("ops.t"))
    made.put(spec, {"k": "a", "v": 1}, {"k": "b", "v": 2})
    made.replay()
    yield made
    made.close()


def run(site: ForkSite, *probes: Path, **more: float) -> DrillReport:
    with site.cluster() as cluster:
        return RunningDrill(cluster, DrillRequest(probes, target="east.toml", **more)).run()  # type: ignore[arg-type]


def probe(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_drill_passes_and_leaves_only_its_report_and_the_tagged_instant(site: ForkSite, tmp_path: Path) -> None:
    checks = probe(
        tmp_path,
        "checks.sql",
        "-- both rows\nselect count(*) = 2 from ops.t;\n"
        "insert into ops.t values ('c', 3); select sum(v) = 6, true from ops.t;\n"
        "create temp table mine as select * from ops.t; select k, v from mine order by k;",
    )
    environment = probe(
        tmp_path,
        "environment.sh",
        'echo "$WALSHIP_CLUSTER $WALSHIP_DRILL_INSTANT"; test -s "$WALSHIP_DRILL_FOLDER/fork.json"',
    )
    report = run(site, checks, environment)
    assert report.problems == () and report.drill.passed, report.problems
    first, second = report.probes
    assert [step.title for step in first.steps][:2] == ["both rows", "insert into ops.t values ('c', 3)"]
    assert [step.answered.checked for step in first.steps] == [True, None, True, None, None]
    assert (first.steps[1].answered.changed, first.steps[-1].answered.rows[-1]) == (1, ("c", "3"))
    assert second.output == f"east.toml {report.drill.instant}\n"
    assert [phase.name for phase in report.phases] == ["plan", "apply", "fork", "read", "probes"]
    assert report.drill.rpo_s is not None and report.drill.rpo_s < 60 and report.drill.rto_s is not None
    assert report.samples and "ACTIVE" in report.failover_note
    tag = report.drill.tag
    assert site.traces() == [f"ops.t__changes {tag}"], "the tested instant is tagged, and nothing else is left"
    assert site.ledger.drills.all() == [report.drill]
    assert report.drill.kept_until > report.drill.ended
    page = Path(report.drill.report)
    text = page.read_text()
    assert "<svg" in text and "both rows" in text and "src=" not in text and "href=" not in text
    assert json.loads((page.parent / "report.json").read_text())["drill"]["id"] == report.drill.id
    assert sorted(file.name for file in page.parent.iterdir()) == ["report.html", "report.json"]


def test_of_several_clusters_that_send_here_a_failover_from_the_only_active_one_is_planned(
    site: ForkSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.coordination.set_role(RoleState(Role.STANDBY, 2), site.coordination.role().version)
    west, north = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("west", "north"), 1))
    for source in (west, north):
        site.ledger.landing.declare_routes([InboundRoute(source, site.ledger.tables.all()[0].uuid, "default", 1)])
    roles = {west: Role.STANDBY, north: Role.ACTIVE}
    monkeypatch.setattr(run_module, "answer", lambda _, source: Description(source, "test", roles[source].value, 1))
    report = run(site)
    assert report.failover is not None and report.failover.origin == "north" and not report.failover_note
    roles[north] = Role.STANDBY
    report = run(site)
    assert report.failover is None and "several clusters send tables to east: north, west" in report.failover_note


def test_a_drill_whose_report_is_not_there_yet_has_not_ended(site: ForkSite, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def seen(report: DrillReport, folder: Path) -> Path:
        ended.append(site.ledger.drills.all()[0].ended)
        return save_report(report, folder)

    monkeypatch.setattr(run_module, "save_report", seen)
    report = run(site)
    assert ended == [0] and Path(report.drill.report).is_file(), "killed here it was killed, and did not pass"
    assert site.ledger.drills.all()[0].passed


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("false.sql", "select count(*) = 3 from ops.t; select true", "the check is not true"),
        ("empty.sql", "select v > 0 from ops.t where k = 'z'", "the check has no row"),
        ("null.sql", "select null::boolean", "the check is not true"),
        ("wrong.sql", "select * from ops.nothing", "nothing"),
        ("nothing.sql", "-- only a comment\n", "has no statement"),
        ("broken.sql", "select (", "syntax"),
        ("slow.sql", "select count(*) > 0 from range(1000000) a, range(1000000) b", "stopped after 5 s"),
        ("slow.sh", "trap '' TERM; sleep 600 & sleep 600", "stopped after 5 s"),
        ("exit.sh", "echo reason; exit 3", "it exited with 3"),
        ("killed.sh", "kill -9 $$", "killed by SIGKILL"),
        ("error.py", "raise ValueError('no')", "it exited with 1"),
    ],
)
def test_a_probe_that_does_not_pass_fails_the_drill_and_the_others_run(
    site: ForkSite, tmp_path: Path, name: str, text: str, why: str
) -> None:
    bad, good = probe(tmp_path, name, text), probe(tmp_path, "good.sql", "select count(*) = 2 from ops.t")
    report = run(site, bad, good, probe_timeout_s=5.0 if why == "stopped after 5 s" else 60.0)
    assert [each.passed for each in report.probes] == [False, True]
    assert why in report.problems[0] and name in report.problems[0] and not report.drill.passed
    assert why in report.drill.why
    assert len(site.traces()) == 1


def test_an_executable_script_that_names_no_program_is_run_by_sh(site: ForkSite, tmp_path: Path) -> None:
    script = probe(tmp_path, "check.sh", 'test -n "$WALSHIP_DRILL"\n')
    script.chmod(0o755)
    assert run(site, script).problems == ()


def test_a_probe_that_cannot_be_run_is_refused_before_anything_is_done(site: ForkSite, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no probe"):
        run(site, tmp_path / "none.sql")
    with pytest.raises(RequestError, match="cannot be run"):
        run(site, probe(tmp_path, "data.csv", "a,b"))
    assert site.ledger.drills.all() == [] and site.traces() == []


def test_a_drill_waits_for_what_has_landed_and_fails_when_it_does_not_come(site: ForkSite) -> None:
    spec = site.ledger.tables.all()[0]
    site.put(spec, {"k": "c", "v": 3})
    report = run(site)
    assert "not in the tables within 0.5 s" in report.problems[0]
    site.replay()
    assert run(site).problems == ()


def test_the_recovery_point_is_not_known_while_a_clock_is_ahead(
    site: ForkSite, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time_ns() // 1000
    site.ledger.time.note_ahead(SkewedClock(ClusterId("north", UUID(int=7)), now + 3_600_000_000, now))
    report = run(site)
    assert report.drill.passed and report.drill.instant and report.drill.rpo_s is None
    assert "not known: a clock is ahead" in Path(report.drill.report).read_text()
    _show(report, Printer(as_json=False))
    assert "RPO not known, since a clock is ahead (walship status)" in " ".join(capsys.readouterr().out.split())


def test_rows_that_arrive_during_a_drill_are_replayed_and_not_in_its_fork(site: ForkSite, tmp_path: Path) -> None:
    spec = site.ledger.tables.all()[0]
    slow = probe(
        tmp_path, "slow.sh", f"touch {tmp_path}/began; while test ! -e {tmp_path}/go; do sleep 0.05; done; exit 0"
    )
    after = probe(tmp_path, "after.sql", "select count(*) = 2 from ops.t")
    reports: list[DrillReport] = []
    thread = threading.Thread(target=lambda: reports.append(run(site, slow, after)))
    thread.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        os.sched_yield()
    site.put(spec, {"k": "new", "v": 1})
    site.replay()
    site.fold(spec)
    assert {row["k"] for row in read(site.tables, spec).read_all().to_pylist()} == {"a", "b", "new"}
    (tmp_path / "go").touch()
    thread.join()
    assert reports[0].problems == (), reports[0].problems


def test_a_table_that_cannot_be_forked_with_the_others_is_left_out_and_fails_the_drill(site: ForkSite) -> None:
    site.table(keyed("ops.late"))
    site.ledger.time.replicated_by_table = lambda: {  # type: ignore[method-assign]
        spec.uuid: site.ledger.time.replicated(spec.uuid) for spec in site.ledger.tables.all() if spec.name == "ops.t"
    }
    with site.cluster() as cluster:
        cluster.ledger.time.replicated_by_table = site.ledger.time.replicated_by_table  # type: ignore[method-assign]
        report = RunningDrill(cluster, DrillRequest()).run()
    assert report.tables == ("ops.t",) and "ops.late is not in the fork" in report.problems[0]


def test_probes_whose_names_and_output_are_not_utf_8_are_in_the_report(site: ForkSite, tmp_path: Path) -> None:
    wrong = probe(tmp_path, os.fsdecode(b"wrong\xff.sql"), "select false")
    binary = probe(tmp_path, os.fsdecode(b"binary\xff.sh"), r"printf 'a\377\000b'; exit 3")
    report = run(site, wrong, binary)
    assert [(each.name, each.passed) for each in report.probes] == [
        (r"wrong\udcff.sql", False),
        (r"binary\udcff.sh", False),
    ]
    assert r"probe binary\udcff.sh: it exited with 3" in site.ledger.drills.all()[0].why
    page = Path(report.drill.report).read_text(encoding="utf-8")
    assert r"binary\udcff.sh" in page and "a\N{REPLACEMENT CHARACTER}\0b" in page
