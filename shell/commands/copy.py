"""copy, sync: files and folders between stores."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from replication.error_text import counted
from shell.cli.interrupting import leaving_on_interrupt
from shell.cli.invocation import Invocation
from shell.cli.render import Printer, bytes_text, print_before_error
from shell.copying.groups import FileOptions, ReplaceOptions, RunOptions, SpeedOptions, SyncOptions, WriteOptions

if TYPE_CHECKING:
    from replication.datasets.job import CopyJob
    from replication.datasets.preview import Preview
    from replication.datasets.two_way.sync import SyncResult
    from replication.errors import ReplicationError, RequestError


def copy(
    invocation: Invocation,
    source: Annotated[
        str, Argument(metavar="SRC", help="A folder or a file: a path, a URL, or walship://PEER/FOLDER.")
    ],
    target: Annotated[str, Argument(metavar="DST", help="The folder, or the file's new name: likewise.")],
    run: RunOptions,
    files: FileOptions,
    replacing: ReplaceOptions,
    writing: WriteOptions,
    speed: SpeedOptions,
) -> None:
    """Copy a folder or a file between stores; what is copied appears whole, and is durable when it returns.

    Folders are published one by one, each with all its files. Run it again after a failure: it goes on where it was.
    Exits with 12 if some files failed. Only if a cluster is named is the copy recorded, on that cluster's timeline.
    """
    from replication.datasets.publication.events import open_events
    from replication.datasets.publication.recording import RecordedDataset
    from replication.datasets.request import copy_job
    from shell.copying.options import configuration_of
    from shell.copying.running import reporting

    printer, timeline = invocation.printer, invocation.timeline_url()
    invocation.call_peers(source, target)
    configuration = configuration_of(files, replacing, writing, speed)
    with (
        copy_job(source, target, configuration, since_snapshot=run.since_snapshot) as job,
        reporting(job, run.report, printer, show=run.dry_run or run.check),
    ):
        job.retry_suspended = run.retry_suspended
        job.events = open_events(run.events) if run.events else None
        job.recorded = RecordedDataset(timeline) if timeline else None
        if run.check:
            _check(job, printer)
        elif run.dry_run:
            _preview(job, printer)
        else:
            _run(job, printer)


def _run(job: CopyJob, printer: Printer) -> None:
    from shell.copying.running import print_counts, run_shown

    with leaving_on_interrupt(printer.stopped):
        run_shown(job, printer)
        print_counts(job, printer)


def _preview(job: CopyJob, printer: Printer) -> None:
    from replication.datasets.preview import Preview
    from replication.datasets.removals import removals_refusal
    from replication.errors import CopyIncompleteError
    from shell.copying.running import progress_shown

    with progress_shown(lambda: ("", job.progress.view()), printer, only_lines=True):
        found = Preview(job).run()
    problem: ReplicationError | None = removals_refusal(found.found["extra"], job.configuration, job.source)
    if failed := found.found["failed"]:
        problem = CopyIncompleteError(
            f"{counted(failed, 'file')} would not be copied", "--report FILE has each of them, and why"
        )
    _sum_up(found, printer, "would be copied", problem)


def _check(job: CopyJob, printer: Printer) -> None:
    from replication.datasets.preview import compared
    from replication.errors import CopyDifferenceError
    from shell.copying.running import progress_shown

    with progress_shown(lambda: ("", job.progress.view()), printer, only_lines=True):
        found = compared(job)
    if job.configuration.conversions:
        printer.note("what --convert changes was compared by its time alone")
    different = {name: found.found[name] for name in ("missing", "different", "extra", "failed") if found.found[name]}
    counts = ", ".join(f"{count} {name}" for name, count in different.items())
    problem = CopyDifferenceError(f"the target differs: {counts}", "Copy again, or look at the files")
    _sum_up(found, printer, "differ", problem if different else None)


def _sum_up(found: Preview, printer: Printer, what: str, problem: ReplicationError | None) -> None:
    """Print the summary, and raise the problem if there is one, also if nothing can be printed."""
    from shell.copying.running import skipped_text

    wanted = found.found["missing"] + found.found["different"]
    outcomes = ", ".join(skipped_text(name, count) for name, count in sorted(found.found.items()))
    with print_before_error(problem):
        printer.value(
            {"files": wanted, "bytes": found.bytes_listed, "outcomes": dict(found.found)},
            f"{counted(wanted, 'file')}, {bytes_text(found.bytes_listed)}, {what}; {outcomes or 'nothing was found'}",
        )
    if problem is not None:
        raise problem


def sync(
    invocation: Invocation,
    first: Annotated[str, Argument(metavar="A", help="A folder: a path, a URL, or walship://PEER/FOLDER.")],
    second: Annotated[str, Argument(metavar="B", help="Likewise; what both agreed on is noted in B.")],
    files: FileOptions,
    speed: SpeedOptions,
    syncing: SyncOptions,
) -> None:
    """Copy changes between two folders both ways; of a file that changed on both, both versions are kept.

    The newer keeps its name, and the older becomes NAME.conflict-…. A change wins over a removal.
    """
    from replication.core.copying.two_way import SyncAction
    from replication.datasets.removals import removals_refusal
    from replication.datasets.request import refuse_nested
    from replication.datasets.stores.open import open_store
    from replication.datasets.two_way.sync import TwoWaySync
    from replication.errors import RequestError
    from replication.permissions import as_user
    from shell.copying.options import configuration_of
    from shell.copying.running import progress_shown

    refuse_nested(first, second)
    invocation.call_peers(first, second)
    if files.follow_links:
        raise RequestError("sync follows no links: what they point at would be written to both ways", "Leave it out")
    replacing = ReplaceOptions(max_delete=syncing.max_delete, backup_dir=syncing.backup_dir)
    if kept := syncing.backup_dir.rstrip("/"):  # that folder only, and before any rule that includes it
        files = replace(files, filters=[f"- regex:^{re.escape(kept)}(/|$)", *(files.filters or ())])
    configuration = configuration_of(files, replacing, WriteOptions(), speed)
    with open_store(first) as one, open_store(second) as other:
        sides = TwoWaySync(one, other, configuration, retry_suspended=syncing.retry_suspended)
        with progress_shown(sides.view, invocation.printer), as_user():
            result = sides.run(
                dry_run=syncing.dry_run,
                planned=lambda action, path: invocation.printer.progress(f"{action.value:<23} {path}"),
            )
    most = max(result.actions[SyncAction.REMOVE_FIRST.value], result.actions[SyncAction.REMOVE_SECOND.value])
    _report(invocation.printer, result, removals_refusal(most, configuration) if syncing.dry_run else None)


def _report(printer: Printer, result: SyncResult, refusal: RequestError | None) -> None:
    """Print what was done, and raise what failed or would be refused, also if nothing can be printed."""
    from shell.copying.running import incomplete, skipped_text

    counts = [f"{number:,} {action}" for action, number in sorted(result.actions.items())]
    done = ", ".join(counts + [skipped_text(kind, number) for kind, number in sorted(result.skipped.items())])
    kept = f"; {counted(len(result.conflicts), 'conflict')} kept: {', '.join(result.conflicts[:5])}"
    shown = {
        "actions": dict(result.actions),
        "conflicts": result.conflicts,
        "failures": result.failures,
        "skipped": dict(result.skipped),
    }
    with print_before_error(result.failures or refusal):
        printer.value(shown, (done or "nothing was found") + (kept if result.conflicts else ""))
    if result.failures:
        raise incomplete(len(result.failures), result.failures)
    if refusal is not None:
        raise refusal
