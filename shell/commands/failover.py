"""switchover, failover, failback, lostwrites: another cluster becomes the one that takes writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from replication.core.roles import Role
from replication.error_text import counted
from replication.errors import RequestError, StepFailedError
from shell.cli.invocation import Invocation, TableArgument, table_option, timeout_option
from shell.cli.render import Printer, bytes_text, moment_text, print_before_error, seconds_text

if TYPE_CHECKING:
    from peer.failover.failback import FailbackPlan, FailedBack
    from peer.failover.failover import FailoverPlan
    from peer.failover.loss import Loss
    from peer.failover.lost_writes import LostWrite
    from peer.failover.role_change import RoleChange
    from peer.failover.switchover import SwitchedOver, SwitchoverPlan

#: The years 2000 and 9999, in microseconds since 1970. Before are seconds, and dates without dashes; later times cannot
#: be shown.
_TIME_MIN = 946_684_800_000_000
_TIME_MAX = 253_402_300_799_000_000
_LEFT_OUT = "their rows are left out"
PlanOption = Annotated[
    bool,
    Option("--plan", help="Show the steps, and what prevents them, with the verb's exit code; change nothing."),
]


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    """Options of failover: source, time, accepted loss, and checks to override."""

    source: Annotated[
        str, Option("--from", metavar="CLUSTER", help="The cluster that is lost, if several send to this one.")
    ] = ""
    at: Annotated[
        str,
        Option(
            "--at", metavar="TIME", help="Open at an earlier time, such as 2026-01-31T12:00:00Z; UTC if it has no zone."
        ),
    ] = ""
    all_landed: Annotated[
        bool, Option("--with-all-landed", help="Open with everything that landed, not at one consistent time.")
    ] = False
    plan: PlanOption = False
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False
    loss_under_s: Annotated[
        float | None, timeout_option("Refuse unless at most the last SECONDS are lost.", "--if-loss-under")
    ] = None
    force: Annotated[
        bool,
        Option("--force", help="Go on even if the lost cluster answers as ACTIVE, or another one took over from it."),
    ] = False
    incomplete: Annotated[
        bool,
        Option("--incomplete", help="Go on even if a bootstrap is not complete; opens with everything that landed."),
    ] = False


def switchover(
    invocation: Invocation,
    to: Annotated[str, Argument(metavar="CLUSTER", help="The peer that is to take writes.")] = "",
    plan: PlanOption = False,
    cancel: Annotated[bool, Option("--cancel", help="Undo a switchover that was interrupted.")] = False,
    timeout_s: Annotated[float, timeout_option("How long writes may be stopped before it is undone.")] = 60,
) -> None:
    """Make a peer ACTIVE in place of this cluster; no acked row is lost."""
    from peer.failover import switchover as switching
    from peer.failover.role_change import RoleChange

    if bool(to) == cancel:
        raise RequestError("name the peer that is to take writes, or give --cancel", "walship switchover CLUSTER")
    if cancel and plan:
        raise RequestError("--plan and --cancel exclude each other", "Give one of them")
    with invocation.connect() as (cluster, printer):
        context = RoleChange(cluster, _reporting(printer), timeout_s)
        if cancel:
            state = switching.cancel(context)
            is_active = state.role is Role.ACTIVE
            now = "it takes writes" if is_active else "its role was changed meanwhile: see walship status"
            text = f"{cluster.name} is {state.role.value} (epoch {state.epoch}): {now}"
            printer.value({"cluster": cluster.name, "role": state.role.value, "epoch": state.epoch}, text)
            return
        if plan:
            planned = switching.plan_switchover(context, to)
            _show_plan(printer, context, planned, lambda: _print_switchover(printer, planned))
            return
        done = switching.switchover(context, to)
        printer.value(done, f"{_handed_over(done, to)} No acked row was lost.")


def failover(
    invocation: Invocation,
    to: Annotated[str, Argument(metavar="CLUSTER", help="This cluster, which is to take writes.")],
    options: FailoverOptions,
) -> None:
    """Make this cluster ACTIVE in place of one that is lost; shows what would be lost, and asks."""
    from peer.failover import failover as failing
    from peer.failover.opening import CONSISTENT, EVERYTHING
    from peer.failover.role_change import RoleChange

    for everything, name in ((options.all_landed, "--with-all-landed"), (options.incomplete, "--incomplete")):
        if options.at and everything:
            raise RequestError(f"--at and {name}, which opens with everything, exclude each other", "Give one of them")
    opens = EVERYTHING if options.all_landed else _moment(options.at) if options.at else CONSISTENT
    with invocation.connect() as (cluster, printer):
        if to != cluster.name:
            raise RequestError(
                f"a failover is run on the cluster that takes over, and this is {cluster.name}",
                f"If {to} is lost: walship --cluster {cluster.name} failover {cluster.name}. If {to} is to take over: "
                f"walship --cluster {to} failover {to}, or, if {cluster.name} is not lost: "
                f"walship --cluster {cluster.name} switchover {to}",
            )
        context = RoleChange(cluster, _reporting(printer))
        planned = failing.plan_failover(
            context, options.source, at=opens, force=options.force, incomplete=options.incomplete
        )
        if options.plan:
            _show_plan(printer, context, planned, lambda: _print_failover(printer, planned))
        shown, most_s = _loss_text(planned.loss, planned.origin), options.loss_under_s
        if most_s is not None and not planned.loss.is_under(most_s) and not failing.is_begun(context, planned):
            raise RequestError(
                f"the loss is not known to be under {most_s:g} s, so nothing was changed: {shown}",
                "Leave --if-loss-under out, and decide when asked"
                + (", or give a larger one" if planned.loss.seconds is not None else ""),
            )
        if options.plan:
            return
        if not planned.refusals and not options.yes:
            _print_losses(printer.note, planned)
            if not _confirmed(f"Make {to} ACTIVE in place of {planned.origin}?"):
                raise RequestError("nothing was changed", "Confirm, or give --yes")
        for note in filter(None, (planned.note, planned.warning)):
            printer.note(note)
        done = failing.failover(context, planned)
        took = done.seconds if done.writable_s is None else done.writable_s
        printer.value(
            done,
            f"{to} is ACTIVE (epoch {done.epoch}) in place of {done.origin}, after {seconds_text(took)}."
            f" {shown} What {done.origin} sends once it returns: walship lostwrites list",
        )


def _reporting(printer: Printer) -> Callable[[str], None]:
    """Prints each step; once there is one, Ctrl-C tells what becomes of it."""

    def report(text: str) -> None:
        printer.so_far = "what it has begun goes on when it is run again; see walship ops list"
        printer.progress(text)

    return report


def _confirmed(question: str) -> bool:
    """Whether a person says yes; False where there is nobody to answer."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)  # the question has no end of line
        return False


