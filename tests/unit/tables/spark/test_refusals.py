"""Errors of Spark, as those that callers act on."""

from __future__ import annotations

import pytest

from replication.errors import CommitConflictError, EngineLostError, StorageError
from replication.tables.spark.refusals import refusals

NO_WORKERS = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times
java.lang.NullPointerException
\tat java.base/java.nio.file.Files.provider(Files.java:105)
\tat java.base/java.nio.file.Files.deleteIfExists(Files.java:1181)
\tat org.apache.spark.api.python.PythonWorkerFactory.stopDaemon(PythonWorkerFactory.scala:453)
"""


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError(NO_WORKERS), EngineLostError),
        (ConnectionRefusedError("[Errno 111] Connection refused"), EngineLostError),
        (
            RuntimeError("CommitFailedException: main has changed"),
            CommitConflictError,
        ),
        (
            RuntimeError("ValidationException: Cannot remove dangling deletes: current snapshot changed from 1 to 2"),
            CommitConflictError,
        ),
        (
            RuntimeError("java.lang.NullPointerException\n\tat org.apache.Table.load(T.java:1)"),
            RuntimeError,
        ),
    ],
    ids=["no workers", "no JVM", "conflict", "dangling deletes", "something else"],
)
def test_what_spark_says_is_an_error_that_callers_act_on(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(raised) as caught, refusals("ops.t"):
        raise error
    assert type(caught.value) is raised


@pytest.mark.parametrize(
    "said",
    [
        "java.io.IOException: Mkdirs failed to create file:/w/ops/t/data/k=ab/s={} (exists=false, cwd=file:/w)",
        "PathComponentTooLongException: The maximum path component name limit of s={} in directory /w is exceeded",
    ],
)
def test_a_partition_whose_folder_has_too_long_a_name_is_told_with_what_helps(said: str) -> None:
    with pytest.raises(StorageError, match=r"that ops\.t is partitioned by .*: s=xxx") as caught, refusals("ops.t"):
        raise ValueError(said.format("x" * 254))
    assert "walship settable ops.t write.object-storage.enabled=true" in caught.value.hint
    with pytest.raises(ValueError, match="Mkdirs|limit"), refusals("ops.t"):
        raise ValueError(said.format("x" * 253))
