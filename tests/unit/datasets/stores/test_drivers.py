"""What every driver of fsspec makes of what a store tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replication.core.copying.names import RelativePath
from replication.datasets.stores.drivers import Driver, MemoryDriver
from replication.datasets.stores.open import open_store

_HALF_BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("told", "time_ns"),
    [
        (_HALF_BEFORE_1970, -500_000_000),
        (_HALF_BEFORE_1970.replace(tzinfo=None), -500_000_000),
        (_HALF_BEFORE_1970.astimezone(timezone(timedelta(hours=5))), -500_000_000),
        (datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC), 1_767_225_600_999_999_000),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999_999_000),
    ],
)
def test_a_time_that_a_store_tells_is_exact_to_the_microsecond(told: datetime, time_ns: int) -> None:
    assert Driver().timestamp_ns({"mtime": told}) == time_ns


@pytest.mark.parametrize("folder", ["", "a"])
def test_objects_below_an_empty_name_are_refused_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    at = f"/bucket/{folder}".rstrip("/")
    told = [
        {"name": f"{at}/", "type": "file", "size": 0},  # stands for the folder
        {"name": f"{at}//", "type": "directory", "size": 0},  # s3://bucket/a//b has it
        {"name": f"{at}/b/", "type": "directory", "size": 0},
        {"name": f"{at}/c", "type": "file", "size": 1},
    ]
    monkeypatch.setattr(MemoryDriver, "entries", lambda *_: iter(told))
    with open_store("memory://bucket") as store:
        refused, *others = store.scan(RelativePath(folder))
    assert "empty name" in refused.refused
    assert [each.attributes.name for each in others if each.attributes] == ["b", "c"]


def test_a_name_that_looks_like_a_pattern_is_moved_as_it_is_by_a_driver_without_a_move_of_its_own() -> None:
    fs = MemoryFileSystem()
    for name in ("a*", "ab", "[c]", "c"):
        fs.pipe_file(f"/move/staged/{name}", name.encode())
    for name in ("a*", "[c]"):
        Driver().move(fs, f"/move/staged/{name}", f"/move/{name}")
    found = {name.removeprefix("/move/"): fs.cat_file(name) for name in fs.find("/move")}
    assert found == {"a*": b"a*", "[c]": b"[c]", "staged/ab": b"ab", "staged/c": b"c"}
