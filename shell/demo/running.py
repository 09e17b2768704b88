"""What every demo does: stop its clusters whatever happens, and pace its writes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from shell.cli.render import Printer
from shell.demo.data import DemoTable
from shell.demo.sites import DemoSite, clear_earlier, in_folder, make_sites
from shell.processes.spark_cluster import SparkCluster


def pace(due: float) -> None:
    """Sleep until a monotonic time."""
    early = due - time.monotonic()
    if early > 0:
        time.sleep(early)


def paced(
    tables: Sequence[DemoTable],
    batch_rows: int,
    seconds: float,
    kills: Sequence[tuple[float, DemoSite, str]],
    event: Callable[[str], None],
) -> Iterator[tuple[int, str, pa.RecordBatch]]:
    """Yield batches to write, spread over ``seconds``: the number of each in its table, the table's name, the rows.

    ``kills`` are roles to kill, and after which share of the rows.
    """
    total = sum(table.rows.num_rows for table in tables)
    began, written, left = time.monotonic(), 0, list(kills)
    for table in tables:
        for number, batch in enumerate(table.rows.to_batches(batch_rows)):
            yield number, table.name, batch
            written += batch.num_rows
            if left and written > left[0][0] * total:
                _, site, role = left.pop(0)
                event(f"kill -9 {site.kill(role)}: {site.name}'s {role}; walship up starts it again")
            pace(began + seconds * written / total)


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, also in the background, so that either stops what was started."""
    asked = False

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    with _stop_signals(interrupt):
        try:
            yield
        except Exception:
            if asked:  # an interrupted query raises an error of its own
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _stop_signals(handler: Callable[..., None] | signal.Handlers) -> Iterator[None]:
    """Handle SIGINT and SIGTERM by ``handler``."""
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


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
    """Clusters to start in a locked folder, in which no earlier demo runs or has left anything.

    All are stopped at the end, unless ``keep`` and nothing failed.


    With ``spark``, which is to be started first, they replay on it, and it ends after them. Those in ``standby`` begin
    as STANDBY. Those in ``jobs`` replay all but the smallest rounds by Spark jobs.
    """
    with interruptible():
        if found := clear_earlier(folder):
            printer.err.print(f"{found} an earlier demo in {folder}", style="dim")
        with in_folder(folder):
            sites = make_sites(folder, names, spark, standby, jobs)
            try:
                yield sites
            finally:
                _stop_all(printer, sites, keep, spark)


def _stop_all(printer: Printer, sites: Sequence[DemoSite], keep: bool, spark: SparkCluster | None) -> None:
    """Stop all clusters, ignoring further Ctrl-C; with ``keep`` leave them running."""
    failed = sys.exc_info()[0] is not None
    with _stop_signals(signal.SIG_IGN):
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
