"""What ``up`` looks at first: each thing that is wrong is one clear error, and nothing was started."""

import errno
import fcntl
import gc
import importlib.util
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from replication import config as configuration
from replication.core.frame import FILE_HEADER_BYTES, encode_file_header
from replication.errors import ConfigError, LockedFileError, NoSpaceError, SparkMissingError
from replication.ledger.base import FileKind
from replication.ledger.sql.ledger import open_ledger
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.spark import jars
from shell import main
from shell.processes.preflight import check_host, data_dir_lock, running_pid, runs_elsewhere
from shell.processes.roles import make_ledger
from shell.processes.up import chosen_roles
from tests.certificates import Authority
from tests.tables_made import keyed


def config_in(folder, **sections):
    file = folder / "walship.toml"
    file.write_text(configuration.default_toml("east", ".", **sections))
    return configuration.load(file)


def test_directories_are_made(tmp_path):
    config = config_in(tmp_path)
    check_host(config, ("master",))
    assert all((tmp_path / name).is_dir() for name in ("wal", "landing", "warehouse", "log", "run"))


@pytest.mark.parametrize(("names", "is_ours"), [("east", True), ("west", False), ("", False)])
def test_a_certificate_that_does_not_name_the_cluster_is_refused_before_its_receiver_starts(tmp_path, names, is_ours):
    made = Authority(tmp_path / "authority").tls("east", cluster=names)
    section = {"ca": made.ca, "cert": made.certificate, "key": made.key}
    config = config_in(tmp_path, tls=section)
    check_host(config, ("master",))
    if is_ours:
        check_host(config, ("worker", "receiver"))
        return
    with pytest.raises(ConfigError, match="does not name cluster east") as refused:
        check_host(config, ("worker", "receiver"))
    assert made.certificate in refused.value.what and 'DNS name "east"' in refused.value.hint


@pytest.mark.parametrize("name", ["run", "log"])
def test_a_file_where_a_folder_is_needed_is_named(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"/{name}: File exists"), data_dir_lock(config_in(tmp_path)):
        pass


def test_a_second_up_on_the_same_directory_is_told_who_has_it(tmp_path):
    config = config_in(tmp_path)
    with data_dir_lock(config):
        assert running_pid(config.run_dir) is not None
        with pytest.raises(LockedFileError, match="is used by another walship"), data_dir_lock(config):
            pass
    assert running_pid(config.run_dir) is None


def test_what_another_user_runs_is_not_taken_for_nothing(tmp_path, monkeypatch):
    def denied(file, mode="r", *more):
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PermissionError, match=r"up\.pid"):
        running_pid(tmp_path)


