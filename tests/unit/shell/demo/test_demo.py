"""The demo's data and what it does about an earlier run; the whole of it is run by tests/e2e."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import psutil
import pyarrow as pa
import pytest

from peer.status.role_processes import ProcessState
from peer.verify.verdict import Holding, Verdict
from replication import config as configuration
from replication.errors import ConfigError, LockedFileError
from shell import main
from shell.demo import data
from shell.demo.demo import DemoResult
from shell.demo.sites import MARK, SPARK, DemoSite, clear_earlier, in_folder
from tests.waiting import wait_until


def test_rows_without_a_key_and_repeated_keys_are_counted_and_the_last_is_kept():
    rows = pa.table({"id": [1, None, 2, 1], "v": ["first", "none", "two", "last"]})
    table = data._table("ops.t", ("id",), rows)
    assert table.rows.to_pylist() == [{"id": 2, "v": "two"}, {"id": 1, "v": "last"}]
    assert (table.null_keys, table.repeated_keys) == (1, 1)


def test_corrections_are_whole_rows_of_flights_that_arrived():
    flights = pa.table({"flight": list(range(100)), "arr_delay": [None if i % 2 else i for i in range(100)]})
    made = data.corrected_delays(flights, share=20)
    assert made.to_pylist() == [
        {"flight": 0, "arr_delay": -1},
        {"flight": 40, "arr_delay": 39},
        {"flight": 80, "arr_delay": 79},
    ]


def test_cancelled_flights_are_keys_of_those_that_never_left():
    flights = pa.table({"flight": [1, 2], "day": [1, 1], "dep_time": [500, None]})
    assert data.cancelled(flights, ("day", "flight")).to_pylist() == [{"day": 1, "flight": 2}]


def test_the_real_data_has_unique_keys():
    loaded = data.load()
    assert loaded.flights.rows.num_rows == 336_776
    assert all((table.null_keys, table.repeated_keys) == (0, 0) for table in loaded.tables)


def test_what_an_earlier_demo_left_is_removed_and_said(tmp_path):
    folder = tmp_path / "demo-data"
    assert clear_earlier(folder) == ""
    (folder / "east" / "run").mkdir(parents=True)
    (folder / MARK).touch()
    assert "removed" in clear_earlier(folder)
    assert not folder.exists()


def test_a_folder_in_which_a_demo_runs_is_left_alone(tmp_path):
    folder = tmp_path / "demo"
    with in_folder(folder):
        (folder / "east").mkdir()
        with pytest.raises(LockedFileError, match="Another demo is running"):
            clear_earlier(folder)
        with pytest.raises(LockedFileError), in_folder(folder):
            pass
        assert (folder / "east").is_dir()
    assert "removed" in clear_earlier(folder)


def test_an_earlier_demo_that_ends_just_when_it_is_to_be_stopped_is_cleared(tmp_path, monkeypatch):
    folder = tmp_path / "demo-data"
    (folder / "east" / "run").mkdir(parents=True)
    (folder / MARK).touch()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    found = iter([ended.pid, None])
    monkeypatch.setattr("shell.demo.sites.running_pid", lambda run_dir: next(found))
    assert clear_earlier(folder) == "stopped east of"
    assert not folder.exists()


_LOCKING = """
import sqlite3, sys, time
ledger = sqlite3.connect(sys.argv[1], isolation_level=None)
ledger.execute("begin immediate")
print(flush=True)
time.sleep(0.5)
ledger.execute("commit")
time.sleep(600)
"""


def test_a_role_is_not_frozen_while_it_has_the_ledger_locked(tmp_path):
    config = configuration.load(None, {"cluster": {"name": "west", "data_dir": str(tmp_path)}})
    ledger = tmp_path / "ledger.db"
    with subprocess.Popen([sys.executable, "-c", _LOCKING, str(ledger)], stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout.readline()
            ProcessState("worker", worker.pid, "ready").write(config.run_dir)
            assert DemoSite("west", tmp_path / "walship.toml", config, ("worker",)).freeze("worker") == worker.pid
            wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
            with closing(sqlite3.connect(ledger, timeout=0)) as other:
                other.execute("begin immediate")
        finally:
            worker.kill()


def test_spark_processes_that_an_earlier_demo_left_running_are_ended_and_no_others(tmp_path):
    folder = tmp_path / "demo-data"
    spark = folder / SPARK
    spark.mkdir(parents=True)
    (folder / MARK).touch()
    waiting = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")
    with (
        subprocess.Popen([*waiting, str(spark / "conf")], stdout=subprocess.PIPE) as left,
        subprocess.Popen(waiting, stdout=subprocess.PIPE) as another,
    ):
        try:
            for each, name in ((left, "master"), (another, "worker0")):  # its process id was used again
                assert each.stdout.readline()
                (spark / f"{name}.pid").write_text(str(each.pid))
            clear_earlier(folder)
            assert left.wait(20) == -signal.SIGTERM
            assert another.poll() is None
        finally:
            left.kill()
            another.kill()
    assert not folder.exists()


def test_a_graph_on_the_spark_cluster_is_refused(tmp_path, capsys):
    assert main.run(["demo", "--dir", str(tmp_path / "demo"), "--graph", "ring", "--spark-cluster"]) == 4
    assert "more clusters than" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_no_demo_made_is_never_touched(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not made by the demo") as refused:
        clear_earlier(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"
    assert "remove" not in refused.value.hint, "it may be a cluster's data"


def test_a_demo_runs_again_in_a_folder_that_a_link_leads_to(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "demo").symlink_to("disk")

    def run_demo(printer, folder, **_):
        clear_earlier(folder)
        with in_folder(folder):
            (folder / "east").mkdir()

    monkeypatch.setattr("shell.demo.demo.run_demo", run_demo)
    for _ in range(2):
        assert main.run(["demo", "--dir", str(tmp_path / "demo")]) == 0
    assert (tmp_path / "demo" / "east").is_dir() and (tmp_path / "demo").is_symlink()


def test_what_the_demo_found_is_one_json_value(tmp_path, monkeypatch, capsys):
    verdict = Verdict("ops.t", Holding("east", 3, "a"), Holding("west", 3, "a"), 0)
    result = DemoResult(61.5, 3, (verdict,), True, 4096)
    monkeypatch.setattr("shell.demo.demo.run_demo", lambda printer, folder, *, keep, spark_cluster: result)
    assert main.run(["demo", "--dir", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seconds"], told["rows_written"], told["lag_most_bytes"], told["as_expected"]) == (61.5, 3, 4096, True)
    assert [(each["table"], each["differing"]) for each in told["verdicts"]] == [("ops.t", 0)]
