"""copy: files and folders between stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shell.cli.invocation import Invocation, add_verb
from shell.cli.render import Printer, bytes_text

if TYPE_CHECKING:
    from replication.datasets.job import CopyJob
    from replication.datasets.preview import Preview

_MODES = ("update", "overwrite", "skip")
_RULES = "A glob, or regex: and an expression. May be repeated."


def register(app: typer.Typer) -> None:
    """Add these verbs to ``app``."""
    add_verb(app, "copy", copy)


def copy(
    invocation: Invocation,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A folder or a file: a path, or a URL of any store.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The folder, or the file's new name: likewise.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be copied; copy nothing.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the contents and copy nothing. Exits with 13 if they differ.")
    ] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="RULE", help="'+ GLOB' or '- GLOB'; the first that matches decides."),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", metavar="GLOB", help=_RULES)] = None,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Copy only these. Comes after --filter and --exclude."),
    ] = None,
    min_size: Annotated[str, typer.Option("--min-size", metavar="SIZE", help="Skip smaller files.")] = "",
    max_size: Annotated[str, typer.Option("--max-size", metavar="SIZE", help="Skip larger files.")] = "",
    newer_than: Annotated[str, typer.Option("--newer-than", metavar="AGE", help="Skip older files: 30m, 7d.")] = "",
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="Skip newer files.")] = "",
    recursive: Annotated[bool, typer.Option("--recursive/--no-recursive", help="Copy folders below, too.")] = True,
    update: Annotated[bool, typer.Option("--update", help="Skip files that are newer in the target.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Copy also what is the same.")] = False,
    skip: Annotated[bool, typer.Option("--skip", help="Skip every file that the target has.")] = False,
    checksum: Annotated[bool, typer.Option("--checksum", help="Compare contents, not size and time.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove files that the source does not have.")] = False,
    max_delete: Annotated[
        int | None, typer.Option("--max-delete", min=0, help="Remove none if there are more of them.")
    ] = None,
    backup_dir: Annotated[
        str, typer.Option("--backup-dir", metavar="DIR", help="Keep replaced and removed files there, below DST.")
    ] = "",
    preserve: Annotated[
        str, typer.Option("--preserve", help="times, permissions, owner, group; with commas. Or all, or none.")
    ] = "times,permissions",
    verify: Annotated[bool, typer.Option("--verify", help="Read every file back before it is published.")] = False,
    follow_links: Annotated[bool, typer.Option("--follow-links", help="Copy what links to files point at.")] = False,
    file_set: Annotated[
        Literal["directory", "dataset", "file"], typer.Option("--file-set", help="Which files appear together.")
    ] = "directory",
    limit: Annotated[str, typer.Option("--limit", metavar="RATE", help="Bytes per second at most: 50MiB.")] = "",
    threads: Annotated[int, typer.Option("--threads", min=0, max=256, help="That copy at once. 0 chooses.")] = 0,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="For each file.")] = 3,
    files_per_split: Annotated[int, typer.Option("--files-per-split", min=1, help="Small files in one task.")] = 128,
    range_size: Annotated[str, typer.Option("--range-size", metavar="SIZE", help="Parts of large files.")] = "64MiB",
    block_size: Annotated[str, typer.Option("--block-size", metavar="SIZE", help="Of the target, on HDFS.")] = "",
    replication: Annotated[int | None, typer.Option("--replication", min=1, help="Of the target, on HDFS.")] = None,
    convert: Annotated[
        list[str] | None, typer.Option("--convert", help="gunzip, gzip, unzstd, zstd. May be repeated, in order.")
    ] = None,
    events: Annotated[
        str, typer.Option("--events", metavar="URL|FILE", help="Send an event for each file and file set.")
    ] = "",
    retry_suspended: Annotated[
        bool, typer.Option("--retry-suspended", help="Publish again what failed too often.")
    ] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write each file's outcome there, as JSON.")] = None,
) -> None:
    """Copy a folder or a file between stores; what is copied appears whole, and is durable when it returns.

    Folders are published one by one, each with all its files. Run it again after a failure: it goes on where it was.
    Exits with 12 if some files failed. Only if a cluster is named is the copy recorded, on that cluster's timeline.
    """
    from replication.core.copying.conversions import check_conversions
    from replication.datasets.publication.events import open_events
    from replication.datasets.publication.recording import RecordedDataset
    from replication.datasets.request import copy_job
    from shell.copying.options import configuration_of, modes
    from shell.copying.recording import timeline_of
    from shell.copying.reports import reporting

    printer = invocation.printer
    configuration = configuration_of(
        existing=modes(update=update, overwrite=overwrite, skip=skip),
        rules=(filters or [], exclude or [], include or []),
        sizes=(min_size, max_size),
        ages=(newer_than, older_than),
        preserve=preserve,
        backup_dir=backup_dir,
        grouping=file_set,
        given={
            "compare_content": checksum,
            "recursive": recursive,
            "follow_links": follow_links,
            "delete": delete,
            "delete_max": max_delete,
            "verify": verify,
            "threads": threads,
            "attempts": attempts,
            "files_per_split": files_per_split,
            "replication": replication,
            "conversions": check_conversions(convert or []),
        },
        numbers={"bytes_per_s": limit, "range_bytes": range_size, "block_size": block_size},
    )
    timeline = timeline_of(invocation)
    with copy_job(source, target, configuration) as job, reporting(job, report, printer, show=dry_run or check):
        job.retry_suspended = retry_suspended
        job.events = open_events(events) if events else None
        job.recorded = RecordedDataset(timeline) if timeline else None
        if check:
            _check(job, printer)
        elif dry_run:
            _preview(job, printer)
        else:
            _run(job, printer)


def _run(job: CopyJob, printer: Printer) -> None:
    from shell.copying.running import run_shown

    run_shown(job, printer)


def _preview(job: CopyJob, printer: Printer) -> None:
    from replication.datasets.preview import Preview

    found = Preview(job).run()
    _summary(found, printer, "would be copied")


def _check(job: CopyJob, printer: Printer) -> None:
    from replication.datasets.preview import compared
    from replication.errors import CopyDifferenceError

    found = compared(job, content=True)
    _summary(found, printer, "differ")
    different = {name: found.found[name] for name in ("missing", "different", "extra", "failed") if found.found[name]}
    if different:
        said = ", ".join(f"{count} {name}" for name, count in different.items())
        raise CopyDifferenceError(f"the target differs: {said}", "Copy again, or look at the files")


def _summary(found: Preview, printer: Printer, what: str) -> None:
    wanted = found.found["missing"] + found.found["different"]
    printer.value(
        {"files": wanted, "bytes": found.bytes_listed, "outcomes": dict(found.found)},
        f"{wanted} files, {bytes_text(found.bytes_listed)}, {what}; "
        + (", ".join(f"{count} {name}" for name, count in sorted(found.found.items())) or "nothing was found"),
    )