def test_who_runs_is_known_after_the_disk_became_read_only(tmp_path, monkeypatch):
    config, real = config_in(tmp_path), Path.open

    def read_only(file, mode="r", *more):
        if "+" in mode:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(file, mode, *more)

    def fails(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    with data_dir_lock(config):
        monkeypatch.setattr(Path, "open", read_only)
        assert running_pid(config.run_dir) == os.getpid()
        monkeypatch.setattr(os, "ftruncate", fails)
    assert running_pid(config.run_dir) is None


def test_who_runs_is_known_to_another_user(tmp_path, monkeypatch):
    config, real = config_in(tmp_path), Path.open

    def of_another(file, mode="r", *more):
        if "+" in mode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(file, mode, *more)

    with data_dir_lock(config):
        monkeypatch.setattr(Path, "open", of_another)
        assert running_pid(config.run_dir) == os.getpid()


def test_down_of_a_cluster_in_a_container_signals_no_process_of_that_number_here(tmp_path, capsys, monkeypatch):
    config, killed = config_in(tmp_path), []
    monkeypatch.setattr(os, "kill", lambda *given: killed.append(given))
    with data_dir_lock(config):
        assert not runs_elsewhere(config.run_dir)
        running = config.run_dir / "up.pid"
        pid, owner = running.read_text().split()
        running.write_text(f"{pid}\n{owner.replace(owner.split('/')[2], 'another')}\n")
        assert main.run(["down", "--config", str(next(tmp_path.glob("*.toml")))]) == ConfigError.exit_code
    assert not killed and f"pid {pid}, in a container" in capsys.readouterr().err


def test_a_disk_without_locks_is_no_other_up(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(ConfigError, match=r"up.pid cannot be locked: No locks"), data_dir_lock(config_in(tmp_path)):
        pass


def test_the_lock_can_be_taken_again(tmp_path):
    config = config_in(tmp_path)
    for _ in range(2):
        with data_dir_lock(config):
            pass


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    config = config_in(tmp_path)
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be used"), data_dir_lock(config):
        pass
    (tmp_path / "run").unlink()

    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("shell.processes.preflight.os.ftruncate", fill)
        with pytest.raises(NoSpaceError, match=f"no space is left under {tmp_path}"), data_dir_lock(config):
            pass
    with data_dir_lock(config):
        pass


def test_too_little_disk_is_said_in_numbers(tmp_path, monkeypatch):
    config = config_in(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shell.processes.preflight.shutil.disk_usage", lambda path: usage._replace(free=5 << 20))
    with pytest.raises(NoSpaceError, match="only 5 MiB are free"):
        check_host(config, ("master",))
    monkeypatch.setattr("shell.processes.preflight.shutil.disk_usage", lambda path: usage._replace(free=20 << 20))
    with pytest.raises(NoSpaceError, match=r"disk_free_min_bytes.*--roles master,worker"):
        check_host(config, ("master", "receiver"))
    check_host(config, ("master", "worker"))  # what is sent frees space


def test_wals_without_a_ledger_are_no_fresh_start(tmp_path):
    config = config_in(tmp_path)
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "000000000001.wal").touch()
    with pytest.raises(ConfigError, match="no ledger.db"):
        check_host(config, ("master",))


def test_a_ledger_that_has_another_place_is_missed_and_named_there(tmp_path):
    config = config_in(tmp_path, ledger={"url": "sqlite:///50%25 off/own.db"})
    own = tmp_path / "50% off" / "own.db"
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "000000000001.wal").touch()
    with pytest.raises(ConfigError, match=r"no own\.db"):  # before an empty one is made
        check_host(config, ("master",))
    own.parent.mkdir()
    own.write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match=rf"{own} is not a readable ledger.*mv '{own}'\* lost"):
        check_host(config, ("master",))


def test_a_damaged_ledger_is_said(tmp_path):
    config = config_in(tmp_path)
    (tmp_path / "ledger.db").write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match=r"not a readable ledger.*mv .*ledger\.db\* lost"):
        check_host(config, ("master",))


def test_a_ledger_that_another_program_has_locked_is_not_to_be_rebuilt(tmp_path):
    config = config_in(tmp_path)
    make_ledger(config)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("pragma locking_mode = exclusive")
        other.execute("begin immediate")
        with pytest.raises(ConfigError, match="is locked. End the program that has it open") as refused:
            check_host(config, ("master",))
    assert "rebuild" not in str(refused.value)


@pytest.mark.linux
def test_a_check_leaves_no_ledger_open_in_the_process_that_forks_the_roles(tmp_path):
    config = config_in(tmp_path)
    make_ledger(config)  # there is one already, as at each start but the first
    gc.disable()  # a connection of sqlite3 is part of a cycle
    try:
        check_host(config, ("master",))
        opened = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    finally:
        gc.enable()
    assert not [name for name in opened if name.startswith(str(tmp_path))]


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


