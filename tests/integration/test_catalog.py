"""The Iceberg catalog without an engine: several threads make tables at once, and others change them."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import StringType

from peer.tables.read import read
from replication import config as configuration
from replication.core.definition.define import typed_table
from replication.errors import CommitConflictError, ConfigError, CoordinationError, MissingFileError, StorageError
from replication.tables.catalog.catalog import CatalogProperties, IcebergCatalog, catalog_properties
from replication.tables.catalog.shared_catalog import shared_catalog
from replication.tables.duckdb.key_index import KeyIndex
from replication.tables.layout import layouts
from replication.tables.pyiceberg.row_delta import replace_rows
from shell.main import run
from shell.processes.preflight import check_host
from tests.contract.ledger_stores import postgresql_database
from tests.origin import new_ledger
from tests.sites import table
from tests.tables_made import append_decoded, as_decode, keyed

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
AT_ONCE = 8
INDEX = KeyIndex(None)


def test_a_table_is_read_though_its_metadata_file_went_after_it_was_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, spec = IcebergCatalog(catalog_properties(tmp_path)), table()
    catalog.create(spec)
    lookup: Any = catalog._lookup
    load, gone = lookup.load, [FileNotFoundError(2, "no such file", "/metadata/00001.metadata.json")]

    def superseded(name: str) -> Any:
        if gone:
            raise gone.pop()
        return load(name)

    monkeypatch.setattr(lookup, "load", superseded)
    assert catalog.history(spec.name).current is None and not gone


def test_tables_of_a_namespace_that_is_not_there_are_made_at_once(tmp_path: Path) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    for turn in range(5):
        specs = [typed_table(f"n{turn}.t{n}", SCHEMA, ["id"], uuids=iter(uuid4, None)) for n in range(AT_ONCE)]
        start = Barrier(AT_ONCE)

        def make(number: int, specs: list = specs, start: Barrier = start) -> None:
            start.wait(120)
            catalog.create(specs[number])

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(make, range(AT_ONCE)))
        assert all(catalog.exists(spec.name) for spec in specs)


def test_a_folder_of_any_name_holds_its_tables(tmp_path: Path) -> None:
    folder, spec = tmp_path / "50% of sp\N{LATIN SMALL LETTER A WITH DIAERESIS}ce #1", keyed("ops.t")
    folder.mkdir()
    catalog = IcebergCatalog(catalog_properties(folder))
    catalog.create(spec)
    assert all((folder / "warehouse").joinpath(*layout.name.split(".")).is_dir() for layout in layouts(spec))
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    check_host(configuration.load(None, {"cluster": {"name": "east", "data_dir": str(folder)}}, {}), ("worker",))


def test_a_copy_of_a_data_directory_is_kept_from_the_originals_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose files its catalog names: it would write among them, and expire some."""
    original, spec = tmp_path / "east", keyed("ops.t")
    original.mkdir()
    (original / "walship.toml").write_text(configuration.default_toml("east", "."))
    ledger = new_ledger(original)
    ledger.tables.create(spec)
    ledger.close()
    catalog = IcebergCatalog(catalog_properties(original))
    catalog.create(spec)
    copy = shutil.copytree(original, tmp_path / "copy")
    for verb in ("fold", "replay"):
        assert run([verb, "--cluster", str(copy / "walship.toml"), "--json"]) == ConfigError.exit_code
        assert f"{copy} was moved or copied" in json.loads(capsys.readouterr().err)["error"]


def test_a_table_is_empty_while_its_iceberg_tables_are_being_made_or_dropped(tmp_path: Path) -> None:
    catalog, spec = IcebergCatalog(catalog_properties(tmp_path)), keyed("ops.t")
    places = layouts(spec)
    for name in (place.name for place in reversed(places)):
        assert read(catalog, spec).read_all().num_rows == 0, f"before {name} is made"
        catalog.create(spec)
        for later in places[: [place.name for place in places].index(name)]:
            catalog._catalog.drop_table(later.name)
    catalog.create(spec)
    assert read(catalog, spec).read_all().num_rows == 0


def test_a_table_that_is_as_defined_is_not_committed_to(tmp_path: Path) -> None:
    catalog, spec = IcebergCatalog(catalog_properties(tmp_path)), keyed("ops.t")
    catalog.create(spec)
    before = [catalog.load(place.name).metadata_location for place in layouts(spec)]
    catalog.create(spec)
    assert [catalog.load(place.name).metadata_location for place in layouts(spec)] == before