def failback(
    invocation: Invocation,
    to: Annotated[str, Argument(metavar="CLUSTER", help="The cluster that has returned, and is to take writes.")],
    plan: PlanOption = False,
    leave: Annotated[
        bool,
        Option("--leave-lost-writes", help="Also if nobody has decided on the lost writes, or they have yet to come."),
    ] = False,
    timeout_s: Annotated[float, timeout_option("How long writes may be stopped before it is undone.")] = 60,
) -> None:
    """Make a cluster ACTIVE again that was lost and has returned; it gets only what it lacks."""
    from peer.failover import failback as returning
    from peer.failover.role_change import RoleChange

    with invocation.connect() as (cluster, printer):
        context = RoleChange(cluster, _reporting(printer), timeout_s)
        if plan:
            planned = returning.plan_failback(context, to, leave=leave)
            _show_plan(printer, context, planned, lambda: printer.line(_outage_text(planned)))
            return
        done = returning.failback(context, to, leave=leave)
        printer.value(done, _handed_over(done, to))


def lostwrites_list(invocation: Invocation, table: Annotated[str, table_option("Only of this table.")] = "") -> None:
    """List lost writes: rows acked by a cluster that another one took over from, which came too late."""
    from peer.failover.lost_writes import lost_writes

    with invocation.connect() as (cluster, printer):
        found = lost_writes(cluster, table)
        _note_unread(printer, found, "the numbers of their rows are not known")
        rows = [
            asdict(each) | {"rows": None if each.unreadable else each.rows, "committed": moment_text(each.committed)}
            for each in found
        ]
        printer.rows(rows, ("frame", "table", "rows", "committed", "state", "succession"), "no lost writes")


