"""Run the parts of any number of tables as one Spark job, and delete what failed attempts wrote.

A job has at most as many tasks as the application has cores. A task gets its parts, pickled, as a row, and returns the
metadata of its files. It is an RDD's job, since it takes half as long as a DataFrame's: nothing is planned or compiled.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING

from replication import log
from replication.error_text import one_line
from replication.errors import EngineLostError
from replication.priority import lower_thread
from replication.tables.pyiceberg.local_io import sync_written
from replication.tables.pyiceberg.write import THREADS, Outcome, WriteFiles, new_job
from replication.tables.spark.application import Application
from replication.tables.spark.refusals import refusals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark's own default of ``spark.task.maxFailures``.
_ATTEMPTS = 4
#: A task that was killed may write for a while.
_LEFTOVERS_S = 60.0
_ROUND_BYTES, _CORE_BYTES = 128 << 20, 16 << 20
#: Jobs of different pools get the same share of the cores; those of Spark's own statements are in another.
ROUNDS = "rounds"
_log = log.get(__name__)


class Jobs:
    """The jobs of one application. Threads may use it at once."""

    def __init__(self, spark: SparkSession | Application, clock: Callable[[], float] = time.monotonic) -> None:
        self._spark = Application.of(spark)
        self._clock = clock
        self._leftovers: deque[tuple[float, WriteFiles, int]] = deque()
        self._lock = threading.Lock()

    @property
    def parallel(self) -> int:
        """How many tasks can run at once; while Spark is off, threads of this process."""
        with self._spark.running() as spark, refusals("a job"):
            return THREADS if spark is None else int(spark.sparkContext.defaultParallelism)

    @property
    def background_parallel(self) -> int:
        """How many tasks in the background can run at once: on a cluster half of all, since each holds a core."""
        with self._spark.running() as spark:
            is_here = spark is None or str(spark.sparkContext.master).startswith("local")  # see ``_tasks_at_once``
            return self.parallel if is_here else max(1, self.parallel // 2)

    @property
    def round_bytes(self) -> int:
        """How many bytes of frames a job should take at most; 0 while Spark is off."""
        with self._spark.running() as spark:
            return 0 if spark is None else max(_ROUND_BYTES, self.parallel * _CORE_BYTES)

    @property
    def ui(self) -> str:
        """The address of Spark's UI, "" when it is off."""
        with self._spark.running() as spark, refusals("a job"):
            return "" if spark is None else spark.sparkContext.uiWebUrl or ""

    @cached_property
    def _speculates(self) -> bool:
        """Whether Spark runs a second attempt beside one that is slow."""
        with self._spark.use() as spark:
            return bool(spark.sparkContext.getConf().get("spark.speculation", "false") == "true")

    def run(
        self, writes: Sequence[WriteFiles], title: str = "", pool: str | None = ROUNDS
    ) -> tuple[list[list[Outcome]], int]:
        """Run all as one job; return the outcomes of each, and how many tasks there were. Spark's UI shows ``title``.

        Jobs of ``pool`` share their cores; None is the pool of Spark's own statements.

        When the job fails, each runs in a job of its own, and the outcome of one that fails again has the error.

        Raises:
            EngineLostError: the session is gone.
        """
        self.remove_leftovers()
        tasks = packed(writes, self.parallel)
        try:
            outcomes = self._run(tasks, title, pool)
        except EngineLostError:
            raise
        except Exception as error:
            for _, part in (each for parts in tasks for each in parts):
                self._remove_later(part, range(_ATTEMPTS))
            if len(writes) == 1:
                return [[Outcome(error=error)]], len(tasks)
            _log.warning("job_failed", tables=len(writes), error=one_line(error))
            alone = [self.run([replace(write, job=new_job(write.metadata))], title, pool) for write in writes]
            return [found for (found,), _ in alone], sum(count for _, count in alone)
        if retried := sum(outcome.attempt > 0 for done in outcomes for outcome in done):
            _log.warning("tasks_retried", title=title, parts=retried)
        results: list[list[Outcome]] = [[] for _ in writes]
        for parts, done in zip(tasks, outcomes, strict=True):
            for (at, part), outcome in zip(parts, done, strict=True):
                results[at].append(outcome)
                others = range(_ATTEMPTS) if self._speculates else range(outcome.attempt)
                self._remove_later(part, (each for each in others if each != outcome.attempt))
        return results, len(tasks)

    def remove_leftovers(self, *, at_once: bool = False) -> None:
        """Delete the files of attempts that failed a minute ago; with ``at_once``, of all."""
        with self._lock:
            due_s = float("inf") if at_once else self._clock()
            due = []
            while self._leftovers and self._leftovers[0][0] <= due_s:
                due.append(self._leftovers.popleft())
        for _, part, attempt in due:
            try:
                if count := part.remove_attempt(attempt):
                    _log.info("failed_attempt_removed", files=count, attempt=attempt)
            except Exception as error:  # they stay, in no snapshot, and rounds go on
                _log.warning("failed_attempt_stays", attempt=attempt, error=one_line(error))

    def _run(
        self, tasks: Sequence[Sequence[tuple[int, WriteFiles]]], title: str, pool: str | None
    ) -> list[list[Outcome]]:
        rows = [pickle.dumps((at, parts)) for at, parts in enumerate(tasks)]
        if not rows:
            return []
        with self._spark.use() as spark, refusals("a job"):
            context = spark.sparkContext
            context.setLocalProperty("spark.job.description", title)  # of this thread
            context.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]  # None unsets it
            done = context.parallelize(rows, len(rows)).mapPartitions(run_parts).collect()
        return [outcomes for _, outcomes in sorted(map(pickle.loads, done), key=itemgetter(0))]

    def _remove_later(self, part: WriteFiles, attempts: Iterable[int]) -> None:
        with self._lock:
            self._leftovers.extend((self._clock() + _LEFTOVERS_S, part, attempt) for attempt in attempts)


