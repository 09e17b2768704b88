"""Spark is started for a large copy only, and threads of the process copy until it is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.copier import CopiedItem, CopyItem
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.copying.spark import LARGE_BYTES, LARGE_FILES, SparkWhenLarge, is_large
from replication.errors import SparkMissingError
from tests.waiting import wait_until

ORIGIN = FileAttributes(RelativePath("a"), 1)
ITEM = CopyItem(CopyableFile.build("mem", ORIGIN, CopyConfiguration()), RelativePath("a"))


class Copying:
    """Says who copied, and waits meanwhile if it is told to."""

    parallel = 1

    def __init__(self, name: str) -> None:
        self.name, self.busy, self.go_on = name, threading.Event(), threading.Event()

    def __call__(self, items: Sequence[CopyItem]) -> Iterator[CopiedItem]:
        self.busy.set()
        assert self.go_on.wait(30)
        for _ in items:
            yield CopiedItem(self.name)


@pytest.fixture
def local() -> Copying:
    made = Copying("threads")
    made.go_on.set()
    return made


def who(copier: SparkWhenLarge) -> list[str]:
    return [each.digest for each in copier([ITEM])]


def test_a_small_copy_starts_no_spark(local: Copying) -> None:
    copier = SparkWhenLarge(cast(Any, local), lambda: False, lambda: pytest.fail("it was started"), 4)
    assert [who(copier) for _ in range(3)] == [["threads"]] * 3
    copier.close()
    assert not is_large(CopyCounts(files_listed=LARGE_FILES, bytes_listed=LARGE_BYTES))
    assert is_large(CopyCounts(files_listed=LARGE_FILES + 1)) and is_large(CopyCounts(bytes_listed=LARGE_BYTES + 1))


def test_a_large_copy_begins_with_threads_and_goes_on_by_spark_also_for_who_waits_for_a_thread() -> None:
    local, spark, may_start = Copying("threads"), Copying("spark"), threading.Event()
    spark.go_on.set()

    def start() -> Any:
        assert may_start.wait(30)
        return spark

    copier = SparkWhenLarge(cast(Any, local), lambda: True, start, 4)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(who(copier))) for _ in range(2)]
    threads[0].start()
    assert local.busy.wait(30)
    threads[1].start()  # the only local thread is taken
    may_start.set()
    wait_until(lambda: found == [["spark"]], what="the second call by Spark")
    local.go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == [["spark"], ["threads"]]
    copier.close()


def test_a_spark_that_does_not_start_ends_the_copy(local: Copying) -> None:
    def start() -> Any:
        raise SparkMissingError("there is no Java")

    copier = SparkWhenLarge(cast(Any, local), lambda: True, start, 4)

    def fails() -> bool:
        try:
            who(copier)
        except SparkMissingError:
            return True
        return False

    wait_until(fails, what="the error of the start")
    copier.close()
