"""``walship status``: a cluster's hosts, peers, tables, origins and disk use, section by section."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from peer.replay_report import ReplayReport
from peer.status.paths import silent_path_messages
from replication.core.roles import Role
from replication.error_text import counted
from replication.ledger.commit_steps import ROLE_CHANGE
from replication.tables.work import WorkDone
from shell.cli.render import Printer, bytes_text, moment_text, seconds_text
from shell.status.peers import (
    show_forecasts,
    show_missing,
    show_pattern_rules,
    show_retained,
    show_sending,
    show_tables_at_peers,
)

if TYPE_CHECKING:
    from peer.derive.progress import DerivedHere
    from peer.status.collect import ClusterStatus
    from peer.status.members import Members
    from peer.status.operations import UnfinishedOperation

_OPERATIONS_MAX = 10
_SUCCESSIONS_MAX = 3


def show_status(printer: Printer, found: ClusterStatus) -> None:
    """Print the whole page."""
    _show_cluster(printer, found)
    _show_role_history(printer, found)
    _show_hosts(printer, found)
    _show_replay(printer, found)
    show_tables_at_peers(printer, found)
    show_pattern_rules(printer, found.pattern_rules)
    show_sending(printer, found.sending)
    show_missing(printer, found.peers)
    _show_tables(printer, found)
    show_derived(printer, found.derived, found.members)
    _show_origins(printer, found)
    _show_disk_use(printer, found)
    show_retained(printer, found)
    show_forecasts(printer, found.peer_forecasts, found.disk)
    show_operations(printer, found.operations, found.cluster)
    show_drills(printer, found)
    _show_alarms(printer, found)


def show_derived(printer: Printer, found: Sequence[DerivedHere], members: Members) -> None:
    """Derived tables: their hooks, lag and errors."""
    if not found:
        return
    rows = [
        {
            "derived": row.table,
            "from": row.source,
            "hook": " ".join([row.hook, *(f"{name}={value}" for name, value in row.options.items())]),
            "complete_to": moment_text(row.upto),
            "lag": "-" if row.lag_s is None else seconds_text(row.lag_s),
            "behind": f"{row.behind} commits",
            "error": row.error,
        }
        for row in found
    ]
    printer.rows(rows)
    derives = any(role.startswith("derive") for host in members.hosts for role in host.roles)
    if not members.problem and not derives:
        printer.note("no host derives tables, so they get no new rows; run one with worker and replay: walship up")


def _show_cluster(printer: Printer, found: ClusterStatus) -> None:
    members = found.members
    if found.location:
        printer.line(f"location of this host: {found.location}")
    if members.problem:
        end = "" if members.problem.endswith("?") else "."
        printer.note(
            f"ZooKeeper does not tell what runs: {members.problem}{end} Until it does, no writer acks; what follows is"
            " what the ledger knows"
        )
        return
    printer.line(
        f"{members.role} (epoch {members.role_epoch}), term {found.term}; "
        f"workers {', '.join(members.workers) or 'none'}; receivers {', '.join(members.receivers) or 'none'}; "
        f"{counted(members.writers, 'writer')}"
    )
    for role in members.unanswering:
        printer.note(
            f"{role} runs here and does not answer: it is frozen, or cut off from ZooKeeper; kill it, and walship up"
            " starts another"
        )


def _show_role_history(printer: Printer, found: ClusterStatus) -> None:
    """The newest successions on one line, and the lost writes of all."""
    known = found.role_history.successions
    if not known:
        return
    listed = "; ".join(
        f"{each.successor} took over from {each.origin} {moment_text(each.at)} "
        f"({'switchover' if each.planned else 'failover'}, epoch {each.epoch})"
        for each in reversed(known[-_SUCCESSIONS_MAX:])
    )
    more = f"; {len(known) - _SUCCESSIONS_MAX} before" if len(known) > _SUCCESSIONS_MAX else ""
    active = f"; ACTIVE: {found.role_history.active}" if found.role_history.active else ""
    where = f" ({found.role_history.zookeepers})" if found.role_history.zookeepers else ""
    lost = f"; frames of lost writes to decide: {len(found.lost_writes)}" if found.lost_writes else ""
    printer.line(f"{listed}{more}{active}{where}{lost}")
    for each in known:
        if each.applied_here:
            printer.note(
                f"in the tables here, and not at {each.successor} when it took over: up to"
                f" {counted(each.applied_here, 'frame')} of {each.origin}; {each.successor} kept them as lost writes:"
                " walship lostwrites list, there"
            )
    last, is_changing = known[-1], any(each.operation == ROLE_CHANGE for each in found.operations)
    is_successor = (found.members.role, last.successor) == (Role.STANDBY.value, found.cluster)
    if is_successor and not found.role_history.active and not is_changing:
        printer.note(
            f"no cluster takes writes, as far as is known here: {found.cluster} took over from {last.origin}, and is"
            " STANDBY: walship readonly off"
        )


def _show_hosts(printer: Printer, found: ClusterStatus) -> None:
    """The hosts, if there are several, and what waits for one of them."""
    hosts = found.members.hosts
    if len(hosts) > 1:
        rows = [
            {
                "host": host.slot,
                "runs": ", ".join(host.roles) or "nothing",
                "WAL": bytes_text(host.wal_bytes),
                "landing": bytes_text(host.landing_bytes),
                "to_replay": bytes_text(host.unapplied_bytes),
            }
            for host in hosts
        ]
        printer.rows(rows)
    for host in hosts:
        if host.away and host.unapplied_bytes:
            printer.note(
                f"replay needs {bytes_text(host.unapplied_bytes)} of host {host.slot} and cannot read them: "
                f"{host.away}. They are applied when that host is back: walship up"
            )


def _show_replay(printer: Printer, found: ClusterStatus) -> None:
    backlog = bytes_text(found.replay_backlog_bytes)
    printer.line(f"to replay here: {backlog}; closed time {moment_text(found.closed)}")
    if found.replay is not None and found.replay.rounds:
        printer.line(work_text(found.replay))
    if found.replay is not None and found.replay.spark:
        printer.line(f"Spark: {found.replay.spark}")
    if found.replay is not None and found.replay.spark_ui:
        printer.line(f"Spark's UI: {found.replay.spark_ui}")
    if found.replay_backlog_bytes and (warning := found.members.without_replay(found.disk.free)):
        printer.note(warning)


def work_text(report: ReplayReport) -> str:
    """Return in how many rounds replay decoded how much, and where, since it started."""
    known = {field.name for field in fields(WorkDone)}  # another host's walship may count more
    work = WorkDone(**{name: count for name, count in report.work.items() if name in known})
    rows, tasks = counted(work.job_rows, "row"), counted(work.tasks, "task")
    jobs = f"{counted(work.jobs, 'Spark job')} ({tasks}, {rows}, {bytes_text(work.job_bytes)})"
    rows, batches = counted(work.driver_rows, "row"), counted(work.driver_batches, "batch")
    here = f"{batches} in the driver ({rows}, {bytes_text(work.driver_bytes)})"
    asked = f"; {work.queries:,} jobs of other processes ({bytes_text(work.query_bytes)})" if work.queries else ""
    retried = f"; {work.retries:,} parts of jobs were retried" if work.retries else ""
    since = seconds_text(report.at - report.since)
    return f"replayed in {since}: {counted(report.rounds, 'round')}; {jobs}, {here}{asked}{retried}"


def _show_tables(printer: Printer, found: ClusterStatus) -> None:
    rows = [
        {
            "table": row.table,
            "replicated_to": moment_text(row.replicated),
            "table_age": "-" if row.age_s is None else seconds_text(row.age_s),
            "quarantined": row.quarantined,
            "discarded": row.discarded,
            "held_by": row.held_by,
        }
        for row in found.tables
    ]
    printer.rows(rows, empty="no tables")
    for table in found.tables:
        for note in (table.replay_held, *table.clashes):
            if note:
                printer.note(f"{table.table}: {note}")


def _show_origins(printer: Printer, found: ClusterStatus) -> None:
    rows = [
        {
            "origin": row.origin.partition(":")[0],
            "by": "; ".join(str(path) for path in row.paths if path.silent_s is None)
            or ("no route" if row.paths else ""),
            "replicated_time": moment_text(row.replicated),
            "age": "-" if row.age_s is None else seconds_text(row.age_s),
            "held_by": row.held_by,
        }
        for row in found.origins
    ]
    printer.rows(rows, empty="no origins yet")
    for row in found.origins:
        for text in silent_path_messages(row.origin.partition(":")[0], row.paths):
            printer.note(text)


def _show_disk_use(printer: Printer, found: ClusterStatus) -> None:
    used = found.disk_use
    ratio = "" if used.per_byte is None else f" ({used.per_byte:.2f} bytes per byte ever written or landed)"
    printer.line(
        f"disk use: WAL {bytes_text(used.wal)}, landing {bytes_text(used.landing)}, changes {_size(used.changes)}, "
        f"tables {_size(used.tables)}{ratio}"
    )


def show_operations(printer: Printer, found: Sequence[UnfinishedOperation], cluster: str) -> None:
    """Operations that nobody runs; the first of many. Those of another store than ``cluster`` are other programs'."""
    resting = [each for each in found if each.state != "running"]
    for each in resting[:_OPERATIONS_MAX]:
        suspended = each.state == "suspended"
        verb = f"See walship ops show, then walship ops {'retry' if suspended else 'resume'}"
        if each.store != cluster:
            named = f"{each.operation} --store {each.store}"
            then = f", then walship ops retry {named}" if suspended else f". The next run of {each.store} takes it up"
            verb = f"See walship ops show {named}{then}"
        if each.verb:
            verb = f"Run it again: {each.verb}"
        often = counted(each.failures, "time")
        what = f"failed {often} and is suspended" if suspended else "is unfinished and nobody runs it"
        why = f": {each.error}" if each.error else ""
        printer.note(f"{each.store}/{each.operation} {what}{why}. {verb}")
    if len(resting) > _OPERATIONS_MAX:
        printer.note(f"{len(resting) - _OPERATIONS_MAX} more operations are unfinished: walship ops list")


