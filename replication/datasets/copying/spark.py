"""A copy whose bytes go through Spark's executors: each split of the window is a job of one task.

A job's rows are copyable files and ranges, without content and credentials; the task opens both stores itself and
copies with the code of the threads. It only writes where files are staged, and the driver alone publishes, so an
attempt that failed or was lost publishes nothing. It is an RDD's job, as in replay: nothing is planned or compiled.

Bounds: as many jobs at once as the application has cores.
"""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range
from replication.core.copying.rates import parse_rates
from replication.datasets.copying.copier import CopiedItem, CopyItem, FileCopier
from replication.datasets.copying.throttle import CopyThrottle, minute_of_day
from replication.datasets.copying.transfer import Moved
from replication.datasets.stores.base import Store
from replication.errors import EngineLostError, RequestError, one_line
from replication.log import get, redact
from replication.tables.spark.refusals import refusals
from replication.tables.spark.session import open_session

_PARALLEL_MAX = 256
_log = get(__name__)


@contextmanager
def spark_copier(stores: tuple[Store, Store], configuration: CopyConfiguration, moved: Moved) -> Iterator[SparkCopier]:
    """A copier by the running Spark application of this process, or by one of its own that ends with the block.

    Raises:
        SparkMissingError: Spark did not start.
        RequestError: the application runs two attempts of a task at once.
    """
    from pyspark import SparkContext

    if (running := SparkContext._active_spark_context) is not None:
        yield SparkCopier(running, stores, configuration, moved)
        return
    with tempfile.TemporaryDirectory(prefix="walship-copy-", ignore_cleanup_errors=True) as scratch:
        session = open_session(
            None, Path(scratch), master=configuration.spark, properties={"spark.app.name": "walship copy"}
        )
        try:
            yield SparkCopier(session.sparkContext, stores, configuration, moved)
        finally:
            session.stop()


class SparkCopier:
    """Copies items by tasks of one Spark application; threads may call it at once.

    Args:
        context: of the application.
        stores: the source and the target, which executors must reach at the same addresses.
        configuration: of the copy.
        moved: told of bytes when a task has ended.

    Raises:
        RequestError: the application runs two attempts of a task at once, which would write one file.
    """

    def __init__(
        self, context: Any, stores: tuple[Store, Store], configuration: CopyConfiguration, moved: Moved
    ) -> None:
        if context.getConf().get("spark.speculation", "false") == "true":
            raise RequestError("spark.speculation is on: two tasks would write one file", "Switch it off for this copy")
        self._context, self._moved = context, moved
        self.parallel = min(configuration.threads or int(context.defaultParallelism), _PARALLEL_MAX)
        if configuration.limit.startswith("@"):
            raise RequestError("executors read no limit from a file of this host", "Give --limit a rate or a timetable")
        share = parse_rates(configuration.limit).shared(self.parallel)
        self._opened = pickle.dumps((stores, configuration, share, not context.master.startswith("local")))

    def __call__(self, items: Sequence[CopyItem]) -> Iterable[CopiedItem]:
        """Copy items as one task.

        What it wrote is durable on return, unless executors are on this host: then the publisher makes it so.

        Raises:
            EngineLostError: the application is gone.
        """
        if not items:
            return []
        rows = [packed(item) for item in items]
        try:
            with refusals("a copy"):
                if self._context._jsc is None:
                    raise EngineLostError("Spark ended while it copied", "Run the copy again: it goes on where it was")
                rdd = self._context.parallelize(rows, 1)
                found: list[CopiedItem] = rdd.mapPartitions(partial(copy_rows, self._opened)).collect()
        except EngineLostError:
            raise
        except Exception as error:  # the task failed in every attempt
            _log.warning("copy_task_failed", items=len(items), error=redact(one_line(error)))
            return [CopiedItem.of(RuntimeError(f"its task failed: {redact(one_line(error))}"[:500]), 1)] * len(items)
        for each in found:
            self._moved(each.size)
        return found


def packed(item: CopyItem) -> tuple[dict[str, Any], str, tuple[int, int, int] | None]:
    """An item as a row: the copyable file, where it is staged, and a range's index, begin and end."""
    part = item.part
    return item.file.to_json(), str(item.staged), (part.index, part.begin, part.end) if part is not None else None


def copy_rows(
    opened: bytes, rows: Iterable[tuple[dict[str, Any], str, tuple[int, int, int] | None]]
) -> Iterator[CopiedItem]:
    """Copy the items of a task, in an executor."""
    from pyspark import TaskContext

    (source, target), configuration, share, syncs = pickle.loads(opened)
    stopped = threading.Event()
    copier = FileCopier(
        (source, target),
        configuration,
        CopyThrottle(lambda: share.at(minute_of_day()), stopped),
        lambda count: None,
        stopped,
    )
    items = [
        CopyItem(CopyableFile.from_json(file), RelativePath(staged), None if part is None else Range(*part))
        for file, staged, part in rows
    ]
    context = TaskContext.get()
    with source, target:
        if context is not None and context.attemptNumber() > 0:
            for item in items:
                if item.part is None:
                    target.remove(item.staged)  # an attempt that was lost may still write to the old one
        copied = list(copier(items))
        if syncs and target.traits.is_local:
            target.sync_all()
    yield from copied
