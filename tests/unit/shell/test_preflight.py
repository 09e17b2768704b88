"""What ``up`` looks at first: each thing that is wrong is one clear error, and nothing was started."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from replication import config as configuration
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import ConfigError, LockedFileError, NoSpaceError
from replication.ledger.base import FileKind
from replication.ledger.sql import open_ledger
from replication.tables.catalog import IcebergCatalog, catalog_properties
from shell.preflight import DataDirLock, check_host, running_pid
from shell.roles import make_ledger
from shell.up import chosen_roles
from tests.tables_made import keyed


def config_in(folder, **sections):
    file = folder / "walship.toml"
    file.write_text(configuration.default_toml("east", ".", **sections))
    return configuration.load(file)


def test_directories_are_made(tmp_path):
    config = config_in(tmp_path)
    check_host(config, ("master",))
    assert all((tmp_path / name).is_dir() for name in ("wal", "landing", "warehouse", "log", "run"))


def test_a_second_up_on_the_same_directory_is_told_who_has_it(tmp_path):
    config = config_in(tmp_path)
    with DataDirLock(config):
        assert running_pid(config.run_dir) is not None
        with pytest.raises(LockedFileError, match="Another `walship up`"), DataDirLock(config):
            pass
    assert running_pid(config.run_dir) is None


def test_the_lock_can_be_taken_again(tmp_path):
    config = config_in(tmp_path)
    for _ in range(2):
        with DataDirLock(config):
            pass


def test_too_little_disk_is_said_in_numbers(tmp_path, monkeypatch):
    config = config_in(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shell.preflight.shutil.disk_usage", lambda path: usage._replace(free=5 << 20))
    with pytest.raises(NoSpaceError, match="Only 5 MiB are free"):
        check_host(config, ("master",))


def test_wals_without_a_ledger_are_no_fresh_start(tmp_path):
    config = config_in(tmp_path)
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "000000000001.wal").touch()
    with pytest.raises(ConfigError, match="no ledger.db"):
        check_host(config, ("master",))


def test_a_damaged_ledger_is_said(tmp_path):
    config = config_in(tmp_path)
    (tmp_path / "ledger.db").write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match="not a readable ledger"):
        check_host(config, ("master",))


def test_a_ledger_that_does_not_know_newer_files_is_not_used(tmp_path):
    config = config_in(tmp_path)
    cluster = make_ledger(config)
    with closing(open_ledger(config.ledger_url)) as ledger:
        row = ledger.files.allocate("h0", FileKind.LANDING, str(config.landing_dir), "boot")
    config.landing_dir.mkdir()
    newer = config.landing_dir / "000000000001.wal"
    for file in (Path(row.path), newer):
        file.write_bytes(bytes(FILE_HEADER_BYTES))
    assert make_ledger(config) == cluster, "a file without frames was never acked"
    Path(row.path).write_bytes(bytes(FILE_HEADER_BYTES + 1))
    assert make_ledger(config) == cluster
    newer.write_bytes(bytes(FILE_HEADER_BYTES + 1))
    with pytest.raises(ConfigError, match=rf"older than the files.*none from number 1 on, .*{newer}.*rebuildledger"):
        make_ledger(config)


def test_a_copy_does_not_start_on_the_tables_of_its_original(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    config = config_in(tmp_path / "one")
    catalog = IcebergCatalog(catalog_properties(config.data_dir))
    catalog.create(keyed("ops.t"))
    catalog.close()
    check_host(config, ("master",))
    shutil.copytree(tmp_path / "one", tmp_path / "two", dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=f"copied: its tables name their files in {tmp_path}/one. Move"):
        check_host(config_in(tmp_path / "two"), ("master",))
    shutil.rmtree(tmp_path / "one")
    (tmp_path / "one").symlink_to(tmp_path / "two")
    check_host(config_in(tmp_path / "two"), ("master",))
    check_host(config_in(tmp_path / "one"), ("master",))


def test_missing_java_is_said_only_where_it_is_needed(tmp_path, monkeypatch):
    config = config_in(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    check_host(config, ("master", "worker", "receiver"))
    with pytest.raises(ConfigError, match="Java"):
        check_host(config, ("zookeeper",))


def test_a_data_directory_that_is_a_file_is_said(tmp_path):
    (tmp_path / "data").touch()
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east", "data"))
    with pytest.raises(ConfigError, match="cannot be used"):
        check_host(configuration.load(file), ("master",))


def test_roles_come_in_starting_order_and_without_what_is_disabled(tmp_path):
    assert chosen_roles(config_in(tmp_path), "") == ("zookeeper", "master", "worker", "receiver", "replay")
    assert chosen_roles(config_in(tmp_path), "worker, zookeeper") == ("zookeeper", "worker")
    assert chosen_roles(config_in(tmp_path), "master,worker") == ("zookeeper", "master", "worker")
    assert chosen_roles(config_in(tmp_path), "replay") == ("replay",)
    outside = config_in(tmp_path, zookeeper={"embedded": False, "servers": "zk:2181"}, replay={"enabled": False})
    assert chosen_roles(outside, "") == ("master", "worker", "receiver")