def test_files_of_a_data_directory_that_was_moved_or_is_reached_by_a_link_are_known_by_their_new_paths(tmp_path):
    (tmp_path / "one").mkdir()
    config = config_in(tmp_path / "one")
    make_ledger(config)
    with closing(open_ledger(config.ledger_url)) as ledger:
        rows = [ledger.files.allocate("h0", FileKind.LANDING, str(config.landing_dir), "boot") for _ in range(2)]
    config.landing_dir.mkdir()
    Path(rows[0].path).write_bytes(bytes(FILE_HEADER_BYTES))

    def paths(home):
        config = config_in(home)
        make_ledger(config)
        with closing(open_ledger(config.ledger_url)) as ledger:
            return [row.path for row in ledger.files.all("h0")]

    (tmp_path / "link").symlink_to(tmp_path / "one")
    linked = tmp_path / "link" / "landing" / "000000000000.wal"
    assert paths(tmp_path / "link") == [str(linked), rows[1].path], "what is not there stays as it was"
    (tmp_path / "link").unlink()
    (tmp_path / "one").rename(tmp_path / "two")
    assert paths(tmp_path / "two")[0] == str(tmp_path / "two" / "landing" / "000000000000.wal")
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    with pytest.raises(ConfigError, match=f"three is a copy: its ledger names files in {tmp_path}/two/landing, which"):
        paths(tmp_path / "three")  # it would delete the original's files once it had shipped and replayed them
    shutil.rmtree(tmp_path / "two")
    assert paths(tmp_path / "three")[0] == str(tmp_path / "three" / "landing" / "000000000000.wal")


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
    monkeypatch.setattr(jars, "_java_places", lambda: iter(()))
    check_host(config, ("master", "worker", "receiver"))
    with pytest.raises(ConfigError, match="Java"):
        check_host(config, ("zookeeper",))


def test_where_pyspark_is_missing_the_remedy_needs_none(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyspark" else find(name))
    monkeypatch.setattr("shell.processes.preflight.java_home_check", lambda: "/java")
    outside = {"embedded": False, "servers": "localhost:2181"}
    with pytest.raises(SparkMissingError, match=r"spark\]'; the embedded ZooKeeper is part of it, too$"):
        check_host(config_in(tmp_path), ("zookeeper", "replay"))
    with pytest.raises(ConfigError, match="the embedded ZooKeeper is part of PySpark"):
        check_host(config_in(tmp_path), ("zookeeper", "master"))
    with pytest.raises(SparkMissingError, match=r"\[replay\] enabled = false"):
        check_host(config_in(tmp_path, zookeeper=outside), ("replay",))
    shared = {"ledger": {"url": "postgresql://u@db/east?sslmode=require"}, "catalog": {"warehouse": "file:///mnt/east"}}
    config = config_in(tmp_path, zookeeper=outside, **shared)
    with pytest.raises(SparkMissingError, match="another host: --roles master,worker,receiver$"):
        check_host(config, ("replay",))
    check_host(config, chosen_roles(config, "master,worker,receiver"))


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
    outside = config_in(tmp_path, zookeeper={"embedded": False, "servers": "localhost:2181"}, replay={"enabled": False})
    assert chosen_roles(outside, "") == ("master", "worker", "receiver")
    assert chosen_roles(outside, "zookeeper,worker") == ("worker",)
    with pytest.raises(ConfigError, match="none of these roles runs here"):
        chosen_roles(outside, "zookeeper")


def test_another_host_slot_than_that_of_the_files_is_refused_by_name_and_not_as_an_old_ledger(tmp_path):
    config = config_in(tmp_path)
    check_host(config, ("master",))
    make_ledger(config)
    file = tmp_path / "wal" / "0.wal"
    with closing(open_ledger(config.ledger_url)) as ledger:
        row = ledger.files.allocate("h0", FileKind.WAL, str(file.parent), "boot", "w")
        file.write_bytes(encode_file_header(row.file, row.created) + b"rows")
    make_ledger(config)
    renamed = config.model_copy(update={"cluster": config.cluster.model_copy(update={"host": "h1"})})
    with pytest.raises(ConfigError, match="is of host h0 of the cluster") as refused:
        make_ledger(renamed)
    assert refused.value.hint.startswith('Correct [cluster] host = "h0"') and "rebuildledger" not in str(refused.value)
