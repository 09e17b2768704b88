"""The outcome of every file: into a report file as JSON lines, or on the screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import TextIO

from replication.datasets.job import CopyJob
from replication.errors import RequestError
from shell.cli.render import Printer


@contextmanager
def reporting(job: CopyJob, path: Path | None, printer: Printer, *, show: bool) -> Iterator[None]:
    """Have the job's outcomes written. ``show`` also prints each outcome that is not "same"."""
    is_read = show
    with ExitStack() as stack:
        file = stack.enter_context(_opened(path)) if path is not None else None
        lock = Lock()

        def report(outcome: str, name: str, size: int, reason: str) -> None:
            nonlocal is_read
            with lock:
                if file is not None:
                    entry = {"outcome": outcome, "path": name, "bytes": size} | ({"reason": reason} if reason else {})
                    file.write(json.dumps(entry) + "\n")
                if is_read and outcome != "same":
                    try:
                        printer.line(f"{outcome:<13} {name}{reason and f': {reason}'}")
                    except OSError:  # no reader, or no room: what is found is counted all the same
                        is_read = False

        job.report = report
        yield


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"the report {path} cannot be written: {error.strerror}", "Give another path") from None
