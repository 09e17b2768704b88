"""Whatever meets a missing or damaged data file names it, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replication.errors import StorageError
from replication.tables.pyiceberg.local_io import local_path
from tests.unit.tables.pyiceberg.small_table import Small

pytestmark = pytest.mark.heavy


def queried(small: Small) -> None:
    with small.catalog.scratch_duckdb() as connection:
        small.tables.attach(connection, "shown", small.name)
        connection.execute("select max(v) from shown").fetchall()


def compacted(small: Small) -> None:
    small.tables.compact(small.name, 2)


def trimmed(small: Small) -> None:
    small.tables.delete(small.name, "v > 0")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:9] + bytes(999))])
@pytest.mark.parametrize("act", [queried, compacted, trimmed])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, act: Callable[[Small], None], damage: Callable[[Path], None]
) -> None:
    small = Small(tmp_path)
    file = next(task.file for task in small.catalog.load(small.name).scan().plan_files())
    path = Path(local_path(file.file_path))
    damage(path)
    with pytest.raises(StorageError, match=f"{path.name}.*from a backup"):
        act(small)
