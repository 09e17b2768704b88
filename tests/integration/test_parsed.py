"""Metadata that is parsed once: it is what the file says, whoever commits, and is read anew when the file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import InputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from replication.core.definition.alter import set_properties
from replication.errors import MissingFileError
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.duckdb.key_index import KeyIndex
from replication.tables.pyiceberg import parsed
from replication.tables.pyiceberg.local_io import LocalFileIO
from replication.tables.pyiceberg.row_delta import replace_rows
from tests.tables_made import keyed


def parsings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files parsed from now on."""
    seen: list[str] = []
    parse = FromInputFile.table_metadata

    def noted(file: InputFile, *more: str) -> TableMetadata:
        seen.append(Path(file.location).name)
        return parse(file, *more)

    monkeypatch.setattr(FromInputFile, "table_metadata", noted)
    return seen


def test_own_commits_parse_nothing_and_what_is_kept_is_what_the_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed._cache.clear()
    catalog, spec = IcebergCatalog(catalog_properties(tmp_path)), keyed("ops.t")
    catalog.create(spec)
    table = catalog.load("ops.t")
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{"k": "a", "v": 0}, {"k": "b", "v": 0}], schema=arrow))
    first = catalog.history("ops.t").current
    assert first is not None
    table.manage_snapshots().create_tag(first, "held").commit()
    seen = parsings(monkeypatch)
    for turn in range(1, 6):
        expect = catalog.history("ops.t").current
        rows = pa.Table.from_pylist([{"k": "a", "v": turn}], schema=arrow)
        table, gone = catalog.load("ops.t"), rows.select(["k"])
        replace_rows(table, KeyIndex(None).places, ["k"], gone, rows, expect, {"t": str(turn)})
    assert not seen
    monkeypatch.undo()
    catalog.create(set_properties(spec, {"history_s": "60"}, 1))
    assert len(parsed._cache) >= 10
    for (location, *_), metadata in parsed._cache.items():
        if os.path.exists(location.removeprefix("file://")):  # else superseded, and deleted
            file = load_file_io({}, location).new_input(location)
            assert metadata == FromInputFile.table_metadata(file), location


def test_somebody_elses_commit_is_seen_at_once(tmp_path: Path) -> None:
    one, other = (IcebergCatalog(catalog_properties(tmp_path)) for _ in range(2))
    one.create(keyed("ops.t"))
    arrow = one.load("ops.t").schema().as_arrow()
    for number in range(3):
        other.load("ops.t").append(pa.Table.from_pylist([{"k": "a", "v": number}], schema=arrow))
        assert one.history("ops.t").current == other.history("ops.t").current
        assert len(one.history("ops.t").snapshots) == number + 1


def test_a_file_that_changed_is_parsed_anew_and_one_that_went_is_missed(tmp_path: Path) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    catalog.create(keyed("ops.t"))
    file = Path(catalog.load("ops.t").metadata_location.removeprefix("file://"))
    text = file.read_text()
    file.write_text(text.replace('"owner":', '"Owner":') + "\n")
    assert catalog.load("ops.t").metadata is not None
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        catalog.load("ops.t")


def test_other_stores_are_asked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    catalog.create(keyed("ops.t"))
    location = catalog.load("ops.t").metadata_location
    seen = parsings(monkeypatch)
    for io, times in ((LocalFileIO(), 0), (PyArrowFileIO(), 2)):
        seen.clear()
        parsed.read_metadata(io, location)
        parsed.read_metadata(io, location)
        assert len(seen) == times


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    parsed._cache.clear()
    monkeypatch.setattr(parsed, "_KEPT_BYTES", 10_000)
    for number in range(5):
        catalog.create(keyed(f"ops.t{number}"))
        assert parsed._cache
        assert sum(size for _, size, _ in parsed._cache) <= 10_000
    assert sorted(name for name in (f"ops.t{n}" for n in range(5)) if catalog.exists(name)) == [
        f"ops.t{n}" for n in range(5)
    ]
