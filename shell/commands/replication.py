"""enablereplication, disablereplication: which tables go to which peers."""

from __future__ import annotations

from typing import Annotated

import typer

from peer.client.pattern_rules import end_pattern_rule
from replication.core.definition.choice import chosen, is_chosen, is_pattern
from replication.errors import ReplicationError, RequestError
from shell.cli.invocation import Invocation, PeerArgument, add_verb, table_option, tables_option
from shell.commands.bootstrap import WaitOption, await_rows
from shell.commands.enabling import Enabling
from shell.commands.operate import for_each

TablesOption = Annotated[
    list[str], tables_option("A table, or a pattern such as ops.*; may be repeated.", "-t", "--table")
]
ExcludeOption = Annotated[
    list[str] | None, tables_option("Leave out a table or pattern; may be repeated.", "--exclude")
]
GroupOption = Annotated[
    list[str] | None, typer.Option("-lg", "--loc-group", metavar="GROUP", help="A locality group; may be repeated.")
]
AllGroupsOption = Annotated[
    bool, typer.Option("--all-loc-groups", "-all-loc-groups", help="Every locality group. This is the default.")
]


def register(app: typer.Typer) -> None:
    """Add these verbs to ``app``."""
    add_verb(app, "enablereplication", enablereplication)
    add_verb(app, "disablereplication", disablereplication)


def enablereplication(
    invocation: Invocation,
    cluster_name: PeerArgument,
    table: TablesOption,
    group: GroupOption = None,
    all_loc_groups: AllGroupsOption = False,
    exclude: ExcludeOption = None,
    remote_table: Annotated[str, table_option("The table's name at the peer, if it differs.", "--remote-table")] = "",
    with_properties: Annotated[
        bool | None,
        typer.Option(
            "--with-properties/--without-properties",
            help="Whether the peer's table takes the properties of this one. Default: with, or as before.",
            show_default=False,
        ),
    ] = None,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Do not send the rows that the table has already.")
    ] = False,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Send the rows that the table has already, too.")
    ] = False,
    wait_s: WaitOption = 0.0,
    once: Annotated[bool, typer.Option("--once", help="Do not apply a pattern to tables that are made later.")] = False,
) -> None:
    """Replicate tables to a peer, from now on.

    The peer's tables are made if they do not exist. A pattern applies to tables that are made later, too.
    """
    if from_now and bootstrap:
        raise RequestError("--from-now and --bootstrap were both given", "Give one of them")
    if wait_s and not bootstrap:
        raise RequestError(
            "--wait waits for the rows that the table has already, which are not sent", "Add --bootstrap"
        )
    patterns = [] if once else [text for text in table if is_pattern(text)]
    if remote_table and patterns:
        raise RequestError("--remote-table names one table, not a pattern", "Enable it by its name")
    groups, excluded = _groups(group, all_loc_groups), tuple(exclude or ())
    with invocation.connect() as (cluster, printer):
        asked = (cluster_name, groups, excluded, remote_table, from_now, bootstrap, with_properties)
        names = Enabling(cluster, printer, *asked).run(table, patterns)
        if wait_s and names:
            await_rows(cluster, printer, names, cluster_name, wait_s)


def disablereplication(
    invocation: Invocation,
    cluster_name: PeerArgument,
    table: TablesOption,
    group: GroupOption = None,
    all_loc_groups: AllGroupsOption = False,
    exclude: ExcludeOption = None,
) -> None:
    """Stop replicating tables to a peer."""
    with invocation.connect() as (cluster, printer):
        done: list[dict[str, object]] = []

        def disable(name: str) -> None:
            ended, knows = cluster.peering.disable(name, _groups(group, all_loc_groups), cluster_name)
            done.append({"table": name, "peer": cluster_name, "groups": ended, "knows": knows})
            printer.line(
                f"{name} (groups {', '.join(ended)}) does not go to {cluster_name} any more; its rows there stay"
            )
            if not knows:
                printer.note(f"{cluster_name} did not answer; it waits for {name} until it is reached")

        peering, groups = cluster.peering, _groups(group, all_loc_groups)
        stood = [text for text in table if is_pattern(text) and end_pattern_rule(peering, text, cluster_name, groups)]
        for text in stood:
            rest = {s.pattern: s.groups for s in cluster.ledger.rules.pattern_rules() if s.peer == cluster_name}.get(
                text
            )
            only = f"; groups {', '.join(rest)} of them still do" if rest else ""
            printer.line(f"tables of {text} that are made later do not go to {cluster_name} any more{only}")
        sent = cluster.peering.sent_to(cluster_name)
        if not stood or any(is_chosen(name, text, exclude or ()) for name in sent for text in table):
            which = f"table that goes to {cluster_name}"
            try:
                for_each(chosen(sent, table, exclude or (), which), disable, printer)
            except ReplicationError:
                if done and printer.as_json:
                    printer.value(done)
                raise
        left = [s.pattern for s in cluster.ledger.rules.pattern_rules() if s.peer == cluster_name]
        if left and any(is_pattern(text) for text in table):
            printer.note(f"Tables made later still go to {cluster_name} by the rule for {', '.join(left)}")
        if printer.as_json:
            printer.value(done[0] if len(done) == 1 else done)


def _groups(named: list[str] | None, every: bool) -> list[str]:
    if named and every:
        raise RequestError("-lg and --all-loc-groups were both given", "Give one of them")
    return named or []
