"""enablereplication, disablereplication: which tables go to which peers."""

from __future__ import annotations

from typing import Annotated

from peer.client.pattern_rules import end_pattern_rule
from peer.client.peering import Peering
from replication.core.definition.choice import chosen, is_chosen, is_pattern
from replication.errors import ReplicationError, RequestError
from shell.cli.invocation import Invocation, PeerArgument, tables_option
from shell.cli.render import Printer
from shell.commands.bootstrap import await_rows
from shell.commands.enabling import AllGroupsOption, EnableOptions, Enabling, ExcludeOption, GroupOption
from shell.commands.operate import for_each

TablesOption = Annotated[
    list[str], tables_option("A table, or a pattern such as ops.*; may be repeated.", "-t", "--table")
]


def enablereplication(
    invocation: Invocation,
    cluster_name: PeerArgument,
    table: TablesOption,
    options: EnableOptions,
) -> None:
    """Replicate tables to a peer, from now on.

    The peer's tables are made if they do not exist. A pattern applies to tables that are made later, too.
    """
    if options.from_now and options.bootstrap:
        raise RequestError("--from-now and --bootstrap were both given", "Give one of them")
    if options.wait_s and not options.bootstrap:
        raise RequestError(
            "--wait waits for the rows that the table has already, which are not sent", "Add --bootstrap"
        )
    patterns = [] if options.once else [text for text in table if is_pattern(text)]
    if options.remote_table and patterns:
        raise RequestError("--remote-table names one table, not a pattern", "Enable it by its name")
    groups = _groups(options.group, options.all_loc_groups)
    with invocation.connect() as (cluster, printer):
        names = Enabling(cluster, printer, cluster_name, groups, options).run(table, patterns)
        if options.wait_s and names:
            await_rows(cluster, printer, names, cluster_name, options.wait_s)


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
            _, ended = next(disabled)
            if isinstance(ended, ReplicationError):
                raise ended
            done.append({"table": name, "peer": cluster_name, "groups": ended})
            printer.progress(
                f"{name} (groups {', '.join(ended)}) does not go to {cluster_name} any more; its rows there stay"
            )

        peering, groups = cluster.peering, _groups(group, all_loc_groups)
        stood = [text for text in table if is_pattern(text) and end_pattern_rule(peering, text, cluster_name, groups)]
        for text in stood:
            rest = {s.pattern: s.groups for s in cluster.ledger.rules.pattern_rules() if s.peer == cluster_name}.get(
                text
            )
            only = f"; groups {', '.join(rest)} of them still do" if rest else ""
            printer.progress(f"tables of {text} that are made later do not go to {cluster_name} any more{only}")
        sent = cluster.peering.sent_to(cluster_name)
        if not stood or any(is_chosen(name, text, exclude or ()) for name in sent for text in table):
            which = f"table that goes to {cluster_name}"
            names = chosen(sent, table, exclude or (), which)
            disabled = peering.disable_all(names, groups, cluster_name)
            try:
                for_each(names, disable, printer)
            except ReplicationError:
                _inform(peering, cluster_name, done, printer)
                if done and printer.as_json:
                    printer.value(done)
                raise
            _inform(peering, cluster_name, done, printer)
        left = [s.pattern for s in cluster.ledger.rules.pattern_rules() if s.peer == cluster_name]
        if left and any(is_pattern(text) for text in table):
            printer.note(f"Tables made later still go to {cluster_name} by the rule for {', '.join(left)}")
        if printer.as_json:
            printer.value(done)


def _inform(peering: Peering, peer: str, done: list[dict[str, object]], printer: Printer) -> None:
    """Inform the peer of what was disabled, and note in ``done`` whether it knows."""
    knows = not done or peering.close_ended(peer)
    for each in done:
        each["knows"] = knows
    if not knows:
        tables = str(done[0]["table"]) if len(done) == 1 else f"these {len(done)} tables"
        printer.note(f"{peer} did not answer; it waits for {tables} until it is reached")


def _groups(named: list[str] | None, every: bool) -> list[str]:
    if named and every:
        raise RequestError("-lg and --all-loc-groups were both given", "Give one of them")
    return named or []