def test_a_column_that_somebody_else_added_is_null_in_what_a_fold_writes(tmp_path: Path) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    spec = keyed("ops.t")
    catalog.create(spec)
    table = catalog.load("ops.t")
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{"k": "a", "v": 1}, {"k": "b", "v": 2}], schema=arrow))
    with table.update_schema() as update:
        update.add_column("theirs", StringType())
    assert catalog.fits(spec)
    expect = catalog.history("ops.t").current
    assert expect is not None
    rows = pa.Table.from_pylist([{"k": "a", "v": 9}], schema=arrow)
    replace_rows(catalog.load("ops.t"), INDEX.places, ["k"], rows.select(["k"]), rows, expect, {})
    with duckdb.connect() as connection:
        catalog.attach(connection, "shown", "ops.t", columns=spec.columns)
        assert connection.execute("select k, v, theirs from shown order by k").fetchall() == [
            ("a", 9, None),
            ("b", 2, None),
        ]


def test_columns_may_be_called_as_the_parquet_reader_calls_its_own(tmp_path: Path) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    names = ["filename", "file_row_number", "file_index", "c1", "select"]
    schema = pa.schema([("k", pa.int64()), *((name, pa.string()) for name in names)])
    key = ["k", "filename", "file_row_number"]
    spec = typed_table("ops.t", schema, key, uuids=iter(uuid4, None))
    catalog.create(spec)
    arrow = catalog.load("ops.t").schema().as_arrow()
    row = {"k": 1} | {name: f"{name}'s" for name in names}
    catalog.load("ops.t").append(pa.Table.from_pylist([row, row | {"k": 2}], schema=arrow))
    expect = catalog.history("ops.t").current
    assert expect is not None
    gone = pa.Table.from_pylist([row | {"k": 2}]).select(key)
    replace_rows(catalog.load("ops.t"), INDEX.places, key, gone, gone.slice(1), expect, {})
    with duckdb.connect() as connection:
        catalog.attach(connection, "shown", "ops.t", columns=spec.columns)
        shown = connection.sql("select * from shown").to_arrow_table().select([f.name for f in schema])
        assert shown.to_pylist() == [row]


def test_replacing_a_row_again_and_again_deletes_it_once_at_each_place_and_keeps_history(tmp_path: Path) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    catalog.create(keyed("ops.t"))
    table = catalog.load("ops.t")
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{"k": "a", "v": 0}, {"k": "b", "v": 0}], schema=arrow))
    first = catalog.history("ops.t").current
    assert first is not None
    table.manage_snapshots().create_tag(first, "held").commit()
    for turn in range(1, 6):
        expect = catalog.history("ops.t").current
        rows = pa.Table.from_pylist([{"k": "a", "v": turn}], schema=arrow)
        replace_rows(catalog.load("ops.t"), INDEX.places, ["k"], rows.select(["k"]), rows, expect, {"turn": str(turn)})
    history = catalog.history("ops.t")
    assert [s.summary.get("added-position-deletes") for s in history.chain()] == ["1"] * 5 + [None]
    assert [s.summary.get("turn") for s in history.chain()] == [*"54321", None]
    assert history.tags == {"held": first}
    with duckdb.connect() as connection:
        catalog.attach(connection, "shown", "ops.t")
        assert connection.execute("select k, v from shown order by k").fetchall() == [("a", 5), ("b", 0)]


def test_a_file_of_a_table_that_is_damaged_or_gone_is_named(tmp_path: Path) -> None:
    catalog, spec = IcebergCatalog(catalog_properties(tmp_path)), keyed("ops.t")
    catalog.create(spec)
    made = catalog.load("ops.t")
    made.append(pa.Table.from_pylist([{"k": "a", "v": 0}], schema=made.schema().as_arrow()))
    (lost,) = (tmp_path / "warehouse").rglob("*.parquet")
    os.truncate(lost, 100)
    with pytest.raises(StorageError, match=f"{lost.name}.*is damaged"):
        read(catalog, spec).read_all()
    lost.unlink()
    with pytest.raises(MissingFileError, match=lost.name):
        read(catalog, spec).read_all()


