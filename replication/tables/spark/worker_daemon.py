"""The process that Spark forks Python workers from: it has imported what they need, so they start warm and share it.

``spark.python.daemon.module`` names it. Before each task a worker drops what Python remembers of importable files. For
PySpark's own zip archive that means reading its index again, 60 ms of CPU per task; archives do not change while an
application runs, so that is left out. What is imported here is also kept out of the garbage collection after each task.

Spark ends idle workers by closing their connections. PySpark takes that for a task that failed, and prints a traceback.
"""

from __future__ import annotations

import gc
import importlib
import zipimport
from collections.abc import Callable
from functools import partial
from io import BufferedReader, BufferedWriter

_Main = Callable[[BufferedReader, BufferedWriter], None]
_SHARED = (
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "replication.tables.pyiceberg.write",
    "replication.tables.spark.jobs",
)


def prepare() -> None:
    """Import what workers share. Idempotent."""
    for name in _SHARED:
        importlib.import_module(name)
    zipimport.zipimporter.invalidate_caches = _unchanged  # type: ignore[method-assign,assignment]
    gc.collect()
    gc.freeze()


def _unchanged(archive: zipimport.zipimporter) -> None:
    """Keep the archive's index."""


def run_task(main: _Main, task: BufferedReader, out: BufferedWriter) -> None:
    """Run the next task by PySpark's ``main``. End the worker when Spark closes the connection between tasks."""
    if not task.peek(1):
        raise SystemExit(1)  # 0 would wait for another task
    main(task, out)


if __name__ == "__main__":
    from pyspark import daemon

    prepare()
    daemon.worker_main = partial(run_task, daemon.worker_main)
    daemon.manager()  # type: ignore[no-untyped-call]