def lostwrites_show(invocation: Invocation, table: TableArgument) -> None:
    """Print the rows of a table's lost writes; _op is 0 for an upsert, else it is a delete."""
    from peer.failover.lost_writes import lost_writes, rows_of

    with invocation.connect() as (cluster, printer):
        _note_unread(printer, lost_writes(cluster, table), _LEFT_OUT)
        names = (name for batch in rows_of(cluster, table) for name in batch.schema.names)
        columns = list(dict.fromkeys(names))  # some lack those that were added later
        if not columns:
            cluster.table(table)  # raises if there is none
        every = (row for batch in rows_of(cluster, table) for row in batch.to_pylist())
        rows = ({name: row.get(name) for name in columns} for row in every)
        printer.rows(rows, columns, "no lost writes", verbatim=True)


def lostwrites_merge(invocation: Invocation, table: Annotated[str, table_option("Only of this table.")] = "") -> None:
    """Apply lost writes as the versions that they are; rows written since win. On each cluster that keeps some."""
    from peer.failover.lost_writes import merge, still_undecided

    with invocation.connect() as (cluster, printer):
        frames, rest = merge(cluster, table), still_undecided(cluster, table)
        text = f"merged: {counted(frames, 'frame')}; replay applies them{rest}" if frames or rest else "no lost writes"
        printer.value({"merged": frames}, text)


def lostwrites_discard(
    invocation: Invocation,
    table: Annotated[str, table_option("Only of this table.")] = "",
    yes: Annotated[bool, Option("--yes", help="Confirm that their rows are given up.")] = False,
    leave_applied: Annotated[
        bool,
        Option("--leave-applied", help="Also what cannot be undone; clusters that had applied it keep its rows."),
    ] = False,
) -> None:
    """Give lost writes up; every cluster gets the ACTIVE one's rows. On each cluster that keeps some."""
    from peer.failover.lost_writes import discard, still_undecided, undecided

    with invocation.connect() as (cluster, printer):
        kept, before, text = undecided(cluster, table)
        if not kept:
            printer.value({"discarded": 0, "rows": 0}, "no lost writes")
            return
        if not yes:
            raise RequestError(f"{text} would be given up", "Confirm with --yes")
        frames = discard(cluster, table, leave_applied=leave_applied)
        count, rest = max(0, before - undecided(cluster, table)[1]), still_undecided(cluster, table)
        printer.value(
            {"discarded": frames, "rows": count},
            f"discarded: {counted(frames, 'frame')} with {counted(count, 'row')}{rest}",
        )


def lostwrites_export(
    invocation: Invocation,
    table: TableArgument,
    file: Annotated[Path, Argument(metavar="FILE", help="A Parquet file to write.")],
) -> None:
    """Write the rows of a table's lost writes to a Parquet file."""
    import pyarrow as pa

    from peer.failover.lost_writes import lost_writes, rows_of
    from shell.rows.reading import parquet_writer, whole, writing_to

    with invocation.connect() as (cluster, printer):
        _note_unread(printer, lost_writes(cluster, table), _LEFT_OUT)
        schemas = dict.fromkeys(batch.schema for batch in rows_of(cluster, table))  # several if it was altered
        if not schemas:
            raise RequestError(f"{table} has no lost writes", "See walship lostwrites list")
        try:
            schema, rows = pa.unify_schemas(list(schemas), promote_options="permissive"), 0
            with writing_to(file), whole(file, parquet_writer(file, schema)) as writer:
                for batch in rows_of(cluster, table):
                    there = batch.schema.names
                    columns = [batch.column(n) if n in there else pa.nulls(batch.num_rows) for n in schema.names]
                    writer.write_table(pa.table(columns, schema.names).cast(schema))
                    rows += batch.num_rows
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # a column was dropped, and another got its name
            raise RequestError(
                f"lost writes of {table} have columns of one name and different types: {error}",
                f"Print them: walship lostwrites show {table} --json",
            ) from None
        printer.value({"file": str(file), "rows": rows}, f"{counted(rows, 'row')} in {file}")


def _note_unread(printer: Printer, writes: Sequence[LostWrite], so: str) -> None:
    """Say that some copies cannot be read here, and ``so`` what is missing."""
    unread = [each.unreadable for each in writes if each.unreadable]
    if unread:
        printer.note(f"{counted(len(unread), 'frame')} cannot be read here, so {so}: {unread[0]}")


