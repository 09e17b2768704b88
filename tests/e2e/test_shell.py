"""The shell against two whole clusters: every verb as a person would type it."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import urllib.request
from uuid import uuid4

import pytest

from replication.tables.spark.jars import ensure_jars
from tests.e2e.commands import ROOT
from tests.e2e.conftest import Site, threads_of

ROWS = 'id,name,v,at\n1,a,1.5,2013-01-01T10:00:00Z\n2,"b, c",,1969-12-31T23:59:59Z\n3,,2.5,\n'


@pytest.fixture(scope="module")
def table(east, tmp_path_factory):
    """A table made like a sample file, sent to west, with the file's rows in it."""
    name = f"shell.t{uuid4().hex[:8]}"
    file = tmp_path_factory.mktemp("rows") / "rows.csv"
    file.write_text(ROWS)
    east.shell("createtable", name, "--like", str(file), "--key", "id")
    told = east.shell("enablereplication", "-t", name, "-all-loc-groups", "west")
    assert f"{name} (groups default) goes to west" in told
    wrote = east.json("write", name, str(file), "--wait", "west", "--timeout-s", "400")
    assert wrote["rows"] == 3
    return name


def test_the_header_names_the_cluster(east):
    assert east.shell("listclusters").startswith("east  ")


def test_peers_are_listed_and_checked_when_defined(east, west):  # scenario 10: a peer is not oneself, 004-10
    [peer] = east.json("listclusters")
    assert peer["name"] == "west" and peer["id"].startswith("west:")
    own = east.config
    refused = east.shell("definecluster", "self", f"{own.zookeeper_servers}{own.zookeeper_root}", code=4)
    assert "is this cluster itself" in refused
    assert "nothing to do" in east.shell("definecluster", "west", peer["zookeepers"])
    assert "nothing to do" in east.shell("definecluster", "west", peer["zookeepers"].replace("/walship", ""))
    other = east.shell("definecluster", "north", peer["zookeepers"], code=4)
    assert "is west, not north" in other
    nobody = east.shell("definecluster", "north", "127.0.0.1:1/north", code=6)
    assert "did not answer" in nobody
    assert "hint" in east.shell("definecluster", "north", "non:sense", code=2)
    servers = peer["zookeepers"].partition("/")[0]
    assert "not at 127.0.0.1:1" in east.shell("deletecluster", "west", "127.0.0.1:1/walship/west", code=4)
    elsewhere = servers.replace(
        "127.0.0.1", "localhost"
    )  # the same cluster at another address, and its root by default
    for address in (elsewhere, servers):
        assert east.json("definecluster", "west", address)["zookeepers"] == f"{address}/walship/west"
    assert east.json("listclusters") == [peer], "with everything that must still get there"


def test_a_table_is_described_on_both_sides_with_the_same_uuid(east, west, table):
    here, there = east.json("describetable", table), west.json("describetable", table)
    assert here["uuid"] == there["uuid"]
    assert [column["name"] for column in here["columns"]] == ["id", "name", "v", "at"]
    assert here["replicated_to"] == [f"west: group default as {table}"]
    assert "Did you mean" in east.shell("describetable", table + "x", code=4)


def test_rows_are_read_on_the_other_side_in_every_form(west, table, tmp_path):
    lines = west.shell("read", table, "--json").splitlines()
    rows = sorted((json.loads(line) for line in lines), key=lambda row: row["id"])
    assert [row["name"] for row in rows] == ["a", "b, c", None]
    assert rows[1]["at"] == "1969-12-31T23:59:59+00:00"
    text = west.shell("read", table, "--where", "v > 2", "--columns", "id,v")
    assert list(csv.reader(io.StringIO(text), delimiter="\t")) == [["id", "v"], ["3", "2.5"]]
    west.shell("read", table, "-o", str(tmp_path / "out.parquet"))
    assert (tmp_path / "out.parquet").stat().st_size
    for name in (table, f"{table}__latest", f"walship.{table}__latest"):
        assert west.json("sql", f"select count(*) n from {name}") == {"n": 3}
    assert table in [json.loads(line)["name"] for line in west.shell("sql", "show tables", "--json").splitlines()]
    assert "nocolumn" in west.shell("read", table, "--where", "nocolumn = 1", code=4)


