"""Queries of this host's other processes, as jobs of replay's application: it is the only one that they need.

A query's rows pass through a function in executors, and what it makes comes back piece by piece. Who asks can do
without: no answer means that no application runs here, or that the rows are too few for a job.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedRWPair
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from replication import log
from replication.error_text import one_line
from replication.errors import EngineLostError
from replication.local_socket import address, is_same_user
from replication.tables.spark.application import Application
from replication.tables.spark.refusals import refusals
from replication.tables.work import WorkDone

_NAME = "queries"
_BACKLOG = 16
_ACCEPT_S, _ASK_S = 1.0, 5.0
_ANSWER_S, _BYTES_PER_S = 30.0, 10 << 20  # a job that is slower has no free cores: who asks does it without Spark
_log = log.get(__name__)
Run: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Query:
    """Rows of a query in Spark's SQL, and what is made of them.

    Attributes:
        sql: the query.
        run: makes bytes of the batches of a task, in executors; importable there.
        size: about how many bytes the query reads.
        title: what Spark's pages show.
    """

    sql: str
    run: Run
    size: int
    title: str


class Queries:
    """The end in replay's process. ``run_once`` is for one thread.

    A query that reads at most ``small_bytes`` is not worth a job.
    """

    def __init__(self, spark: Application, work: WorkDone, small_bytes: int, run_dir: Path) -> None:
        self._spark = spark
        self._work = work
        self._small_bytes = small_bytes
        self._path = run_dir / _NAME
        self._server = socket.socket(socket.AF_UNIX)
        self._server.settimeout(_ACCEPT_S)
        with suppress(OSError), address(run_dir, _NAME) as name:  # where there can be none, nobody asks
            self._path.unlink(missing_ok=True)
            self._server.bind(name)
            self._server.listen(_BACKLOG)

    def run_once(self, stop: Callable[[], bool]) -> None:
        """Answer the next query, or return after a second. EngineLostError if the Spark session is gone."""
        try:
            client, _ = self._server.accept()
        except TimeoutError:  # none came
            return
        except OSError:  # none can come, or too many files are open
            time.sleep(_ACCEPT_S)
            return
        try:
            with client:
                if is_same_user(client):
                    client.settimeout(_ASK_S)
                    with client.makefile("rwb") as stream:
                        query = pickle.load(stream)
                        client.settimeout(_ANSWER_S)  # who asked may be busy with a piece
                        self._answer(query, stream)
        except EngineLostError:
            raise
        except Exception as error:  # who asked has gone, or has other code
            _log.warning("query_not_answered", error=one_line(error))

    def close(self) -> None:
        """Answer no further ones."""
        self._server.close()
        self._path.unlink(missing_ok=True)

    def _answer(self, query: Query, stream: BufferedRWPair) -> None:
        done = False
        if query.size > self._small_bytes and self._spark.want():
            try:
                with closing(self._made(query)) as pieces:
                    for made in pieces:
                        pickle.dump(made, stream)
                done = True
            except (EngineLostError, OSError):
                raise
            except Exception as error:  # who asked does it without Spark
                _log.warning("query_failed", title=query.title, error=one_line(error))
        pickle.dump(done, stream)

    def _made(self, query: Query) -> Generator[bytes]:
        from pyspark.storagelevel import StorageLevel  # deferred: who asks may have no PySpark

        with self._spark.use() as spark, refusals("a table"):
            spark.sparkContext.setLocalProperty("spark.job.description", query.title)
            rows = spark.sql(query.sql).mapInArrow(partial(_run, query.run), "made binary")
            rows.persist(StorageLevel.DISK_ONLY)  # more may be made than this process or its JVM could hold
            try:
                rows.count()
                for row in rows.toLocalIterator():
                    yield bytes(row.made)
            finally:
                rows.unpersist()
        self._work.queries += 1
        self._work.query_bytes += query.size


def ask(run_dir: Path, query: Query, take: Callable[[bytes], None]) -> bool:
    """Pass all that ``run`` makes to ``take``, piece by piece, and return True.

    False: it is to be done without Spark, or the job takes too long; what ``take`` got is not all.
    """
    try:
        with socket.socket(socket.AF_UNIX) as client, address(run_dir, _NAME) as name:
            client.settimeout(_ANSWER_S + query.size / _BYTES_PER_S)
            client.connect(name)
            with client.makefile("rwb") as stream:
                pickle.dump(query, stream)
                stream.flush()
                while isinstance(made := pickle.load(stream), bytes):
                    take(made)
                return made is True
    except (OSError, EOFError, pickle.UnpicklingError):  # replay does not run here, or has ended
        return False


def _run(run: Run, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for made in run(batches):
        yield pa.record_batch([pa.array([made], pa.binary())], names=["made"])
