"""quarantine list, quarantine retry, quarantine discard: frames that could not be applied."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from replication.error_text import counted
from replication.errors import ReplicationError, RequestError
from shell.cli.invocation import Invocation
from shell.cli.render import bytes_text, moment_text, print_before_error

FramesArgument = Annotated[
    list[str] | None, Argument(metavar="FRAME", help="slot/number:offset, as quarantine list shows it.")
]
_NONE_HELD = "no frame is held: a discarded one is retried by its name, and lost writes have walship lostwrites"


def quarantine_list(invocation: Invocation) -> None:
    """List quarantined and discarded frames, with reasons and copies."""
    from peer.repair.quarantine_actions import name_of

    with invocation.connect() as (cluster, printer):
        specs = {spec.uuid: spec.name for spec in cluster.ledger.tables.all()}
        rows = [
            {
                "frame": name_of(frame),
                "table": specs.get(frame.table, str(frame.table)),
                "state": "discarded" if frame.discarded else "lost write" if frame.succession else "held",
                "since": moment_text(frame.at),
                "discarded_at": moment_text(frame.discarded) if frame.discarded else "",
                "bytes": frame.end - frame.begin,
                "size": bytes_text(frame.end - frame.begin),
                "reason": frame.reason,
                "copy": frame.copy,
            }
            for frame in cluster.ledger.replay.quarantined()
        ]
        printer.rows(rows, empty="nothing is quarantined")


def quarantine_retry(
    invocation: Invocation,
    frames: FramesArgument = None,
    every: Annotated[
        bool, Option("--all", help="Retry every frame that is neither discarded nor a lost write.")
    ] = False,
) -> None:
    """Apply quarantined frames again, for example after an upgrade."""
    from peer.repair.quarantine_actions import find, name_of, retry
    from replication.files.local import LocalFiles
    from shell.commands.operate import for_each

    if bool(frames) == every:
        raise RequestError("name frames, or give --all", "See walship quarantine list")
    with invocation.connect() as (cluster, printer):
        known = cluster.ledger.replay.quarantined()
        held = [frame for frame in known if not frame.discarded and not frame.succession]
        chosen = {name_of(frame): frame for frame in (held if every else [find(known, name) for name in frames or []])}
        rows: list[dict[str, str]] = []

        def again(name: str) -> None:
            made = retry(cluster.config, cluster.ledger, LocalFiles(), chosen[name])
            rows.append({"frame": name, "file": made.file.local})

        failure: ReplicationError | None = None
        try:
            for_each(list(chosen), again, printer, "frames")
        except ReplicationError as error:
            failure = error
        if rows or failure is None:
            with print_before_error(failure):
                printer.rows(rows, empty=_NONE_HELD if known else "nothing is quarantined")
        if rows:
            printer.progress("replay applies them from these files; a frame that fails again is quarantined again")
            if any(chosen[row["frame"]].discarded for row in rows):
                printer.progress("a peer that was bootstrapped before the retry lacks the rows: walship bootstrap")
        if failure is not None:
            raise failure


def quarantine_discard(
    invocation: Invocation,
    frames: Annotated[list[str], Argument(metavar="FRAME", help="slot/number:offset, as quarantine list shows it.")],
    yes: Annotated[bool, Option("--yes", help="Confirm that their rows will be missing here.")] = False,
) -> None:
    """Discard quarantined frames, so that they no longer hold up their tables; their copies stay."""
    from peer.repair.quarantine_actions import discard, find, name_of

    with invocation.connect() as (cluster, printer):
        known = cluster.ledger.replay.quarantined()
        chosen = [find(known, name) for name in frames]
        if not yes:
            raise RequestError(
                f"{counted(len(chosen), 'frame')} would be missing from the tables here for good", "Confirm with --yes"
            )
        is_alone = not cluster.config.shares_ledger
        rows = [
            {"frame": name_of(frame), "copy": frame.copy, "damaged": discard(cluster.ledger, frame, is_alone=is_alone)}
            for frame in chosen
        ]
        printer.rows(rows)
        printer.line("discarded; the copies stay, and walship quarantine retry still takes those that are not damaged")
        if any(row["damaged"] for row in rows):
            printer.line(
                "to get the rows of damaged or lost frames, run walship bootstrap on a cluster that has them; "
                "enablereplication --bootstrap if it does not send the table here yet"
            )
