"""A copy whose bytes go through Spark's executors: each split of the window is a job of one task; some list folders.

A job's rows are copyable files and ranges, without content and credentials; the task opens both stores itself and
copies with the code of the threads. It only writes where files are staged, and the driver alone publishes, so an
attempt that failed or was lost publishes nothing. It is an RDD's job, as in replay: nothing is planned or compiled.

Bounds: as many jobs at once as the application has cores.
"""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.rates import parse_rates
from replication.datasets.copying.copier import CopiedItem, CopyItem, FileCopier, ItemCopier
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.copying.throttle import CopyThrottle, minute_of_day
from replication.datasets.copying.transfer import Moved
from replication.datasets.stores.base import Store, make_durable
from replication.error_text import one_line
from replication.errors import EngineLostError, RequestError
from replication.log import get, redact
from replication.tables.spark.refusals import refusals
from replication.tables.spark.session import open_session

#: A copy above either limit starts Spark.
LARGE_BYTES, LARGE_FILES = 1 << 30, 50_000
_PARALLEL_MAX = 256
_THREADS = 32  # that wait for tasks of an application whose cores are not known yet
_log = get(__name__)


@contextmanager
def spark_copier(
    stores: tuple[Store, Store],
    configuration: CopyConfiguration,
    moved: Moved,
    local: FileCopier,
    is_large: Callable[[], bool],
) -> Iterator[ItemCopier]:
    """A copier by the running Spark application of this process, or by one of its own that ends with the block.

    That one is started when the copy is large; ``local`` copies until it is there.

    Raises:
        SparkMissingError: Spark did not start.
        RequestError: the application runs two attempts of a task at once.
    """
    from pyspark import SparkContext

    if (running := SparkContext._active_spark_context) is not None:
        yield SparkCopier(running, stores, configuration, moved)
        return
    with (
        tempfile.TemporaryDirectory(prefix="walship-copy-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as stack,
    ):

        def start() -> SparkCopier:
            session = open_session(
                None, Path(scratch), master=configuration.spark, properties={"spark.app.name": "walship copy"}
            )
            stack.callback(session.stop)
            return SparkCopier(session.sparkContext, stores, configuration, moved)

        copier = SparkWhenLarge(local, is_large, start, configuration.threads or _THREADS)
        stack.callback(copier.close)
        yield copier


def is_large(counts: CopyCounts) -> bool:
    """Whether a copy is large enough for a start of Spark."""
    return counts.bytes_listed > LARGE_BYTES or counts.files_listed > LARGE_FILES


class SparkWhenLarge:
    """Copies by threads of this process; of a large copy, by Spark once that has started.

    ``start`` is called once, in a thread of its own.
    """

    def __init__(
        self, local: FileCopier, is_large: Callable[[], bool], start: Callable[[], SparkCopier], parallel: int
    ) -> None:
        self._local, self._is_large, self._start = local, is_large, start
        self.parallel = max(parallel, local.parallel)
        self._changed = threading.Condition()
        self._free = local.parallel
        self._thread: threading.Thread | None = None
        self._spark: SparkCopier | None = None
        self._error: BaseException | None = None

    def __call__(self, items: Sequence[CopyItem]) -> Iterator[CopiedItem]:
        """Copy items. SparkMissingError if Spark did not start."""
        with self._changed:
            if self._thread is None and self._is_large():
                self._thread = threading.Thread(target=self._started, name="copy-spark", daemon=True)
                self._thread.start()
            while self._spark is None and self._error is None and not self._free:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            if (spark := self._spark) is None:
                self._free -= 1
        if spark is not None:
            yield from spark(items)
            return
        try:
            yield from self._local(items)
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    @property
    def is_ready(self) -> bool:
        """See ``Tasks``."""
        return self._spark is not None

    def run(self, function: Callable[[Iterable[Any]], Iterable[Any]], rows: Sequence[Any]) -> list[Any]:
        """See ``Tasks``."""
        assert self._spark is not None, "it is ready"
        return self._spark.run(function, rows)

    def _started(self) -> None:
        spark, failed = None, None
        try:
            spark = self._start()
        except BaseException as error:
            failed = error
        with self._changed:
            self._spark, self._error = spark, failed
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until the start has ended."""
        if self._thread is not None:
            self._thread.join()


class SparkCopier:
    """Copies items by tasks of one Spark application; threads may call it at once.

    Executors must reach the stores at the same addresses.

    Raises:
        RequestError: the application runs two attempts of a task at once, which would write one file.
    """

    is_ready = True  # see ``Tasks``

    def __init__(
        self, context: Any, stores: tuple[Store, Store], configuration: CopyConfiguration, moved: Moved
    ) -> None:
        if context.getConf().get("spark.speculation", "false") == "true":
            raise RequestError("spark.speculation is on: two tasks would write one file", "Switch it off for this copy")
        self._context, self._moved = context, moved
        self.parallel = min(configuration.threads or int(context.defaultParallelism), _PARALLEL_MAX)
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
        try:
            found: list[CopiedItem] = self.run(partial(copy_rows, self._opened), items)
        except EngineLostError:
            raise
        except Exception as error:  # the task failed in every attempt
            _log.warning("copy_task_failed", items=len(items), error=redact(one_line(error)))
            return [CopiedItem.of(RuntimeError(f"its task failed: {redact(one_line(error))}"[:500]), 1)] * len(items)
        for each in found:
            self._moved(each.size)
        return found

    def run(self, function: Callable[[Iterable[Any]], Iterable[Any]], rows: Sequence[Any]) -> list[Any]:
        """See ``Tasks``; Spark repeats an attempt that failed, as its settings have it."""
        with refusals("a copy"):
            if self._context._jsc is None:
                raise EngineLostError("Spark ended while it copied", "Run the copy again: it goes on where it was")
            return list(self._context.parallelize(rows, 1).mapPartitions(function).collect())


def copy_rows(opened: bytes, rows: Iterable[CopyItem]) -> Iterator[CopiedItem]:
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
    items, context = list(rows), TaskContext.get()
    with source, target:
        if context is not None and context.attemptNumber() > 0:
            for item in items:
                if item.part is None:
                    target.remove_files([item.staged])  # an attempt that was lost may still write to the old one
        copied = list(copier(items))
        if syncs and target.traits.is_local:
            make_durable(target, {item.staged for item in items if item.upload is None}, may_be_gone=True)
    yield from copied