def test_enabling_a_table_with_rows_wants_from_now_and_system_tables_are_refused(east):  # 004-28
    name = f"shell.old{uuid4().hex[:8]}"
    east.shell("createtable", name, "id long, name string", "--key", "id")
    east.shell(
        "write", name, "-", "--format", "csv", "--wait", "east", "--timeout-s", "400", stdin="id,name\n1,a\n2,b\n"
    )
    refused = east.shell("enablereplication", "-t", name, "west", code=4)
    assert "holds 2 rows already, which will not be sent" in refused and "--from-now" in refused
    east.shell("enablereplication", "-t", name, "west", "--from-now")
    assert "already" in east.shell("enablereplication", "-t", name, "west", "--from-now", code=4)
    assert "is reserved for walship" in east.shell("createtable", name + "__changes", "id long", "-k", "id", code=3)
    east.shell("disablereplication", "-t", name, "west")
    assert "does not go to west" in east.shell("disablereplication", "-t", name, "west", code=4)


def test_another_table_of_the_same_name_at_the_peer_is_refused_with_the_remedy(east, west):
    name = f"shell.twice{uuid4().hex[:8]}"
    for site in (east, west):
        site.shell("createtable", name, "id long", "-k", "id")
    refused = east.shell("enablereplication", "-t", name, "west", code=6)
    assert "hint" in refused
    assert not east.json("describetable", name)["replicated_to"]
    east.shell("enablereplication", "-t", name, "west", "--remote-table", name + "_east")
    assert any(spec["name"] == name + "_east" for spec in west.json("listtables"))


def test_deletes_and_lines_on_standard_input(east, west, table):
    told = east.json("write", table, "-", "--format", "json", "--delete", "--wait", "west", "--timeout-s", "400")
    assert told["rows"] == 0
    east.shell(
        "write", table, "-", "--format", "json", "--delete", "--wait", "west", "--timeout-s", "400", stdin='{"id": 3}\n'
    )
    assert len(west.shell("read", table, "--json").splitlines()) == 2


def test_status_says_how_far_everything_is(east, table):
    told = east.json("status")
    assert told["members"]["role"] == "ACTIVE" and told["members"]["workers"] == ["h0"]
    [row] = [row for row in told["peers"] if row["table"] == table]
    assert row["peer"] == "west" and row["state"] == "caught_up" and row["lag_bytes"] == 0
    assert {row["table"] for row in told["tables"]} >= {table}
    assert any(origin["origin"].startswith("east:") and origin["replicated"] for origin in told["origins"])
    assert "west" in east.shell("status")


