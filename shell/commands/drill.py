"""drill: rehearse a failover on a fork of a cluster's tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from replication.core.roles import Role
from replication.error_text import counted
from replication.errors import ConfigError, CoordinationError, RequestError
from replication.priority import lower_process
from replication.wall_clock import now_us
from shell.cli.find import FoundCluster, current_folder, find_cluster
from shell.cli.invocation import Invocation, timeout_option
from shell.cli.render import Printer, moment_text, print_before_error, seconds_text

if TYPE_CHECKING:
    from peer.client.cluster import Cluster
    from peer.drill.report import DrillReport
    from peer.failover.switchover import SwitchoverPlan


_PHASES = {
    "plan": "planning the failover",
    "apply": "waiting until what has landed is in the tables",
    "fork": "forking the tables as of one time",
    "read": "reading every table of the fork",
    "probes": "running the probes",
    "switchover plan": "planning the switchover",
}


def drill(
    invocation: Invocation,
    of: Annotated[
        str, Argument(metavar="CLUSTER", help="The cluster that would take over; run it on one of its hosts.")
    ],
    probe: Annotated[
        list[Path] | None,
        Option("--probe", "-p", metavar="FILE", help="An SQL file or a script to run on the fork; repeatable."),
    ] = None,
    full: Annotated[
        bool, Option("--full", help="Also plan the switchover, on the ACTIVE cluster, whose file must be here.")
    ] = False,
    probe_timeout_s: Annotated[
        float | None,
        timeout_option("How long a probe may take. Default: [drills] probe_timeout_s.", "--probe-timeout-s"),
    ] = None,
    schedule: Annotated[
        str,
        Option(
            "--schedule",
            metavar="CRON",
            help='Have walship up run such drills on this host, for instance "0 3 * * *" (UTC); off ends that.',
        ),
    ] = "",
    history: Annotated[bool, Option("--history", help="List the drills of the cluster, and run none.")] = False,
    scheduled: Annotated[bool, Option("--scheduled", hidden=True)] = False,
) -> None:
    """Rehearse a failover on a fork of a cluster's tables, at low CPU priority, while everything else goes on.

    An SQL probe passes if each statement succeeds, and every query of only boolean columns has rows that are all true.
    A script passes if it exits with 0.
    """
    probes = tuple(path.absolute() for path in probe or ())
    with _opened(invocation, of) as (cluster, found, printer):
        if history:
            _list(cluster, printer)
            return
        if schedule:
            _schedule(cluster, schedule, probes, full, probe_timeout_s, printer)
            return
        lower_process(cluster.config.drills.nice)  # before more is loaded; shipping and replay come first
        from peer.drill.run import DrillRequest, RunningDrill

        rehearse = _rehearsal(cluster) if full else None
        target = os.path.abspath(found.target) if os.path.isfile(found.target) else found.target
        request = DrillRequest(probes, rehearse, target, probe_timeout_s, scheduled, _telling(printer))
        _tell(RunningDrill(cluster, request).run(), printer)


@contextmanager
def _opened(invocation: Invocation, name: str) -> Iterator[tuple[Cluster, FoundCluster, Printer]]:
    """The cluster that is drilled, by its name or, if ``--cluster`` or the environment names it, as that says."""
    found = invocation.find_if_any()
    if found is None or found.name != name:
        found = _found(name)
    if found is None:
        raise RequestError(
            f"a drill of {name} is run on a host of {name}, and its configuration was not found here",
            f"There: walship drill {name}. If its file is here: walship --cluster FILE drill {name}",
        )
    with Invocation(found.target, invocation.as_json, invocation.debug).connect() as (cluster, printer):
        yield cluster, found, printer


def _telling(printer: Printer) -> Callable[[str], None]:
    return lambda phase: printer.progress(_PHASES.get(phase, phase))


def _rehearsal(cluster: Cluster) -> Callable[[], SwitchoverPlan]:
    """Plans the switchover from the ACTIVE cluster to this one."""

    def plan() -> SwitchoverPlan:
        from peer.client.connect import connect
        from peer.failover.role_change import RoleChange
        from peer.failover.switchover import plan_switchover

        sources = {route.source.name for route in cluster.ledger.landing.routes()}
        here = [found.target for name in sorted(sources) if (found := _found(name)) is not None]
        with ExitStack() as opened:
            clusters = [opened.enter_context(connect(target, for_writing=False)) for target in here]
            active = clusters if len(clusters) == 1 else list(filter(_is_active, clusters))
            if len(active) == 1:
                return plan_switchover(RoleChange(active[0]), cluster.name)
        known = ", ".join(sorted(sources)) or "none"
        raise RequestError(
            f"the clusters that send to {cluster.name} are {known}, and the file of the only ACTIVE one must be here",
            "Run it in a folder that has both clusters' files",
        )

    return plan


def _is_active(cluster: Cluster) -> bool:
    """Whether a cluster is ACTIVE, as far as it answers."""
    with suppress(CoordinationError):
        return cluster.coordination.role().state.role is Role.ACTIVE
    return False


def _found(name: str) -> FoundCluster | None:
    """The cluster of that name whose file is here."""
    try:
        return find_cluster(name, {}, current_folder())
    except ConfigError:
        return None


def _schedule(
    cluster: Cluster, cron: str, probes: Sequence[Path], full: bool, probe_timeout_s: float | None, printer: Printer
) -> None:
    from peer.drill.probes import check_probe
    from peer.drill.schedule import DrillSchedule

    folder = cluster.config.drills_dir
    if cron == "off":
        was = DrillSchedule.remove(folder)
        printer.value(
            {"schedule": ""}, "drills are no longer scheduled here" if was else "no drills were scheduled here"
        )
        return
    for probe in probes:
        check_probe(probe)
    now = now_us()
    made = DrillSchedule(cron, cluster.name, tuple(map(str, probes)), full, os.getcwd(), now, probe_timeout_s)
    due = made.due((), cluster.config.cluster.host)
    made.save(folder)
    text = f"walship up runs a drill of {cluster.name} on this host at {cron!r} (UTC), next {moment_text(due)}"
    printer.value({"schedule": cron, "next": due}, text)


def _tell(report: DrillReport, printer: Printer) -> None:
    """Print what a drill found, and exit with 1 if it did not pass."""
    with print_before_error(not report.drill.passed):
        _show(report, printer)
    if not report.drill.passed:
        raise typer.Exit(1)


def _show(report: DrillReport, printer: Printer) -> None:
    if printer.as_json:
        printer.value({**asdict(report), "page": report.drill.report})
        return
    rows = [
        {"probe": each.name, "result": "passed" if each.passed else "failed", "took": seconds_text(each.seconds)}
        for each in report.probes
    ]
    if rows:
        printer.rows(rows)
    drill = report.drill
    verdict = "passed" if drill.passed else "did not pass"
    measured = ""
    if drill.instant:
        rpo = "not known, since a clock is ahead (walship status)" if drill.rpo_s is None else seconds_text(drill.rpo_s)
        measured = f", as of {moment_text(drill.instant)}: RPO {rpo}"
        measured += "" if drill.rto_s is None else f", RTO {seconds_text(drill.rto_s)}"
    printer.line(
        f"drill {drill.id} {verdict}{measured}. {counted(len(report.tables), 'table')}. Report: {drill.report}"
    )
    for problem in report.problems:
        printer.note(problem)


def _list(cluster: Cluster, printer: Printer) -> None:
    from peer.status.drills import drill_health

    drills = cluster.ledger.drills.all()
    running = drill_health(drills).running
    rows = [
        {
            "drill": each.id,
            "began": moment_text(each.begun),
            "result": "passed"
            if each.passed
            else "runs"
            if each.id in running
            else "did not pass"
            if each.ended
            else "was killed",
            "as_of": moment_text(each.instant),
            "rpo": "" if each.rpo_s is None else seconds_text(each.rpo_s),
            "rto": "" if each.rto_s is None else seconds_text(each.rto_s),
            "rpo_s": each.rpo_s,
            "rto_s": each.rto_s,
            "by": "schedule" if each.scheduled else "",
            "why": each.why,
            "report": each.report,
        }
        for each in drills
    ]
    printer.rows(rows, empty="no drills yet")
    from peer.drill.schedule import DrillSchedule

    schedule = DrillSchedule.load(cluster.config.drills_dir)
    if schedule is not None:
        due = schedule.due(drills, cluster.config.cluster.host, now=now_us())
        printer.line(f"scheduled on this host at {schedule.cron!r} (UTC), next {moment_text(due)}")
