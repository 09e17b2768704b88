"""One ``enablereplication``: pattern rules first, then table by table; undone if it is refused as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.client.pattern_rules import add_pattern_rule, end_pattern_rule, to_enable
from replication.coordination.base import keeps_tables
from replication.errors import ReplicationError, RequestError
from replication.ledger.base import PatternRule
from shell.cli.render import Printer
from shell.commands.bootstrap import room_for
from shell.commands.operate import for_each
from shell.status.peers import gap_text

if TYPE_CHECKING:
    from peer.bootstrap.room import BootstrapRoom
    from peer.client.cluster import Cluster
    from replication.core.definition.schema import TableSpec
    from replication.ledger.base import Rule


@dataclass(slots=True)
class Enabling:
    """What is asked for, and the rules that are made of it.

    Args:
        peer: where the tables go.
        groups: locality groups; all if empty.
        excluded: names and patterns that are left out.
        remote_table: the name at the peer; the same if empty.
        from_now: accept that rows from before are not sent.
        bootstrap: send rows from before, too.
        with_properties: whether the peer's tables take the properties; None for yes, or as before.
    """

    cluster: Cluster
    printer: Printer
    peer: str
    groups: Sequence[str]
    excluded: Sequence[str]
    remote_table: str
    from_now: bool
    bootstrap: bool
    with_properties: bool | None
    made: list[Rule] = field(default_factory=list)
    room: BootstrapRoom | None = None

    def run(self, wanted: Sequence[str], patterns: Sequence[str]) -> list[str]:
        """Enable the tables of ``wanted``; ``patterns`` among them apply to later tables, too. Returns their names.

        Raises:
            ReplicationError: a table was refused. If all were, nothing is changed.
        """
        before = {text: self._stand(text) for text in dict.fromkeys(patterns)}
        names: list[str] = []
        refused: ReplicationError | None = None
        try:
            names = self._names(wanted, patterns)
            if names:
                for_each(names, self._enable, self.printer)
        except ReplicationError as error:
            if not self.made:
                self._restore(before)
                raise
            refused = error
        for text, was in before.items():
            only = f" (groups {', '.join(self.groups)})" if self.groups else ""
            instead = "" if was is None else ", in place of the rule there was for them"
            self.printer.line(f"tables of {text}{only} that are made later go to {self.peer}, too{instead}")
        if self.printer.as_json:
            self.printer.value(self.made)
        if refused is not None:
            raise refused
        return names

    def _names(self, wanted: Sequence[str], patterns: Sequence[str]) -> list[str]:
        anew = None if self.bootstrap else self.with_properties
        names = to_enable(self.cluster.peering, wanted, self.excluded, self.peer, patterns, self.groups, anew)
        if self.remote_table and len(names) > 1:
            raise RequestError(f"--remote-table names one table, not {len(names)}", "Enable them one at a time")
        if names and self.bootstrap:  # all of them fit, or none begins
            self.room = room_for(self.cluster, self.printer, names, self.peer)
            self.room.check()
        return names

    def _enable(self, name: str) -> None:
        rules = self.cluster.peering.enable(
            name,
            self.groups,
            self.peer,
            self.remote_table,
            from_now=self.from_now,
            bootstrap_bytes=None if self.room is None else self.room.there_bytes,
            with_properties=self.with_properties,
            count_rows=self._count,
        )
        self.made.extend(rules)
        sent = ", ".join(rule.group for rule in rules)
        how = f"as {rules[0].remote_table}"
        if self.with_properties is not None:
            how += f", {'with' if self.with_properties else 'without'} its properties"
        too = "; the rows it has follow, see walship status" if self.bootstrap else ""
        self.printer.line(f"{name} (groups {sent}) goes to {self.peer} from now on, {how}{too}")
        for line in dict.fromkeys(gap_text(gap, self.peer) for rule in rules for gap in rule.gaps):
            self.printer.note(f"{name}: {line}")

    def _stand(self, pattern: str) -> PatternRule | None:
        chosen = (tuple(self.excluded), tuple(self.groups), self.with_properties is not False)
        return add_pattern_rule(self.cluster.peering, PatternRule(self.peer, pattern, *chosen))

    def _restore(self, before: dict[str, PatternRule | None]) -> None:
        for text, was in before.items():
            if was is None:
                end_pattern_rule(self.cluster.peering, text, self.peer)
            else:
                add_pattern_rule(self.cluster.peering, was)

    def _count(self, spec: TableSpec) -> int | None:
        if not keeps_tables(self.cluster.coordination.hosts()):
            return None
        column = spec.columns[0].name
        return int(sum(batch.num_rows for batch in self.cluster.read(spec.name, columns=[column])))