@pytest.mark.parametrize(("ends_by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_monitor_serves_the_status_until_it_is_stopped(east, table, ends_by, code):  # 004-35
    line = [sys.executable, "-m", "shell.main", "monitor", "--cluster", str(east.file), "--port", "0", "--json"]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as monitor:
        url = json.loads(monitor.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}status.json", timeout=60) as answer:
            found = json.load(answer)
        assert table in {row["table"] for row in found["peers"]}
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert table in answer.read().decode()
        monitor.send_signal(ends_by)
        _, errors = monitor.communicate(timeout=60)
    assert monitor.returncode == code and "Traceback" not in errors


def test_verify_finds_the_sides_equal(east, west, table):
    [verdict] = east.json("verify", str(west.file), table)
    assert verdict["differing"] == 0 and verdict["left"]["content"] == verdict["right"]["content"]
    [by_peer] = east.json("verify", "west", table)
    assert by_peer["left"]["rows"] == verdict["left"]["rows"]


def test_wals_are_listed_dumped_and_verified(east, west, table):
    for site in (east, west):
        assert all(file["on_disk"] for file in site.json("wal", "list"))
        assert not any(file["problems"] for file in site.json("wal", "verify"))
    newest = east.json("wal", "list")[-1]
    frames = east.json("wal", "dump", newest["file"])
    assert frames and frames[0]["begin"] == 256


def test_the_shell_takes_lines_from_standard_input(east, table):
    told = east.shell("shell", stdin=f"describetable {table}\nselect count(*) as n from {table}\nexit\n")
    assert table in told and '"n"' in told


def test_fold_moves_changes_into_the_table_that_other_engines_read(west, table):
    [told] = west.json("fold", table)
    assert told["table"] == table and told["folded_upto"]
    assert len(west.shell("read", table, "--json").splitlines()) == 2
    assert "no key" in west.shell("fold", _keyless(west), code=4)


def _keyless(site):
    name = f"shell.log{uuid4().hex[:8]}"
    site.shell("createtable", name, "id long")
    return name


def test_the_same_query_can_be_run_in_spark(west, table):
    query = f"select id, count(*) over () n from {table} order by id"
    in_spark = [json.loads(line) for line in west.shell("sql", "--spark", query, "--json").splitlines()]
    for same in (query, query.replace(table, f"{table}__latest")):
        assert in_spark == [json.loads(line) for line in west.shell("sql", same, "--json").splitlines()]
    assert [row["n"] for row in in_spark] == [2, 2]


@pytest.mark.slow
def test_a_query_that_spark_refuses_names_what_is_wrong(west, table):
    assert "nocolumn" in west.shell("sql", "--spark", f"select nocolumn from {table}", code=4)


@pytest.mark.slow
def test_a_spark_of_ones_own_shows_the_newest_rows(west, table):
    settings = west.json("sql", "--settings")
    assert "iceberg-spark-runtime" in settings.pop("spark.jars.packages")
    settings |= {"spark.jars": ",".join(map(str, ensure_jars())), "spark.ui.enabled": "false"}
    program = (
        "import json, sys; from pyspark.sql import SparkSession; builder = SparkSession.builder\n"
        "for key, value in json.loads(sys.argv[1]).items(): builder = builder.config(key, value)\n"
        "print(json.dumps([row.asDict() for row in builder.getOrCreate().sql(sys.argv[2]).collect()]))"
    )
    query = f"select id from walship.{table}__latest order by id"
    command = [sys.executable, "-c", program, json.dumps(settings), query]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    assert [row["id"] for row in json.loads(told)] == sorted(
        json.loads(line)["id"] for line in west.shell("read", table, "--json").splitlines()
    )
    assert "takes a QUERY" in west.shell("sql", code=4)


def test_a_peer_is_deleted_with_what_goes_to_it(east, west):
    name = f"shell.back{uuid4().hex[:8]}"
    own = east.config
    west.shell("definecluster", "east", f"{own.zookeeper_servers}{own.zookeeper_root}")
    west.shell("createtable", name, "id long", "-k", "id")
    west.shell("enablereplication", "-t", name, "east")
    west.shell("deletecluster", "east")
    assert west.json("listclusters") == []
    assert not west.json("describetable", name)["replicated_to"]
    assert "no peer" in west.shell("deletecluster", "east", code=4)
    assert any(spec["name"] == name for spec in east.json("listtables")), "what the peer has stays there"


def test_replay_says_when_everything_is_in_the_tables(west):
    assert "up to date" in west.shell("replay")


def test_roles_change_hands_by_readonly(west):
    shown = west.json("readonly")
    assert (shown["cluster"], shown["role"]) == (west.name, "ACTIVE")
    assert west.json("readonly", "on")["role"] == "STANDBY"
    assert west.json("readonly", "off")["role"] == "ACTIVE"


def test_a_dropped_table_is_gone(east):
    name = f"shell.gone{uuid4().hex[:8]}"
    east.shell("createtable", name, "id long", "-k", "id")
    east.shell("droptable", name)
    assert all(spec["name"] != name for spec in east.json("listtables"))


def test_a_role_asked_by_a_signal_says_where_its_threads_are(east: Site) -> None:
    old = east.state("replay")
    said = threads_of(east.config, "replay")
    assert "replay/loop.py" in said and said.count("Thread 0x") >= 3, said
    assert east.state("replay") == old and east.ready("replay")