def _moment(text: str) -> int:
    """A time in microseconds since 1970; a text without a zone is UTC."""
    try:
        moment = int(text) if text.isdecimal() else None
        if moment is None:
            parsed = datetime.fromisoformat(text)
            moment = round((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1e6)
    except ValueError:
        moment = 0
    if not _TIME_MIN <= moment <= _TIME_MAX:
        raise RequestError(
            f"{text} is not a time", "Give one such as 2026-01-31T12:00:00Z, or in microseconds since 1970"
        )
    return moment


def _show_plan(
    printer: Printer,
    context: RoleChange,
    planned: SwitchoverPlan | FailoverPlan | FailbackPlan,
    print_rest: Callable[[], None],
) -> None:
    """Print a plan. If something prevents it, exit as the verb would: an interrupted change fails in one of its steps.

    ``print_rest`` prints what follows the steps, for people.
    """
    hooks = context.hooks.files() if planned.steps else ()
    with print_before_error(planned.refusals):
        if printer.as_json:
            printer.value(planned)
        else:
            if not planned.steps:
                printer.line(f"Nothing to do: {planned.successor} took over from {planned.origin} already.")
                return
            for number, step in enumerate(planned.steps, 1):
                printer.line(f"{number}. {step}")
            if hooks:
                printer.line(f"Before and after each step run: {', '.join(hook.name for hook in hooks)}")
            for refusal in planned.refusals:
                printer.line(f"Not possible now: {refusal}")
            print_rest()
    if planned.refusals:
        is_begun = planned.steps == tuple(step.describe() for step in context.unfinished_steps())
        raise typer.Exit(StepFailedError.exit_code if is_begun else RequestError.exit_code)


def _print_switchover(printer: Printer, planned: SwitchoverPlan) -> None:
    if planned.warning:
        printer.note(planned.warning)
    printer.line(f"{bytes_text(planned.pending_bytes)} are missing at {planned.successor}. {_outage_text(planned)}")


def _outage_text(planned: SwitchoverPlan | FailbackPlan) -> str:
    return f"No writes would be taken for about {seconds_text(planned.outage_s)}. No acked row would be lost."


def _handed_over(done: SwitchedOver | FailedBack, to: str) -> str:
    stopped = "" if done.outage_s is None else f" No writes were taken for {seconds_text(done.outage_s)}."
    return f"{to} is ACTIVE (epoch {done.epoch}), {done.origin} is STANDBY.{stopped}"


def _print_failover(printer: Printer, planned: FailoverPlan) -> None:
    for note in filter(None, (planned.note, planned.warning)):
        printer.note(note)
    _print_losses(printer.line, planned)
    printer.line(f"Landed and not replayed yet: {bytes_text(planned.to_replay_bytes)}.")
    took = (
        "not known before a good drill"
        if planned.rto_s is None
        else f"{seconds_text(planned.rto_s)} in the last good drill"
    )
    printer.line(f"Recovery time, until all tables answer: {took}.")


def _print_losses(report: Callable[[str], None], planned: FailoverPlan) -> None:
    """What is lost as planned, and what would be lost with everything that landed."""
    report(_loss_text(planned.loss, planned.origin))
    if planned.upto:
        report(f"If --with-all-landed is given: {_loss_text(planned.least_loss, planned.origin)}")
    if planned.fence:
        report(planned.fence)


def _loss_text(loss: Loss, origin: str) -> str:
    missing = ", ".join(f"{each.table} {each.frames}" for each in loss.tables if each.frames)
    parts = [f"Known to be missing: {missing} (frames)." if missing else "Nothing is known to be missing."]
    if loss.rows:
        left_out = (f"{e.table} {counted(e.rows, 'row')} ({bytes_text(e.bytes)})" for e in loss.tables if e.rows)
        parts.append(f"Landed and left out: {', '.join(left_out)}.")
    if loss.uncut:
        parts.append(f"These keep all that landed: {'; '.join(loss.uncut)}.")
    since = loss.upto or loss.announced
    if not since:
        return f"{' '.join(parts)} {origin} never said what it acked."
    acked = f"What {origin} acked since {moment_text(since)} by its clock, which is ahead of the one here,"
    if loss.seconds is not None:
        acked = f"What {origin} acked in the last {seconds_text(loss.seconds)}, since {moment_text(since)},"
    return f"{' '.join(parts)} {acked} is {'lost: all tables open as of that time' if loss.upto else 'not known here'}."