def show_drills(printer: Printer, found: ClusterStatus) -> None:
    """When the last drill passed, if there was any, or the cluster is to take over one day."""
    good, failure = found.drills.good, found.drills.failure
    if good is not None:
        rpo, rto = ("not known" if value is None else seconds_text(value) for value in (good.rpo_s, good.rto_s))
        age = seconds_text(max(0.0, time.time() - good.ended / 1e6))
        printer.line(f"last good drill: {age} ago (RPO {rpo}, RTO {rto}); report {good.report}")
    elif found.members.role == Role.STANDBY.value and not failure:
        printer.line(f"no drill was ever run: walship drill {found.cluster}")
    if failure:
        printer.note(f"the last drill did not pass: {failure}")
    for each in found.drills.running:
        printer.line(f"drill {each} runs")


def _show_alarms(printer: Printer, found: ClusterStatus) -> None:
    """Roles, frames, clocks, batch ids and files that need a person."""
    for succession in found.contested:
        printer.note(
            f"two clusters take writes: this one is ACTIVE, and so is another one by a succession ({succession}). Make"
            " one of them read-only: walship readonly on. Nothing is lost: what both wrote is merged"
        )
    for certificate, end in found.certificates.items():
        printer.note(
            f"the certificate {certificate} ends {moment_text(end)}; connections fail then. Replace it and its key."
            " Links read it at once; for ZooKeeper and the timeline's server restart walship"
        )
    for frame in found.quarantined:
        state = f"discarded {moment_text(frame.discarded)}" if frame.discarded else "quarantined"
        printer.note(f"{state}: frame {frame.file.local}:{frame.begin}: {frame.reason}; copy {frame.copy}")
    if found.lost_writes:
        printer.note(
            f"lost writes: {counted(len(found.lost_writes), 'frame')} to decide about: walship lostwrites list"
        )
    for clock in found.far_ahead:
        origin, ahead = clock.origin.partition(":")[0], seconds_text(clock.ahead_s)
        printer.note(
            f"commit times of {origin} are up to {ahead} ahead of the clock here (seen {moment_text(clock.seen)}):"
            " check the clocks. Writers follow, so newer writes still win"
        )
    for conflict in found.batch_conflicts:
        printer.note(
            f"batch id {conflict.batch_id!r} of {conflict.table} was used for other rows, too: {conflict.wal.local} has"
            f" them (seen {moment_text(conflict.at)}). Both are kept; look for duplicate rows"
        )
    for refused in found.refused:
        printer.note(
            f"refused {counted(refused.count, 'message')} of {refused.source} ({refused.reason}), the last"
            f" {moment_text(refused.at)}: {refused.what}"
        )
    for file in found.unreadable:
        printer.note(f"file {file.file} cannot be read: {file.why}. {file.remedy}")
    for lost in found.lost:
        frames, when = counted(lost.frames, "frame"), moment_text(lost.at)
        printer.note(
            f"lost here: {frames} of {lost.table}, with WAL {lost.file}, salvaged {when}; a peer may have them"
        )


def _size(size: int | None) -> str:
    return "unknown" if size is None else bytes_text(size)
