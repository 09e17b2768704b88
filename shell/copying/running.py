"""Runs a copy with its progress shown, and reports the outcome of every file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from rich.progress import BarColumn, TextColumn

from replication.datasets.copying.progress import CopyCounts, ProgressView
from replication.datasets.job import NOT_REMOVED, CopyJob
from replication.datasets.stores.base import EntryKind
from replication.error_text import counted
from replication.errors import CopyIncompleteError, RequestError, StorageError
from replication.permissions import as_user
from shell.cli.interrupting import run_beside
from shell.cli.render import Printer, bytes_text, print_before_error, seconds_text

_BAR_EVERY_S, _LINE_EVERY_S = 0.2, 10.0


def run_shown(job: CopyJob, printer: Printer, name: str = "") -> CopyCounts:
    """Run the copy, of a dataset by its name, with its progress shown."""
    with progress_shown(lambda: (name, job.progress.view()), printer), as_user():
        return job.run()


def print_counts(job: CopyJob, printer: Printer, name: str = "") -> None:
    """Print the summary of a copy that has run, which begins with the name of a dataset.

    Raises:
        CopyIncompleteError: some files failed, also if nothing can be printed.
    """
    view = job.progress.view()
    counts = view.counts
    rate = counts.bytes_copied / view.seconds if view.seconds else 0.0
    of_dataset = {"dataset": name} if name else {}
    with print_before_error(counts.failed):
        printer.value(
            of_dataset | asdict(counts) | {"seconds": round(view.seconds, 3)},
            (name and f"{name}: ") + _summary(counts, view.seconds, rate),
        )
    if counts.failed:
        raise incomplete(counts.failed, counts.failures, counts.waiting)


def incomplete(failed: int, failures: Mapping[str, str], waiting: int = 0) -> CopyIncompleteError:
    """The error of a copy of which some files failed, and others ``waiting`` for them are not published."""
    path, reason = next(iter(failures.items()))
    of_set = f", and {counted(waiting, 'file')} to be published with them" if waiting else ""
    alone = ". With --file-set file each is published alone" if waiting else ""
    return CopyIncompleteError(
        f"{counted(failed, 'file')} failed{of_set}; the first: {path}: {reason}",
        f"Remove the cause and run it again: it goes on where it was{alone}",
    )


def _summary(counts: CopyCounts, seconds: float, rate: float) -> str:
    parts = [
        f"{counted(counts.files_published, 'file')} copied, {bytes_text(counts.bytes_copied)}"
        f" in {seconds_text(seconds)} ({bytes_text(rate)}/s)"
    ]
    if counts.bytes_reused:
        parts.append(f"{bytes_text(counts.bytes_reused)} reused from an earlier run")
    parts += [skipped_text(reason, count) for reason, count in sorted(counts.skipped.items())]
    if counts.deleted:
        parts.append(f"{counts.deleted} deleted")
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.waiting:
        parts.append(f"{counts.waiting} waiting for them")
    return "; ".join(parts)


def skipped_text(reason: str, count: int) -> str:
    """``3 same``; links and special files in the plural: ``2 symbolic links skipped``."""
    kinds = (EntryKind.LINK.value, EntryKind.OTHER.value)
    why = ", since a file failed" if reason == NOT_REMOVED else ""
    return f"{counted(count, reason)} skipped" if reason in kinds else f"{count:,} {reason}{why}"


def progress_shown(
    view: Callable[[], tuple[str, ProgressView]], printer: Printer, *, only_lines: bool = False
) -> AbstractContextManager[None]:
    """Show how far something is, in a thread that ends with the block; without a bar where results are printed, too."""

    def show(ended: threading.Event) -> None:
        shown = printer.bar(BarColumn(), TextColumn("{task.description}", markup=False))
        shown.disable = shown.disable or only_lines
        with shown as bar:
            task = bar.add_task("", total=None)
            while not ended.wait(_LINE_EVERY_S if bar.disable else _BAR_EVERY_S):
                stage, now = view()
                line, total = _line(stage, now), None if now.is_listing else max(now.counts.bytes_listed, 1)
                bar.update(task, completed=now.bytes_done, total=total, description=line)
                if bar.disable and not printer.as_json:
                    printer.err.print(line, markup=False, highlight=False)

    return run_beside(show, "copy-progress")


def _line(stage: str, view: ProgressView) -> str:
    begin, counts = f"{stage}: " if stage else "", view.counts
    if view.is_listing and not view.bytes_done:
        skipped = f", {left_out:,} skipped" if (left_out := sum(counts.skipped.values())) else ""
        found = f"{counted(counts.files_listed, 'file')} found, {bytes_text(counts.bytes_listed)}"
        return f"{begin}{found}{skipped}, still listing"
    so_far = f"{counts.files_published} of {counts.files_listed}{'+' if view.is_listing else ''} files"
    done = f"{bytes_text(view.bytes_done)} of {bytes_text(counts.bytes_listed)}"
    if view.is_listing:
        left = "still listing"
    elif view.bytes_done >= counts.bytes_listed and counts.files_published < counts.files_listed:
        left = "publishing"
    else:
        left = f"{seconds_text(view.left_s)} left" if view.left_s is not None else ""
    return begin + ", ".join(part for part in (so_far, done, f"{bytes_text(view.bytes_per_s)}/s", left) if part)


@contextmanager
def reporting(job: CopyJob, path: Path | None, printer: Printer, *, show: bool) -> Iterator[None]:
    """Have the job's outcomes written. ``show`` also prints each outcome that is not "same"."""
    is_read, failed = show, list[OSError]()
    with ExitStack() as stack:
        file = stack.enter_context(_written(path, failed)) if path is not None else None
        lock = threading.Lock()

        def report(outcome: str, name: str, size: int, reason: str) -> None:
            nonlocal is_read
            with lock:
                if file is not None and not failed:
                    entry = {"outcome": outcome, "path": name, "bytes": size} | ({"reason": reason} if reason else {})
                    try:
                        file.write(json.dumps(entry) + "\n")
                    except OSError as error:  # files are copied all the same
                        failed.append(error)
                if is_read and outcome != "same":
                    try:
                        printer.line(f"{outcome:<13} {name}{reason and f': {reason}'}")
                    except OSError:  # no reader, or no room: what is found is counted all the same
                        is_read = False

        job.report = report
        yield


@contextmanager
def _written(path: Path, failed: list[OSError]) -> Iterator[TextIO]:
    """The report, closed at the end; StorageError if it is not whole then, as others have noted in ``failed``."""
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"the report {path} cannot be written: {error.strerror}", "Give another path") from None
    try:
        yield file
    finally:
        try:
            file.close()
        except OSError as error:
            failed.append(error)
    if failed:
        what = f"the report {path} is not whole: {failed[0].strerror}"
        raise StorageError(what, "The files are copied as told. Make room, and run it again")