def warm_up(spark: SparkSession) -> None:
    """Have Spark start its Python workers: for the first job that takes seconds."""
    context = spark.sparkContext
    rows = [pickle.dumps((at, [])) for at in range(context.defaultParallelism)]
    context.parallelize(rows, len(rows)).mapPartitions(run_parts).collect()


def packed(writes: Sequence[WriteFiles], parallel: int) -> list[list[tuple[int, WriteFiles]]]:
    """Divide all tasks of ``writes`` into at most ``parallel`` tasks of about the same size.

    Each has (number of the write, part), one part per write.
    """
    sized = []
    for at, write in enumerate(writes):
        count = write.rows.tasks.num_rows
        sized += [((write.rows.size or 1) / max(count, 1), at, row) for row in range(count)]
    sized.sort(key=lambda each: (-each[0], each[1:]))
    filled = [0.0] * max(1, min(parallel, len(sized)))
    given: list[dict[int, list[int]]] = [defaultdict(list) for _ in filled]
    for size, at, row in sized:
        least = filled.index(min(filled))
        filled[least] += size
        given[least][at].append(row)
    return [
        [(at, writes[at].of_tasks(writes[at].rows.tasks.take(sorted(rows)), number)) for at, rows in parts.items()]
        for number, parts in enumerate(given)
        if parts
    ]


def run_parts(rows: Iterable[bytes]) -> Iterator[bytes]:
    """In an executor: run the parts of each row. Their files are on the disk when the outcome is returned."""
    attempt = attempt_number()
    for row in rows:
        at, parts = pickle.loads(row)
        outcomes = [(_at_low_priority(part) if part.rows.background else part)(attempt) for _, part in parts]
        sync_written()
        yield pickle.dumps((at, outcomes))


def _at_low_priority(part: WriteFiles) -> Callable[[int], Outcome]:
    """Run it in a thread of its own: a process cannot raise its priority again for the next task."""

    def run(attempt: int) -> Outcome:
        with ThreadPoolExecutor(1, initializer=lower_thread) as thread:
            return thread.submit(part, attempt).result()

    return run


def attempt_number() -> int:
    """Return how many attempts of this executor's task began before; 0 elsewhere."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0
