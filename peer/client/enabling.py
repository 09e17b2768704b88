"""What is asked for when tables are enabled, and what is checked before: the rules that there are, unsent rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replication.core.definition.define import unusable_name
from replication.core.definition.schema import TableSpec
from replication.error_text import counted
from replication.errors import RequestError
from replication.ledger.base import Ledger, Peer, Rule


@dataclass(frozen=True, slots=True)
class EnableRequest:
    """How tables are to go to a peer.

    Args:
        peer_name: a defined peer.
        groups: locality groups; empty for all, and for those added later.
        remote_table: the table's name there; empty for the name that it has there, or the same name.
        from_now: accept that the rows that a table has already are not sent.
        bootstrap_bytes: send these rows too. They need about so many bytes at the peer, together with the
            bootstraps that are under way to it. None: do not send them.
        with_properties: whether the peer's table follows the properties of this one. None changes nothing; for a
            new rule it means yes.
        count_rows: counts the rows of a table; None where this cluster keeps no tables.
    """

    peer_name: str
    groups: Sequence[str]
    remote_table: str
    from_now: bool
    bootstrap_bytes: int | None
    with_properties: bool | None
    count_rows: Callable[[TableSpec], int | None]


@dataclass(frozen=True, slots=True)
class NewRules:
    """The rules that a table is to get, those that it has already for the peer (``there``), why it is held if it is."""

    spec: TableSpec
    peer: Peer
    remote: str
    there: Sequence[Rule]
    request: EnableRequest
    held: str

    @property
    def sent(self) -> set[str]:
        """The groups that have a rule."""
        return {rule.group for rule in self.there}

    @property
    def new(self) -> list[str]:
        """The groups that get a rule."""
        groups = self.request.groups
        asked = [self.spec.group(group).name for group in groups] or [group.name for group in self.spec.groups]
        return [group for group in asked if group not in self.sent]

    @property
    def is_plain(self) -> bool:
        """Whether all groups of the table get their first rules, under its own name."""
        return not self.there and not self.request.groups and self.remote == self.spec.name

    @property
    def changes_properties(self) -> bool:
        """Whether a rule that exists is to follow properties, or no longer to."""
        wanted = self.request.with_properties
        return wanted is not None and any(rule.with_properties != wanted for rule in self.there)

    def check(self) -> None:
        """Raise RequestError when the name cannot be used at the peer, or when nothing would change."""
        table, peer = self.spec.name, self.peer.name
        if unusable := unusable_name(self.remote):
            raise RequestError(
                f"{table} cannot go to {peer} under that name: {unusable}",
                "Name it namespace.name there, such as --remote-table ops.flights",
            )
        if self.new:
            return
        takes_every_group = not self.request.groups and not all(rule.every_group for rule in self.there)
        if self.request.bootstrap_bytes is not None or not (self.changes_properties or takes_every_group):
            held = f"It is held: {self.held}" if self.held else ""
            again = f"For older rows: walship bootstrap {peer} -t {table}"
            raise RequestError(f"{table} goes to {peer} already", held or again)


def refuse_unsent(ledger: Ledger, spec: TableSpec, count_rows: Callable[[TableSpec], int | None]) -> None:
    """Raise RequestError when a table holds rows that a new rule would not send."""
    if kept := unsent(ledger, spec, count_rows):
        raise RequestError(
            f"{spec.name} holds {kept}, which will not be sent; only what is written from now on is sent",
            "Add --bootstrap to send these rows too, or --from-now to leave them out",
        )


def unsent(ledger: Ledger, spec: TableSpec, count_rows: Callable[[TableSpec], int | None]) -> str:
    """What was written to a table before now, in words; "" when nothing was.

    Rows that are registered but not replayed cannot be counted. Their frames can.
    """
    covered = ledger.landing.coverage(spec.uuid)
    if not covered:
        return ""
    reached = ledger.time.reached({stream: ranges.end - 1 for stream, ranges in covered.items()})
    rows = count_rows(spec)  # counted last: what is replayed meanwhile counts twice rather than not at all
    if rows is None:
        return f"rows in {counted(sum(ranges.total for ranges in covered.values()), 'frame')} already"
    waiting = sum(ranges.total for stream, ranges in covered.items() if not reached[stream].applied)
    of_table = (frame for frame in ledger.replay.quarantined() if frame.table == spec.uuid)
    waiting += sum(not frame.discarded and not frame.succession for frame in of_table)
    frames = f"in up to {counted(waiting, 'frame')} not replayed yet"
    if not rows:
        return f"rows {frames}" if waiting else ""
    return f"{counted(rows, 'row')} already" + (f", and more {frames}" if waiting else "")
