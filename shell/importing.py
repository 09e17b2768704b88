"""Files on their way into a table: one line a file, and a moving bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from peer.cluster import Cluster
from replication.core.position import Position
from replication.writer.importing import Imported
from shell.render import Printer, bytes_text


def import_files(
    cluster: Cluster, table: str, files: Sequence[Path], form: str, printer: Printer, *, again: bool
) -> tuple[list[Imported], Position]:
    """Import files one after the other; what became of each, and where to wait for all. Errors as the library's."""
    done: list[Imported] = []
    position = Position(cluster.id)
    moving = not printer.as_json and sys.stderr.isatty()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]:,} rows {task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=printer.err,
        transient=True,
        disable=not moving,
    ) as progress:
        for file in files:
            task = progress.add_task(file.name, total=None, rows=0, rate="")
            began = time.monotonic()
            latest: list[Imported] = []

            def show(now: Imported) -> None:
                latest[:] = [now]  # noqa: B023  called before the loop goes on
                rate = bytes_text(int(now.wal_bytes / max(time.monotonic() - began, 1e-6)))  # noqa: B023
                total = now.rows_total
                progress.update(task, completed=now.rows, total=total, rows=now.rows, rate=f"{rate}/s")  # noqa: B023

            position = position.join(cluster.import_files(table, file, format=form, again=again, report=show))
            progress.remove_task(task)
            done.append(latest[0])
            if not printer.as_json and len(files) > 1:
                what = "there before" if latest[0].repeated else f"{latest[0].rows:,} rows"
                printer.err.print(f"{file}: {what}", markup=False, highlight=False)
    return done, position
