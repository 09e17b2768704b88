"""Compaction is tried when files have come, and not again and again where none is worth it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from peer.tables.maintenance import SNAPSHOT_KEEP_US, SPARED_TAG, tidy
from replication.errors import StorageError
from replication.tables.layout import CHANGES
from tests.fakes.tables import MemoryTables
from tests.origin import new_ledger
from tests.tables_made import keyed

FILES = 48


def test_large_files_are_not_compacted_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, tables, spec = new_ledger(tmp_path), MemoryTables(), keyed("ops.t")
    tables.create(spec)
    tried: list[str] = []
    compacted: dict[str, int | None] = {}

    def compact(name: str, min_files: int) -> int:
        tried.append(name)
        return 0

    monkeypatch.setattr(tables, "compact", compact)

    def add(files: int) -> None:
        current = tables.history(spec.name + CHANGES).current
        tables.append(spec.name + CHANGES, pa.table({"k": ["a"]}), current, {"added-data-files": str(files)})

    def tidied() -> int:
        tidy(tables, ledger, spec, 1, compacted)
        return len(tried)

    add(FILES)
    assert [tidied() for _ in range(3)] == [1, 1, 1]
    add(FILES - 1)
    assert tidied() == 1
    add(1)
    assert [tidied() for _ in range(3)] == [2, 2, 2]
    ledger.close()


def test_a_damaged_file_is_told_and_does_not_make_the_number_of_snapshots_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, tables, spec = new_ledger(tmp_path), MemoryTables(), keyed("ops.t")
    tables.create(spec)
    name = spec.name + CHANGES
    for _ in range(200):
        current = tables.history(name).current
        tables.append(name, pa.table({"k": ["a"]}), current, {"added-data-files": "1"})

    def damaged(name: str, min_files: int) -> int:
        raise StorageError("a.parquet cannot be read")

    monkeypatch.setattr(tables, "compact", damaged)
    with pytest.raises(StorageError, match=r"a\.parquet"):
        tidy(tables, ledger, spec, 10**15, {})
    assert len(tables.history(name).snapshots) < 50
    ledger.close()


def test_a_tag_of_another_program_stays_and_holds_up_no_maintenance(tmp_path: Path) -> None:
    ledger, tables, spec = new_ledger(tmp_path), MemoryTables(), keyed("ops.t")
    tables.create(spec)
    name = spec.name + CHANGES
    snapshot = tables.append(name, pa.table({"k": ["a"]}), None, {})
    assert snapshot is not None
    for tag in ("before_upgrade", "7"):
        tables.tag(name, SPARED_TAG + tag, snapshot)
    tidy(tables, ledger, spec, SNAPSHOT_KEEP_US + 8)
    assert set(tables.history(name).tags) == {SPARED_TAG + "before_upgrade"}
    ledger.close()
