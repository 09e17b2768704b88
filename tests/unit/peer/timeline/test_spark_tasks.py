"""How the files of a dataset are divided among Spark's tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from peer.timeline.reading import spark


class Counted:
    """A file that counts how often its size is asked for."""

    asked = 0

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        Counted.asked += 1
        return self._size


def test_a_task_has_so_many_bytes_and_files_and_sizes_are_not_added_up_again_for_each_file() -> None:
    sizes = [1] * 2500 + [100 << 20] * 3
    found: Any = SimpleNamespace(read_instant=None, versions=[Counted(size) for size in sizes])
    tasks: list[Any] = spark._Reader(found, "parquet", None).partitions()  # type: ignore[arg-type]
    assert [len(task.versions) for task in tasks] == [1000, 1000, 501, 1, 1]
    assert Counted.asked <= 2 * len(sizes)
