"""What ``status`` says of processes and of replay's work."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from rich.console import Console

from peer.replay_report import ReplayReport
from peer.status import role_processes
from peer.status.collect import collect
from peer.status.members import Host, Members, members_of
from peer.status.role_processes import ProcessState
from replication.coordination.host import host_record
from replication.coordination.paths import MemberKind
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession
from replication.ledger.commit_steps import ROLE_CHANGE, NewSequence, SequenceId
from replication.wall_clock import now_us
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.status import status
from shell.status.page import _show_hosts, show_status, work_text
from tests.certificates import tls_section
from tests.integration.test_link_tls import AUTHORITY
from tests.sites import Site

ROOT = Path(__file__).parents[4]


def test_the_work_of_a_newer_walship_on_another_host_is_shown() -> None:
    report = ReplayReport(since=1.0, at=2.0, rounds=3, work={"driver_batches": 7, "counted_later": 1})
    assert "3 rounds" in work_text(report) and "7 batches" in work_text(report)


def test_a_frozen_worker_is_told_from_one_that_was_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role_processes, "_SOON_S", 0.0)
    site = Site(tmp_path, "east")
    err = io.StringIO()

    def noted() -> str:
        err.truncate(0)
        printer = Printer(False, Console(file=io.StringIO()), Console(file=err, width=200))
        show_status(printer, collect(site.config, site.ledger, members_of(site.coordination)))
        return err.getvalue()

    assert "does not answer" not in noted()
    ProcessState("worker", os.getpid(), "ready", at=time.time()).write(site.config.run_dir)
    assert f"worker (process {os.getpid()}) runs here and does not answer" in noted()
    site.coordination.put_host(host_record(site.config))
    site.coordination.enrol(MemberKind.WORKERS, "h0", {})
    assert "does not answer" not in noted()
    site.close()


def test_a_cluster_that_zookeeper_does_not_have_is_not_taken_for_a_silent_zookeeper(tmp_path: Path) -> None:
    """It was given the port of another cluster's."""
    site, err = Site(tmp_path, "east"), io.StringIO()
    unknown = Members(problem="there is no cluster at /walship/east. Start it: walship up --config FILE")
    printer = Printer(False, Console(file=io.StringIO()), Console(file=err, width=400))
    show_status(printer, collect(site.config, site.ledger, unknown))
    assert "does not tell what runs: there is no cluster at /walship/east. Start it: walship up" in err.getvalue()
    assert "does not answer" not in err.getvalue()
    site.close()


def test_a_certificate_that_ends_soon_or_has_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tls_section(tmp_path, AUTHORITY.issue("east"))
    (tmp_path / "cert").write_bytes(AUTHORITY.issue("east").cert + Path(files["ca"]).read_bytes())  # with its authority
    site = Site(tmp_path, "east", tls=files)

    def noted(hours: int) -> str:
        monkeypatch.setattr("peer.status.collect.now_us", lambda: now_us() + hours * 3_600_000_000)
        err = io.StringIO()
        printer = Printer(False, Console(file=io.StringIO()), Console(file=err, width=400))
        show_status(printer, collect(site.config, site.ledger, Members()))
        return err.getvalue()

    assert "certificate" not in noted(1), "it is of a day, and not in the last fifth of that"
    for hours in (21, 30):
        assert f"the certificate {files['cert']} ends 20" in noted(hours)
    site.close()


def test_a_hint_that_is_a_question_is_not_followed_by_a_full_stop(tmp_path: Path) -> None:
    site, err = Site(tmp_path, "east"), io.StringIO()
    printer = Printer(False, Console(file=io.StringIO()), Console(file=err, width=400))
    for problem in ("it does not answer. Is its TLS right?", "it does not answer"):
        show_status(printer, collect(site.config, site.ledger, Members(problem=problem)))
    assert "Is its TLS right? Until it does" in err.getvalue()
    assert "it does not answer. Until it does" in err.getvalue()
    site.close()


def test_a_successor_that_is_standby_says_that_no_cluster_takes_writes(tmp_path: Path) -> None:
    """A failover was abandoned before it took writes."""
    site = Site(tmp_path, "east")
    west = ClusterId("west", uuid4())
    err = io.StringIO()

    def noted() -> str:
        err.truncate(0)
        printer = Printer(False, Console(file=io.StringIO()), Console(file=err, width=200))
        show_status(printer, collect(site.config, site.ledger, members_of(site.coordination)))
        return err.getvalue()

    site.ledger.successions.record(Succession(west, site.cluster, 2, 7, is_planned=False))
    assert "no cluster takes writes" not in noted(), "it is ACTIVE"
    site.coordination.set_role(RoleState(Role.STANDBY, 2), site.coordination.role().version)
    assert "no cluster takes writes, as far as is known here: east took over from west" in noted()
    site.ledger.steps.put_all([NewSequence(SequenceId("east", ROLE_CHANGE), ("{}",))])
    assert "walship readonly off" not in noted(), "it is refused until the failover is finished or abandoned"
    site.ledger.steps.remove("east", ROLE_CHANGE)
    site.ledger.successions.record(Succession(site.cluster, west, 3, 8, is_planned=True))
    assert "no cluster takes writes" not in noted()
    site.close()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_watched_page_takes_the_place_of_the_one_before_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()

    @contextmanager
    def connect() -> Iterator[Any]:
        yield (
            SimpleNamespace(ledger=None, name="east", status=lambda: None),
            Printer(False, Console(file=out, force_terminal=terminal, color_system=None)),
        )

    def slept(_: float) -> None:
        if out.getvalue().count("page") == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("shell.commands.status.show_status", lambda printer, _: printer.line("page"))
    monkeypatch.setattr("time.sleep", slept)
    with pytest.raises(KeyboardInterrupt):
        status(cast(Invocation, SimpleNamespace(connect=connect)), watch=True)
    clear = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False)
    clear.clear()
    cleared = cast(io.StringIO, clear.file).getvalue()
    assert out.getvalue() == (f"{cleared}east\npage\n" if terminal else "page\n") * 2


def test_the_cookbook_shows_what_status_says_of_a_host_that_is_down() -> None:
    down = Host("w2", "/srv/west", unapplied_bytes=831_898, away="its receiver is not running")
    said = io.StringIO()
    found = SimpleNamespace(members=Members(hosts=(down,)))
    _show_hosts(Printer(False, err=Console(file=said, width=500)), cast(Any, found))
    assert said.getvalue().strip() in (ROOT / "deploy/cookbook/several-hosts.md").read_text()