@pytest.mark.parametrize("part", ["*.metadata.json", "snap-*.avro", "*-m0.avro"])
def test_what_lists_the_files_of_a_table_is_named_when_it_is_damaged_or_gone(tmp_path: Path, part: str) -> None:
    spec = keyed("ops.t")
    writing = IcebergCatalog(catalog_properties(tmp_path))
    writing.create(spec)
    made = writing.load("ops.t")
    made.append(pa.Table.from_pylist([{"k": "a", "v": 0}], schema=made.schema().as_arrow()))
    lost = max((tmp_path / "warehouse/ops/t").rglob(part), key=lambda file: file.name)
    whole, catalog = lost.read_bytes(), IcebergCatalog(catalog_properties(tmp_path))
    for damaged in (whole[:-20], whole[:100], b"", bytes(len(whole)), whole[:40] + b"\xff\xfe" * 9 + whole[58:]):
        lost.write_bytes(damaged)
        with pytest.raises(StorageError, match=f"{lost.name}.*is damaged"):
            read(catalog, spec).read_all()
        if lost.suffix == ".json":
            with pytest.raises(StorageError, match=f"{lost.name}.*is damaged"):
                writing.load("ops.t")
    lost.unlink()
    with pytest.raises(MissingFileError, match=lost.name):
        read(catalog, spec).read_all()


def test_a_catalog_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no database " * 999)
    with pytest.raises(CoordinationError, match="catalog.db cannot be opened"):
        IcebergCatalog(catalog_properties(tmp_path))
    with pytest.raises(CoordinationError, match="cannot be opened"):
        IcebergCatalog(catalog_properties(tmp_path / "catalog.db"))


@pytest.mark.parametrize("fault", ["sent again", "no answer", "not sent"])
@pytest.mark.parametrize("how", ["append", "replace"])
def test_files_of_a_commit_that_may_be_there_are_never_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, fault: str
) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    catalog.create(keyed("ops.t"))
    table = catalog.load("ops.t")
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([{"k": "a", "v": 0}], schema=arrow))
    expect = catalog.history("ops.t").current
    before = set((tmp_path / "warehouse").rglob("*.parquet"))
    commit_table = SqlCatalog.commit_table

    def commit(*arguments: Any) -> Any:
        if fault != "not sent":
            commit_table(*arguments)
        if fault != "sent again":
            raise ConnectionError(fault)
        return commit_table(*arguments)

    def write() -> int:
        rows = pa.Table.from_pylist([{"k": "a", "v": 1}], schema=arrow)
        if how == "append":
            return append_decoded(catalog.load("ops.t"), replace(as_decode(rows), size=1), expect, {})
        return replace_rows(catalog.load("ops.t"), INDEX.places, ["k"], rows.select(["k"]), rows, expect, {})

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit)
        if fault == "sent again":
            assert write() == catalog.history("ops.t").current != expect
        else:
            with pytest.raises(ConnectionError):
                write()
    written = set((tmp_path / "warehouse").rglob("*.parquet")) - before
    assert len(written) == (1 if how == "append" else 2)
    wanted = [("a", 0)] if fault == "not sent" else [("a", 0), ("a", 1)] if how == "append" else [("a", 1)]
    with duckdb.connect() as connection:
        catalog.attach(connection, "shown", "ops.t")
        assert connection.execute("select k, v from shown order by v").fetchall() == wanted
    with pytest.raises(CommitConflictError), monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lambda *arguments: (_ for _ in ()).throw(CommitFailedException()))
        expect = catalog.history("ops.t").current
        write()
    assert set((tmp_path / "warehouse").rglob("*.parquet")) == before | written, "files of a refused commit stayed"


def test_hosts_that_open_the_catalog_beside_the_ledger_at_once_find_the_same(postgresql: str, tmp_path: Path) -> None:
    with postgresql_database(postgresql, empty=True) as stores:
        spark, pyiceberg = shared_catalog(stores.url, tmp_path.as_uri())
        assert spark["uri"].startswith("jdbc:postgresql://127.0.0.1:")
        made: list[IcebergCatalog] = []

        def opening() -> None:
            made.append(IcebergCatalog(CatalogProperties(spark, pyiceberg)))

        threads = [Thread(target=opening) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(made) == 4
        made[0].create(table("ops.shared"))
        assert all(catalog.exists("ops.shared") for catalog in made)
        assert [spec.name for spec in made[-1].specs()] == ["ops.shared"]
        for catalog in made:
            catalog.close()


def test_tables_are_found_at_once_after_the_database_of_the_catalog_has_restarted(
    postgresql: str, tmp_path: Path
) -> None:
    with postgresql_database(postgresql, empty=True) as stores:
        catalog = IcebergCatalog(CatalogProperties(*shared_catalog(stores.url, tmp_path.as_uri())))
        catalog.create(table("ops.shared"))
        assert catalog.exists("ops.shared")
        server = sa.create_engine(stores.url, poolclass=sa.NullPool)
        with server.connect() as connection:
            others = "pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            assert connection.exec_driver_sql(f"select count(pg_terminate_backend(pid)) from {others}").scalar()
        assert catalog.exists("ops.shared")
        catalog.close()
