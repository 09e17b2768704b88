"""Spark's application of one process: started in a thread when a job wants it, ended when none came for a while.

While it starts, callers that can do without go on (``running``), and the others wait (``use``). A start that failed is
tried again half a minute later at the earliest. On a Spark cluster it counts as started once it has an executor.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from replication import log
from replication.error_text import one_line
from replication.errors import ConfigError, ReplicationError, SparkMissingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RETRY_S = 30.0
_POLL_S = 0.2
_WATCH_S = 1.0
_LEAVE_S = 10.0
_log = log.get(__name__)


class Application:
    """A session that exists while it is wanted. For any number of threads.

    Args:
        idle_s: the session ends after so many seconds without use; 0 starts it at once and keeps it.
        prepare: called with a session before it counts as started.
        executor_s: how long ``use`` waits for a Spark cluster's first executor.
    """

    def __init__(
        self,
        start: Callable[[], SparkSession],
        idle_s: float,
        prepare: Callable[[SparkSession], None] = lambda session: None,
        *,
        executor_s: float = 60.0,
    ) -> None:
        self._start = start
        self._idle_s = idle_s
        self._prepare = prepare
        self._executor_s = executor_s
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: SparkSession | None = None
        self._users = 0
        self._used_s = 0.0
        self._wanted_s = -float("inf")
        self._failed: ReplicationError | None = None
        self._retry_s = 0.0
        self._awaits = ""  # the master that has given no executor
        self._awaits_s = 0.0
        self._gone: set[str] = set()  # executors
        self._lost = 0
        self._last_lost = ""
        if not idle_s:
            with self._changed:
                self._begin()

    @staticmethod
    def of(session: SparkSession | Application) -> Application:
        """Return an application whose session was started by the caller; it lasts until ``close``."""
        if isinstance(session, Application):
            return session
        made = Application(lambda: session, float("inf"))
        made._session = session
        return made

    def want(self) -> bool:
        """Return whether the session runs, for a job that can do without it.

        The second such job within ``idle_s`` starts it: a start costs more than one job.
        """
        with self._changed:
            now_s, before_s = time.monotonic(), self._wanted_s
            self._wanted_s = now_s
            if self._session is None:
                if now_s - before_s <= self._idle_s:
                    self._begin()
                return False
            self._used_s = now_s
            return True

    @contextmanager
    def use(self) -> Iterator[SparkSession]:
        """Give the session, which lasts as long as the context; waits while it starts.

        Raises:
            SparkMissingError: it does not start, or gets no executor.
            ConfigError: the jars cannot be found or fetched.
        """
        with self._changed:
            while self._session is None:
                self._begin()
                self._refuse()
                self._changed.wait(_POLL_S)
            session = self._session
            self._users += 1
        try:
            yield session
        finally:
            with self._changed:
                self._users -= 1
                self._used_s = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[SparkSession | None]:
        """Give the session if it runs, else None. It counts as idle meanwhile, but does not end."""
        with self._changed:
            session = self._session
            self._users += 1
        try:
            yield session
        finally:
            with self._changed:
                self._users -= 1

    @property
    def state(self) -> str:
        """What there is to say about it; "" when it is off or runs in good health."""
        with self._changed:
            if self._awaits:
                state = f"waits for cores of {self._awaits}"
            elif self._failed is not None and self._session is None:
                state = f"{self._failed}. It is tried again; meanwhile the driver decodes what it can"
            else:
                state = "starting" if self._thread is not None and self._session is None else ""
            lost = f"{self._lost} executors were lost, the last: {self._last_lost}" if self._lost else ""
            return "; ".join(part for part in (state, lost) if part)

    def close(self) -> None:
        """End the session. One that is starting ends by itself afterwards, or with this process."""
        self._closing.set()
        with self._changed:
            session, thread = self._session, self._thread
            self._changed.notify_all()
        if thread is None and session is not None:
            self._session = None
            session.stop()
        elif thread is not None and session is not None:
            thread.join()

    def _begin(self) -> None:
        """Start the thread of the session, unless there is one, or the last start failed a moment ago."""
        if self._thread is None and not self._closing.is_set() and time.monotonic() >= self._retry_s:
            self._failed = None
            self._thread = threading.Thread(target=self._run, name="spark", daemon=True)
            self._thread.start()

    def _refuse(self) -> None:
        """Raise when waiting for the session is in vain."""
        if self._failed is not None:
            raise type(self._failed)(self._failed.what, self._failed.hint)
        if self._closing.is_set():
            raise SparkMissingError("Spark's application is being ended")
        if self._awaits and time.monotonic() - self._awaits_s > self._executor_s:
            raise SparkMissingError(
                f"{self._awaits} has given this application no executor within {self._executor_s:.0f} s",
                "Its cores may all be taken: give replay fewer, by spark.cores.max under [replay] spark",
            )

    def _run(self) -> None:
        """Start a session, keep it until nobody needs it, and end it."""
        started_s = time.monotonic()
        owns_jvm = not _has_jvm()
        session: SparkSession | None = None
        try:
            session = self._start()
            if self._has_executors(session):
                with contextlib.suppress(Exception):  # the first real job says what is wrong
                    self._prepare(session)
                with self._changed:
                    self._session, self._used_s = session, time.monotonic()
                    self._changed.notify_all()
                _log.info("spark_started", seconds=round(time.monotonic() - started_s, 1))
                self._keep(session)
                _log.info("spark_ended")
        except Exception as error:
            self._fail(error)
        finally:
            _end(session, owns_jvm)
            del session
            _free_memory()
            with self._changed:
                self._thread, self._session, self._awaits = None, None, ""
                self._gone.clear()
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, (SparkMissingError, ConfigError))
        failed = error if known else SparkMissingError(f"Spark did not start: {one_line(error)}")
        assert isinstance(failed, ReplicationError)
        _log.warning("spark_start_failed", what=failed.what, hint=failed.hint)  # raised, or shown by ``state``
        with self._changed:
            self._failed, self._retry_s = failed, time.monotonic() + _RETRY_S

    def _has_executors(self, session: SparkSession) -> bool:
        """Wait for the first executor. Returns False when the application is closed before."""
        while not self._closing.is_set():
            self._watch(session)
            if not self._awaits:
                return True
            self._closing.wait(_POLL_S)
        return False

    def _keep(self, session: SparkSession) -> None:
        """Return once the session was idle for long enough, or the application is closed; then none has it."""
        while not self._closing.wait(_WATCH_S):
            with contextlib.suppress(Exception):  # who uses a session that is gone finds out
                self._watch(session)
            with self._changed:
                idle_s = time.monotonic() - self._used_s
                if self._idle_s and not self._users and idle_s > self._idle_s:
                    self._session = None
                    return
        with self._changed:
            self._session = None

    def _watch(self, session: SparkSession) -> None:
        """Note executors that a Spark cluster gave or took."""
        context: Any = session.sparkContext
        master = str(context.master)
        if master.startswith("local") or context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
            return
        listed = context._jsc.sc().statusStore().executorList(False)
        alive = 0
        for at in range(listed.size()):
            each = listed.apply(at)
            name = str(each.id())
            alive += bool(each.isActive()) and name != "driver"
            if not each.isActive() and name not in self._gone:
                self._gone.add(name)
                reason = each.removeReason()
                self._note_lost(name, str(each.hostPort()), str(reason.get()) if reason.isDefined() else "no reason")
        with self._changed:
            if not alive and not self._awaits:
                self._awaits_s = time.monotonic()
                _log.warning("spark_waits_for_cores", master=master)
            self._awaits = "" if alive else master

    def _note_lost(self, name: str, host: str, reason: str) -> None:
        reason = " ".join(reason.split())[:200]
        _log.warning("executor_lost", executor=name, host=host, reason=reason)
        with self._changed:
            self._lost += 1
            self._last_lost = f"{name} on {host}: {reason}"


def _has_jvm() -> bool:
    """Whether this process has a JVM already, of another session."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def _free_memory() -> None:
    """Give memory that jobs needed back to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such function
            ctypes.CDLL(None).malloc_trim(0)


def _end(session: SparkSession | None, owns_jvm: bool) -> None:
    """Stop a session; with ``owns_jvm`` also end the JVM, and with it Spark's Python workers."""
    if session is not None:
        with contextlib.suppress(Exception):  # it is gone
            session.stop()
    if not owns_jvm or not _has_jvm():
        return
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway.proc is None:  # it belongs to spark-submit
        return
    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_LEAVE_S)
    except Exception:
        gateway.proc.kill()
        gateway.proc.wait()
