"""Derived tables, and rules for tables to come, in ``status``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shell.cli.render import Printer, moment_text, seconds_text

if TYPE_CHECKING:
    from peer.derive.progress import DerivedHere
    from peer.status.members import Members
    from replication.ledger.base import PatternRule


def show_derived(printer: Printer, found: Sequence[DerivedHere], members: Members) -> None:
    """Which tables are derived here, by which hook, how far, and why one stands, or all."""
    if not found:
        return
    rows = [
        {
            "derived": row.table,
            "from": row.source,
            "hook": " ".join([row.hook, *(f"{name}={value}" for name, value in row.options.items())]),
            "has_all_to": moment_text(row.upto),
            "lag": "-" if row.lag_s is None else seconds_text(row.lag_s),
            "behind": f"{row.behind} commits",
            "error": row.error,
        }
        for row in found
    ]
    printer.rows(rows, ("derived", "from", "hook", "has_all_to", "lag", "behind", "error"), "")
    derives = any(role.startswith("derive") for host in members.hosts for role in host.roles)
    if not members.problem and not derives:
        printer.note("no host derives tables, so they stand still; run one with worker and replay: walship up")


def show_pattern_rules(printer: Printer, found: Sequence[PatternRule]) -> None:
    """What goes to peers of tables that are made later."""
    for row in found:
        less = f" less {', '.join(row.excluded)}" if row.excluded else ""
        groups = f" (groups {', '.join(row.groups)})" if row.groups else ""
        printer.line(f"tables of {row.pattern}{less}{groups} that are made later go to {row.peer}")
