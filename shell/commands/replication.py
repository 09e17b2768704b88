"""enablereplication, disablereplication, status, readonly: which tables go where, their lag, and who may write."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from peer.client.contacts import known_peer
from peer.client.pattern_rules import end_pattern_rule, stand, to_enable
from peer.status.members import await_writers
from peer.status.paths import broken
from replication.coordination.base import keeps_tables
from replication.core.definition.choice import chosen, is_chosen, is_pattern
from replication.core.roles import Role
from replication.errors import CoordinationError, ReplicationError, RequestError
from replication.ledger.base import PatternRule
from shell.cli.invocation import Invocation, add_verb, table_option, tables_option
from shell.cli.render import Printer, bytes_text, moment_text, seconds_text
from shell.commands.bootstrap import WaitOption, await_rows, room_for
from shell.commands.derived import show_derived, show_pattern_rules
from shell.commands.operate import for_each, gap_text, show_forecasts, show_missing, show_sending

if TYPE_CHECKING:
    from peer.bootstrap.room import BootstrapRoom
    from peer.client.cluster import Cluster
    from peer.status.collect import ClusterStatus, TableAtPeer
    from replication.core.definition.schema import TableSpec
    from replication.ledger.base import Rule

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
PeerArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="A peer; see walship listclusters.")]


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


def register(app: typer.Typer) -> None:
    """Add these verbs to ``app``."""
    add_verb(app, "enablereplication", enablereplication)
    add_verb(app, "disablereplication", disablereplication)
    add_verb(app, "status", status)
    add_verb(app, "readonly", readonly)


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
    with invocation.connect() as (cluster, printer):
        patterns = [] if once else [text for text in table if is_pattern(text)]
        if remote_table and patterns:
            raise RequestError("--remote-table names one table, not a pattern", "Enable it by its name")
        peering, groups = cluster.peering, _groups(group, all_loc_groups)
        chosen_here = (tuple(exclude or ()), tuple(groups), with_properties is not False)
        before = {
            text: stand(peering, PatternRule(cluster_name, text, *chosen_here)) for text in dict.fromkeys(patterns)
        }
        made: list[Rule] = []
        room: BootstrapRoom | None = None
        refused: ReplicationError | None = None

        def enable(name: str) -> None:
            rules = cluster.peering.enable(
                name,
                groups,
                cluster_name,
                remote_table,
                from_now=from_now,
                bootstrap_bytes=None if room is None else room.there_bytes,
                with_properties=with_properties,
                count_rows=lambda spec: _count(cluster, spec),
            )
            made.extend(rules)
            sent = ", ".join(rule.group for rule in rules)
            too = "; the rows it has follow, see walship status" if bootstrap else ""
            how = f"as {rules[0].remote_table}"
            if with_properties is not None:
                how += f", {'with' if with_properties else 'without'} its properties"
            printer.line(f"{name} (groups {sent}) goes to {cluster_name} from now on, {how}{too}")
            for line in dict.fromkeys(gap_text(gap, cluster_name) for rule in rules for gap in rule.gaps):
                printer.note(f"{name}: {line}")

        try:
            anew = None if bootstrap else with_properties
            names = to_enable(peering, table, exclude or (), cluster_name, patterns, groups, anew)
            if remote_table and len(names) > 1:
                raise RequestError(f"--remote-table names one table, not {len(names)}", "Enable them one at a time")
            if names and bootstrap:  # all of them fit, or none begins
                room = room_for(cluster, printer, names, cluster_name)
                room.check()
            if names:
                for_each(names, enable, printer)
        except ReplicationError as error:
            if not made:  # what is refused as a whole leaves everything as it was
                for text, was in before.items():
                    if was is None:
                        end_pattern_rule(peering, text, cluster_name)
                    else:
                        stand(peering, was)
                raise
            refused = error
        for text, was in before.items():
            only = f" (groups {', '.join(groups)})" if groups else ""
            instead = "" if was is None else ", in place of the rule there was for them"
            printer.line(f"tables of {text}{only} that are made later go to {cluster_name}, too{instead}")
        if printer.as_json:
            printer.value(made)
        if refused is not None:
            raise refused
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
            rest = {s.pattern: s.groups for s in cluster.ledger.rules.standing() if s.peer == cluster_name}.get(text)
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
        left = [s.pattern for s in cluster.ledger.rules.standing() if s.peer == cluster_name]
        if left and any(is_pattern(text) for text in table):
            printer.note(f"Tables made later still go to {cluster_name} by the rule for {', '.join(left)}")
        if printer.as_json:
            printer.value(done[0] if len(done) == 1 else done)


def status(
    invocation: Invocation,
    peer: Annotated[str | None, typer.Option("--peer", metavar="NAME", help="Show only this peer.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every two seconds until Ctrl-C.")] = False,
) -> None:
    """Show lag, errors and disk use, here and at each peer."""
    with invocation.connect() as (cluster, printer):
        if peer is not None:
            known_peer(cluster.ledger, peer)
        while True:
            found = cluster.status() if peer is None else cluster.status().of_peer(peer)
            if printer.as_json:
                printer.value(found)
            else:
                show_status(printer, found)
            if not watch:
                return
            time.sleep(2)


def readonly(
    invocation: Invocation,
    switch: Annotated[
        Switch | None, typer.Argument(metavar="on|off", help="on: STANDBY. off: ACTIVE. Without it the role is shown.")
    ] = None,
) -> None:
    """Make the cluster STANDBY, which refuses writers, or ACTIVE; peers still send to it."""
    with invocation.connect() as (cluster, printer):
        coordination = cluster.coordination
        read = coordination.role()
        if switch is not None:
            wanted = Role.STANDBY if switch is Switch.ON else Role.ACTIVE
            state = read.state.becomes(wanted)
            if state != read.state:
                coordination.set_role(state, read.version)
            if wanted is Role.STANDBY:  # also said again: whoever said it first may have been stopped before this
                await_writers(coordination, state.epoch, cluster.config.writer.lease_s)
            try:
                cluster.ledger.terms.keep_role(state)
            except CoordinationError as error:  # it is so all the same, and each role notes it when it starts
                printer.note(f"{error.what}; ZooKeeper has it, and walship up notes it in the ledger when it starts")
            read = coordination.role()
        told = {"cluster": cluster.name, "role": read.state.role.value, "epoch": read.state.epoch}
        takes = "takes writers" if read.state.role is Role.ACTIVE else "takes no writers; what peers send goes on"
        printer.value(told, f"{cluster.name} is {read.state.role.value} (epoch {read.state.epoch}): it {takes}")


def _table_text(row: TableAtPeer) -> str:
    name = f"{row.table} (dropped here)" if row.dropped else row.table
    return name if row.remote_table == row.table else f"{name} → {row.remote_table}"


def _groups(named: list[str] | None, every: bool) -> list[str]:
    if named and every:
        raise RequestError("-lg and --all-loc-groups were both given", "Give one of them")
    return named or []


def _count(cluster: Cluster, spec: TableSpec) -> int | None:
    if not keeps_tables(cluster.coordination.hosts()):
        return None
    column = spec.columns[0].name
    return int(sum(batch.num_rows for batch in cluster.read(spec.name, columns=[column])))


def show_status(printer: Printer, found: ClusterStatus) -> None:
    """Print how everything is."""
    members = found.members
    if found.location:
        printer.line(f"this host stands in {found.location}")
    if members.problem:
        printer.note(f"ZooKeeper does not answer: {members.problem}")
    else:
        printer.line(
            f"{members.role} (epoch {members.role_epoch}), term {found.term}; "
            f"workers {', '.join(members.workers) or 'none'}; receivers {', '.join(members.receivers) or 'none'}; "
            f"{members.writers} writers"
        )
    _show_hosts(printer, found)
    printer.line(
        f"own replay has {bytes_text(found.replay_backlog_bytes)} to go; closed time {moment_text(found.closed)}"
    )
    if found.replay_backlog_bytes and (trouble := members.without_replay()):
        printer.note(trouble)
    below = {(peer.peer, peer.last_error) for peer in found.sending if peer.retries}
    at_peers = [
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
            "last_error": "see below" if (row.peer, row.last_error) in below else row.last_error,
        }
        for row in found.peers
    ]
    columns = ("peer", "table", "group", "state", "needed", "finished", "landed", "applied", "lag", "last_error")
    printer.rows(at_peers, columns, "nothing goes to a peer; see walship enablereplication")
    show_pattern_rules(printer, found.standing)
    show_sending(printer, found.sending)
    show_missing(printer, found.peers)
    tables = [
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
    printer.rows(tables, ("table", "replicated_to", "table_age", "quarantined", "discarded", "held_by"), "no tables")
    for here in found.tables:
        for note in (here.replay_held, *here.clashes):
            if note:
                printer.note(f"{here.table}: {note}")
    show_derived(printer, found.derived, members)
    origins = [
        {
            "origin": row.origin.partition(":")[0],
            "by": "; ".join(str(way) for way in row.paths if way.silent_s is None) or ("no route" if row.paths else ""),
            "replicated_time": moment_text(row.replicated),
            "age": "-" if row.age_s is None else seconds_text(row.age_s),
            "held_by": row.held_by,
        }
        for row in found.origins
    ]
    printer.rows(origins, ("origin", "by", "replicated_time", "age", "held_by"), "no origins yet")
    for coming in found.origins:
        for text in broken(coming.origin.partition(":")[0], coming.paths):
            printer.note(text)
    kept = found.kept
    ratio = "" if kept.per_byte is None else f" ({kept.per_byte:.2f} bytes kept per byte ever written or landed)"
    printer.line(
        f"kept: WAL {bytes_text(kept.wal)}, landing {bytes_text(kept.landing)}, changes {_told(kept.changes)}, "
        f"tables {_told(kept.tables)}{ratio}"
    )
    _show_retained(printer, found)
    show_forecasts(printer, found.peer_forecasts, found.disk)
    for frame in found.quarantined:
        state = f"discarded {moment_text(frame.discarded)}" if frame.discarded else "quarantined"
        printer.note(f"{state}: frame {frame.file.local}:{frame.begin}: {frame.reason}; copy {frame.copy}")
    for clock in found.far_ahead:
        origin, ahead = clock.origin.partition(":")[0], seconds_text(clock.ahead_s)
        printer.note(
            f"commit times of {origin} are up to {ahead} ahead of the clock here (seen {moment_text(clock.seen)}):"
            " look at the clocks. Writers follow, so that newer writes win all the same"
        )
    for conflict in found.batch_conflicts:
        printer.note(
            f"batch id {conflict.batch_id!r} of {conflict.table} was used for other rows, too: {conflict.wal.local} has"
            f" them (seen {moment_text(conflict.at)}). Both are kept; look for rows that are there twice"
        )
    for file in found.unreadable:
        printer.note(f"file {file.file} cannot be read: {file.why}. {file.remedy}")
    for lost in found.lost:
        frames, when = f"{lost.frames} frames of {lost.table}", moment_text(lost.at)
        printer.note(f"{frames} are lost here, with WAL {lost.file}, which was salvaged {when}; a peer may have them")


def _told(size: int | None) -> str:
    return "not told" if size is None else bytes_text(size)


def _show_hosts(printer: Printer, found: ClusterStatus) -> None:
    """The cluster's hosts, where it has several, and what waits for one of them."""
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
        printer.rows(rows, ("host", "runs", "WAL", "landing", "to_replay"))
    for host in hosts:
        if host.away and host.unapplied_bytes:
            printer.note(
                f"host {host.slot} has {bytes_text(host.unapplied_bytes)} that replay waits for and cannot have: "
                f"{host.away}. It is applied when that host is back: walship up"
            )


def _show_retained(printer: Printer, found: ClusterStatus) -> None:
    """Which files wait for whom before they may go."""
    if not found.retained.own_replay:
        printer.line("this cluster keeps no tables: files wait for peers only")
    for peer in found.retained.peers:
        if not peer.lacking_files and not peer.unapplied_files:
            continue
        budget = found.retained.peer_bytes_max
        past = f", {peer.past_budget_files} of them past its budget" if peer.past_budget_files else ""
        of_budget = "" if budget is None else f" of {bytes_text(budget)}"
        lacking = f"{peer.lacking_files} closed files ({bytes_text(peer.lacking_bytes)}) not all there"
        unapplied = f"{peer.unapplied_files} ({bytes_text(peer.unapplied_bytes)}{of_budget}) there but not applied"
        printer.line(f"kept for {peer.peer}: {lacking}, {unapplied}{past}")
