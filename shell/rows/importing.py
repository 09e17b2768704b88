"""Imports files, with a line per file and a progress bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from peer.client.cluster import Cluster
from replication.core.position import Position
from replication.error_text import counted
from replication.errors import ReplicationError
from replication.writer.importing.importer import Imported
from shell.cli.render import Printer, bytes_text


class _Shown:
    """The progress bar of a file; ``latest`` is the last report of its import."""

    latest: Imported

    def __init__(self, progress: Progress, task: TaskID, began: float) -> None:
        self.task = task
        self._progress = progress
        self._began = began

    def __call__(self, now: Imported) -> None:
        self.latest = now
        rate = bytes_text(int(now.wal_bytes / max(time.monotonic() - self._began, 1e-6)))
        self._progress.update(self.task, completed=now.rows, total=now.rows_total, rows=now.rows, rate=f"{rate}/s")


def import_files(
    cluster: Cluster, table: str, files: Sequence[Path], form: str, printer: Printer, *, again: bool
) -> tuple[list[Imported], Position]:
    """Import files one after the other; the result of each, and the position of all. Errors as the library's."""
    done: list[Imported] = []
    position = Position(cluster.id)
    rows = TextColumn("{task.fields[rows]:,} rows {task.fields[rate]}")
    layout = (TextColumn("{task.description}"), BarColumn(), rows, TimeElapsedColumn(), TimeRemainingColumn())
    with printer.bar(*layout) as progress:
        for file in files:
            shown = _Shown(progress, progress.add_task(file.name, total=None, rows=0, rate=""), time.monotonic())
            try:
                position = position.join(cluster.import_files(table, file, format=form, again=again, report=shown))
            except ReplicationError:
                if len(files) > 1:
                    printer.note(
                        f"{len(done)} of {len(files)} files are imported; those after {file} were not tried."
                        " Repeat the command: it skips what is imported"
                    )
                raise
            progress.remove_task(shown.task)
            done.append(shown.latest)
            if not printer.as_json and len(files) > 1:
                what = "imported before" if shown.latest.repeated else counted(shown.latest.rows, "row")
                printer.err.print(f"{file}: {what}", markup=False, highlight=False)
    return done, position
