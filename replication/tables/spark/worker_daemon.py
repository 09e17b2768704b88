"""The process that Spark forks Python workers from: it has imported what they need, so they start warm and share it.

``spark.python.daemon.module`` names it. Before each task a worker drops what Python remembers of importable files. For
PySpark's own zip archive that means reading its index again, 60 ms of CPU per task; archives do not change while an
application runs, so that is left out. What is imported here is also kept out of the garbage collection after each task.
"""

from __future__ import annotations

import gc
import importlib
import zipimport

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


if __name__ == "__main__":
    from pyspark import daemon

    prepare()
    daemon.manager()  # type: ignore[no-untyped-call]
