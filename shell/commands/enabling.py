"""One ``enablereplication``: pattern rules first, then table by table; undone if it is refused as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from typer import Option

from peer.client.enabling import EnableRequest
from peer.client.pattern_rules import add_pattern_rule, end_pattern_rule, to_enable
from replication.coordination.base import keeps_tables
from replication.errors import ReplicationError, RequestError
from replication.ledger.base import PatternRule
from shell.cli.invocation import table_option, tables_option
from shell.cli.render import Printer
from shell.commands.bootstrap import WaitOption, shown_rules, space_for
from shell.commands.operate import for_each
from shell.status.peers import gap_text

if TYPE_CHECKING:
    from peer.bootstrap.space import BootstrapSpace
    from peer.client.cluster import Cluster
    from replication.core.definition.schema import TableSpec
    from replication.ledger.base import Rule


ExcludeOption = Annotated[
    list[str] | None, tables_option("Leave out a table or pattern; may be repeated.", "--exclude")
]
GroupOption = Annotated[
    list[str] | None, Option("-lg", "--loc-group", metavar="GROUP", help="A locality group; may be repeated.")
]
AllGroupsOption = Annotated[
    bool, Option("--all-loc-groups", "-all-loc-groups", help="Every locality group. This is the default.")
]


@dataclass(frozen=True, slots=True)
class EnableOptions:
    """How tables are sent to a peer."""

    group: GroupOption = None
    all_loc_groups: AllGroupsOption = False
    exclude: ExcludeOption = None
    remote_table: Annotated[str, table_option("The table's name at the peer, if it differs.", "--remote-table")] = ""
    with_properties: Annotated[
        bool | None,
        Option(
            "--with-properties/--without-properties",
            help="Whether the peer's table takes the properties of this one. Default: with, or as before.",
            show_default=False,
        ),
    ] = None
    from_now: Annotated[bool, Option("--from-now", help="Do not send the rows that the table has already.")] = False
    bootstrap: Annotated[bool, Option("--bootstrap", help="Send the rows that the table has already, too.")] = False
    wait_s: WaitOption = 0.0
    once: Annotated[bool, Option("--once", help="Do not apply a pattern to tables that are made later.")] = False


@dataclass(slots=True)
class Enabling:
    """What is asked for, and the rules that are made of it.

    Args:
        peer: where the tables go.
        groups: locality groups; all if empty.
    """

    cluster: Cluster
    printer: Printer
    peer: str
    groups: Sequence[str]
    options: EnableOptions
    made: list[Rule] = field(default_factory=list)
    space: BootstrapSpace | None = None

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
            self._enable(names)
        except ReplicationError as error:
            if not self.made:
                self._restore(before)
                raise
            refused = error
        for text, was in before.items():
            only = f" (groups {', '.join(self.groups)})" if self.groups else ""
            instead = "" if was is None else ", in place of the rule there was for them"
            self.printer.progress(f"tables of {text}{only} that are made later go to {self.peer}, too{instead}")
        if self.printer.as_json:
            self.printer.value(shown_rules(self.cluster, self.made))
        if refused is not None:
            raise refused
        return names

    def _names(self, wanted: Sequence[str], patterns: Sequence[str]) -> list[str]:
        anew = None if self.options.bootstrap else self.options.with_properties
        excluded = self.options.exclude or ()
        names = to_enable(self.cluster.peering, wanted, excluded, self.peer, patterns, self.groups, anew)
        if self.options.remote_table and len(names) > 1:
            raise RequestError(f"--remote-table names one table, not {len(names)}", "Enable them one at a time")
        if names and self.options.bootstrap:  # all of them fit, or none begins
            self.space = space_for(self.cluster, self.printer, names, self.peer)
            self.space.check()
        return names

    def _enable(self, names: Sequence[str]) -> None:
        request = EnableRequest(
            self.peer,
            self.groups,
            self.options.remote_table,
            self.options.from_now,
            None if self.space is None else self.space.peer_bytes,
            self.options.with_properties,
            self._count,
        )
        made = self.cluster.peering.enable_all(names, request)

        def show(name: str) -> None:
            _, rules = next(made)
            if isinstance(rules, ReplicationError):
                raise rules
            self._show(name, rules)

        if names:
            for_each(names, show, self.printer)

    def _show(self, name: str, rules: Sequence[Rule]) -> None:
        self.made.extend(rules)
        sent = ", ".join(rule.group for rule in rules)
        how = f"as {rules[0].remote_table}"
        if self.options.with_properties is not None:
            how += f", {'with' if self.options.with_properties else 'without'} its properties"
        too = "; the rows it has follow, see walship status" if self.options.bootstrap else ""
        self.printer.progress(f"{name} (groups {sent}) goes to {self.peer} from now on, {how}{too}")
        of_groups: dict[str, list[str]] = {}
        for rule in rules:
            for line in dict.fromkeys(gap_text(gap, self.peer) for gap in rule.gaps):
                of_groups.setdefault(line, []).append(rule.group)
        for line, groups in of_groups.items():
            self.printer.note(f"{name}, group{'s' if len(groups) > 1 else ''} {', '.join(groups)}: {line}")

    def _stand(self, pattern: str) -> PatternRule | None:
        chosen = (tuple(self.options.exclude or ()), tuple(self.groups), self.options.with_properties is not False)
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
        first = [column.name for column in spec.columns[:1]]  # without one, reading says what to do
        return int(sum(batch.num_rows for batch in self.cluster.read(spec.name, columns=first)))
