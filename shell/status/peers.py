"""Peers in ``walship status``: their tables, errors, gaps, retained files and forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replication.core.phase import Phase
from replication.error_text import counted
from shell.cli.render import Printer, bytes_text, moment_text, seconds_text

if TYPE_CHECKING:
    from peer.status.at_peers import TableAtPeer
    from peer.status.collect import ClusterStatus
    from peer.status.forecasts import DiskForecast, PeerForecast
    from peer.status.sending import PeerSending
    from replication.ledger.base import Gap, PatternRule

_FORECAST_S = 7 * 86400.0


def show_tables_at_peers(printer: Printer, found: ClusterStatus) -> None:
    """How far each table is at each peer."""
    shown_below = {(peer.peer, peer.last_error) for peer in found.sending if peer.retries}
    rows = [
        {
            "peer": row.peer,
            "table": _table_text(row),
            "group": row.group,
            "state": row.state,
            "needed": bytes_text(row.needed),
            "finished": bytes_text(row.finished),
            "landed": "" if row.landed == row.finished else bytes_text(row.landed),
            "applied": bytes_text(row.applied),
            "lag": f"{bytes_text(row.lag_bytes)}, {seconds_text(row.lag_s)}",
            "last_error": "see below" if (row.peer, row.last_error) in shown_below else row.last_error,
        }
        for row in found.peers
    ]
    printer.rows(rows, empty="nothing is replicated to a peer; see walship enablereplication")


def _table_text(row: TableAtPeer) -> str:
    name = f"{row.table} (dropped here)" if row.dropped else row.table
    return name if row.remote_table == row.table else f"{name} → {row.remote_table}"


def show_pattern_rules(printer: Printer, found: Sequence[PatternRule]) -> None:
    """The pattern rules, for tables that are made later."""
    for row in found:
        less = f" except {', '.join(row.excluded)}" if row.excluded else ""
        groups = f" (groups {', '.join(row.groups)})" if row.groups else ""
        printer.line(f"tables of {row.pattern}{less}{groups} that are made later go to {row.peer}")


def show_sending(printer: Printer, peers: Sequence[PeerSending]) -> None:
    """Peers that are paused, throttled or failing, and tables held for them."""
    for peer in peers:
        parts = []
        if peer.state == "paused":
            parts.append(f"paused (walship resume {peer.peer})")
        if peer.rate:
            parts.append(f"at most {bytes_text(peer.rate)}/s")
        if peer.retries:
            again = "once that is over" if peer.next_try_s is None else f"in {seconds_text(peer.next_try_s)}"
            parts.append(f"failed {_times(peer.retries, ' in a row')}, next try {again}: {peer.last_error}")
        elif peer.retries_total:
            parts.append(f"tried again {_times(peer.retries_total)} so far")
        if parts:
            printer.line(f"sending to {peer.peer}: {'; '.join(parts)}")
        for held in peer.held:
            printer.note(f"{held.table} is held for {peer.peer} since {moment_text(held.since)}: {held.reason}")


def _times(count: int, more: str = "") -> str:
    return "once" if count == 1 else f"{count} times{more}"


def show_missing(printer: Printer, rows: Sequence[TableAtPeer]) -> None:
    """Tables that need a bootstrap at a peer, and gaps that are not sent."""
    lost = {(row.table, row.peer) for row in rows if row.state == Phase.NEEDS_BOOTSTRAP.value}
    for table, peer in sorted(lost):
        printer.note(
            f"{table} NEEDS A BOOTSTRAP at {peer}: files that it needed could not be retained, so nothing is sent. "
            f"To send it again: walship bootstrap -t {table} {peer}"
        )
    for row in rows:
        for gap in row.gaps:
            printer.note(f"{row.table}, group {row.group}: {gap_text(gap, row.peer)}")


def show_forecasts(printer: Printer, peer_forecasts: Sequence[PeerForecast], disk: DiskForecast) -> None:
    """Files retained for peers, and when their budgets and the disk run out."""
    for peer in peer_forecasts:
        if peer.stored_files:
            files = f"{counted(peer.stored_files, 'file')} ({bytes_text(peer.stored_bytes)})"
            printer.line(f"in the store for {peer.peer}: {files}")
        if peer.spill_error:
            printer.note(f"files for {peer.peer} cannot be moved to the store or back: {peer.spill_error}")
        if not peer.local_files:
            continue
        size = f"{bytes_text(peer.local_bytes)} of {bytes_text(peer.budget)}"
        of = f"files not complete at {peer.peer}: {peer.local_files} ({size})"
        then = "then files move to the store" if peer.then == "spill" else "then tables need a bootstrap"
        if peer.local_bytes > peer.budget:
            printer.note(f"{of}: past its budget, {then}")
        elif peer.runs_out_s is not None and peer.runs_out_s < _FORECAST_S:
            growing = f"growing {bytes_text(peer.growth or 0)}/s"
            printer.note(f"{of}, {growing}: past its budget in {seconds_text(peer.runs_out_s)}, {then}")
        else:
            printer.line(of)
    if disk.free < disk.reserved_bytes:
        printer.note(
            f"disk of {disk.host}: {bytes_text(disk.free)} free, less than the reserve of"
            f" {bytes_text(disk.reserved_bytes)}: nothing lands here until there is room"
        )
    if disk.full_s and disk.full_s < _FORECAST_S:  # of a full one all is said above
        filling = f"{bytes_text(disk.growth or 0)}/s are added"
        printer.note(
            f"disk of {disk.host}: {bytes_text(disk.free)} free, {filling}: full in {seconds_text(disk.full_s)}"
        )


def gap_text(gap: Gap, peer: str) -> str:
    """A gap as a sentence."""
    span = f"between {moment_text(gap.begin)} and" if gap.begin else "before"
    return f"what was written {span} {moment_text(gap.end)} ({counted(gap.frames, 'frame')}) is not sent to {peer}"


def show_retained(printer: Printer, found: ClusterStatus) -> None:
    """Closed files that are retained until a peer has and has applied them."""
    if not found.retained.own_replay:
        printer.line("this cluster keeps no tables: files are retained for peers only")
    for peer in found.retained.peers:
        if not peer.incomplete_files and not peer.unapplied_files:
            continue
        budget = found.retained.peer_bytes_max
        past = f", {peer.past_budget_files} of them past its budget" if peer.past_budget_files else ""
        of_budget = "" if budget is None else f" of {bytes_text(budget)}"
        incomplete = (
            f"{counted(peer.incomplete_files, 'closed file')} ({bytes_text(peer.incomplete_bytes)}) not complete there"
        )
        unapplied = f"{peer.unapplied_files} ({bytes_text(peer.unapplied_bytes)}{of_budget}) complete but not applied"
        printer.line(f"retained for {peer.peer}: {incomplete}, {unapplied}{past}")
