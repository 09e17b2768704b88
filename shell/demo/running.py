"""What every demo does: stop its clusters whatever happens, and pace its writes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shell.cli.render import Printer
from shell.demo.sites import DemoSite, in_folder, make_sites
from shell.processes.spark_cluster import SparkCluster


def pace(due: float) -> None:
    """Sleep until a monotonic time."""
    early = due - time.monotonic()
    if early > 0:
        time.sleep(early)


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, also in the background, so that either stops what was started."""
    asked = False

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    except Exception:
        if asked:  # an interrupted query raises an error of its own
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def demo_sites(
    printer: Printer,
    folder: Path,
    names: Sequence[str],
    *,
    keep: bool,
    spark: SparkCluster | None = None,
    standby: Sequence[str] = (),
    jobs: Sequence[str] = (),
) -> Iterator[list[DemoSite]]:
    """Clusters to start in a locked folder; all are stopped at the end, unless ``keep`` and nothing failed.

    With ``spark``, which is to be started first, they replay on it, and it ends after them. Those in ``standby`` begin
    as STANDBY. Those in ``jobs`` replay all but the smallest rounds by Spark jobs.
    """
    with interruptible(), in_folder(folder):
        sites = make_sites(folder, names, spark, standby, jobs)
        try:
            yield sites
        finally:
            _stop_all(printer, sites, keep, spark)


def _stop_all(printer: Printer, sites: Sequence[DemoSite], keep: bool, spark: SparkCluster | None) -> None:
    """Stop all clusters, ignoring further Ctrl-C; with ``keep`` leave them running."""
    failed = sys.exc_info()[0] is not None
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        if keep and not failed:
            for site in sites:
                site.leave_running()
            return
        printer.err.print("stopping what the demo started …", style="dim")
        for site in sites:
            site.stop()
        for site in sites:
            site.join()
        if spark is not None:
            spark.stop()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
