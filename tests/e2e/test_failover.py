"""Switchover and failover of two clusters: what is acked is kept, or listed as lost writes, and one takes writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.client.connect import connect
from peer.drill.schedule import DrillSchedule
from peer.failover import switchover as switching
from peer.failover.role_change import RoleChange
from replication.errors import ReadOnlyClusterError
from shell.processes.launched import await_ready
from tests.e2e.acked_rows import Load, await_complete, await_rows, await_same, put, roles, rows, upsert
from tests.e2e.conftest import START_TIMEOUT_S, Site, define, start
from tests.e2e.cookbook import follow, program
from tests.waiting import wait_until

Pair = tuple[Site, Site]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """East ACTIVE, west STANDBY and sent ``ops.t`` by east; each test leaves them so."""
    folder = tmp_path_factory.mktemp("failover")
    replay = {"fold_interval_s": 5.0, "spark_idle_s": 5.0}
    standby = {"standby": True}  # as ``walship init --standby`` writes it
    hooks = {"hooks": "hooks"}  # a folder that is made below
    made = (
        start(folder / "east", "east", replay=replay, failover=hooks),
        start(
            folder / "west",
            "west",
            replay=replay,
            cluster=standby,
            master={"peer_bytes_max": 64 << 30},
            drills={"nice": 1},
        ),
    )
    with ExitStack() as stack:
        (folder / "east" / "hooks").mkdir(mode=0o755)
        for site in made:
            stack.callback(site.stop)
        await_ready(made, START_TIMEOUT_S)
        east, west = made
        define(east, west)
        assert west.json("readonly")["role"] == "STANDBY"
        assert "west is STANDBY" in west.shell("createtable", "ops.t", "id long", "-k", "id", code=5)
        east.shell("createtable", "ops.t", "id long, text string", "-k", "id")
        east.shell("enablereplication", "-t", "ops.t", "west")
        yield made


def start_again(site: Site) -> None:
    site.start()
    await_ready([site], START_TIMEOUT_S)


def test_a_switchover_under_load_loses_no_acked_row_and_back_again(pair: Pair) -> None:  # scenario 23
    east, west = pair
    for source, other, first in ((east, west, 1_000), (west, east, 100_000)):
        with source.connect() as cluster:
            load = Load(cluster, first)
            wait_until(lambda of=load: len(of.acked) > 50, timeout_s=400, what="some acked rows")
            done = source.json("switchover", other.name)
            load.join()
        assert load.refused == "ReadOnlyClusterError"
        assert done["outage_s"] is not None and done["successor"] == other.name
        of_load = f"id >= {first} and id < {first + 90_000}"
        await_rows(other, of_load, load.acked)
        put(other, first + 90_000, 5, "after")
        await_same(source, other)
        (role, epoch), (other_role, other_epoch) = roles(source, other)
        assert (role, other_role) == ("STANDBY", "ACTIVE") and epoch == other_epoch
        assert source.json("switchover", other.name)["epoch"] == epoch  # it is so already
        told = [site.json("status")["role_history"] for site in (source, other)]
        assert (told[0]["active"], told[1]["active"]) == (other.name, "") and other.name in told[0]["zookeepers"]
        assert [(each["origin"], each["planned"]) for each in told[1]["successions"]][-1] == (source.name, True)


def test_rows_that_wait_at_a_switchover_all_arrive_and_a_write_that_hangs_is_not_kept(
    pair: Pair,
) -> None:  # scenario 19
    east, west = pair
    with east.connect() as cluster, ThreadPoolExecutor(1) as threads:
        with east.frozen("worker"):  # nothing is sent
            load = Load(cluster, 400_000)
            wait_until(lambda: len(load.acked) > 50, timeout_s=400, what="some acked rows")
            done = threads.submit(east.json, "switchover", "west")
            before = len(load.acked)
            wait_until(lambda: len(load.acked) > before + 50, timeout_s=400, what="writes while west lacks rows")
            assert not rows(west, "id >= 400000") and west.json("readonly")["role"] == "STANDBY"
        assert done.result()["successor"] == "west"
        load.join()  # its last write was under way when the role changed
        with pytest.raises(ReadOnlyClusterError):
            upsert(cluster, 490_000, 1, "refused")
    assert load.refused == "ReadOnlyClusterError"
    await_rows(west, "id >= 400000 and id < 490000", load.acked)
    put(west, 495_000, 3, "reverse")
    await_rows(east, "id >= 495000 and id < 500000", [495_000, 495_001, 495_002])
    await_same(east, west)
    assert load.acked[-1] + 1 not in rows(east) and rows(east)[495_000] == "reverse495000"
    west.shell("switchover", "east")


def test_a_writer_that_follows_goes_on_at_the_successor_and_back(pair: Pair) -> None:  # scenario 23
    east, west = pair
    address = f"{east.config.zookeeper_servers}{east.config.zookeeper_root}"
    with connect(address, follow=True) as handle:
        load = Load(handle, 300_000)
        for source, other in ((east, west), (west, east)):
            before = len(load.acked)
            wait_until(lambda b=before: len(load.acked) > b + 20, timeout_s=400, what=f"acks of {source.name}")
            source.shell("switchover", other.name)
            wait_until(lambda o=other: handle.name == o.name, what=f"the writer at {other.name}")
        before = len(load.acked)
        wait_until(lambda: len(load.acked) > before + 20, timeout_s=400, what="acks at east again")
        load.stop()
        assert load.refused == ""
        assert {
            row["id"] for row in handle.read("ops.t", "id >= 300000 and id < 400000", ["id"]).read_all().to_pylist()
        } <= set(load.acked)
    with connect([west.file, east.file], follow=True) as handle:
        assert handle.name == "east"
    await_rows(west, "id >= 300000 and id < 400000", load.acked)
    await_same(east, west)


def test_a_plan_says_what_would_be_done_and_changes_nothing(pair: Pair) -> None:  # scenario 30
    east, west = pair
    before = roles(east, west)
    plan = east.plan("switchover", "west")
    assert len(plan["steps"]) == 4 and plan["refusals"] == []
    assert west.plan("failover", "west", codes=(4,))["refusals"]
    east.shell("createtable", "ops.alone", "id long", "-k", "id")
    refused = east.shell("switchover", "west", code=4)
    assert "ops.alone would not be at west" in refused and "enablereplication" in refused
    east.shell("droptable", "ops.alone")
    assert roles(east, west) == before


def kept(site: Site) -> int:
    """How many rows a site keeps as lost writes."""
    return sum(each["rows"] for each in site.json("lostwrites", "list") if each["state"] == "kept")


def fail_back(east: Site, west: Site, text: str) -> None:
    back = west.json("failback", "east")
    assert back["successor"] == "east" and back["bootstraps"] == []
    assert [role for role, _ in roles(east, west)] == ["ACTIVE", "STANDBY"]
    put(east, 20, 1, text)
    await_same(east, west)


@pytest.mark.parametrize("decision", ["merge", pytest.param("discard", marks=pytest.mark.slow)])
def test_a_failover_keeps_what_came_too_late_and_both_clusters_agree_after_a_decision(
    pair: Pair, decision: str
) -> None:  # scenarios 24 and 25
    east, west = pair
    at = {"merge": 0, "discard": 500}[decision]
    is_applied = decision == "discard"  # at east, which otherwise keeps the rows as lost writes, too
    with east.connect() as writer:  # one WAL, so that its landing file is still there
        upsert(writer, at, 10, "before")
        await_same(east, west)
        opens_at = await_complete(west, east)
        upsert(writer, at + 3, 3, "landed")  # one of them in place of a row that is beyond the cut, too
        await_same(east, west)
        await_complete(west, east)
        with west.frozen("receiver") if is_applied else east.frozen("worker"):
            upsert(writer, at + 5, 10, decision)  # acked; five of them replace rows that west has
            if is_applied:
                wait_until(
                    lambda: rows(east).get(at + 14) == f"{decision}{at + 14}", timeout_s=400, what="them at east"
                )
            east.kill_all()  # what the frozen receiver has in its buffers lands beyond the cut
            plan = west.plan("failover", "west", "--at", str(opens_at))
            assert plan["origin"] == "east" and plan["refusals"] == [] and plan["loss"]["seconds"] != 0
            assert [(table["table"], table["rows"]) for table in plan["loss"]["tables"]] == [("ops.t", 3)]
            done = west.json("failover", "west", "--yes", "--at", str(opens_at))
    assert rows(west)[at + 3] == f"before{at + 3}"  # taken back
    assert done["seconds"] < 30 and roles(west)[0] == ("ACTIVE", done["epoch"])
    put(west, at + 7, 1, "newer")
    start_again(east)
    assert roles(east) == [("STANDBY", done["epoch"])]
    with east.connect() as cluster, pytest.raises(ReadOnlyClusterError):
        cluster.upsert("ops.t", [{"id": 1, "text": "refused"}])
    keeping = [west] if is_applied else [west, east]
    wait_until(
        lambda: [kept(site) for site in keeping] == [13, 10][: len(keeping)], timeout_s=400, what="the lost writes"
    )
    assert {row["text"] for row in west.json("lostwrites", "show", "ops.t")} >= {f"{decision}{at + 14}"}
    assert rows(west)[at + 5] == f"before{at + 5}" and at + 14 not in rows(west)
    refusals = west.plan("failback", "east", codes=(4,))["refusals"]
    assert len(refusals) == 1 and "nobody has decided" in refusals[0]
    for site in keeping:
        site.shell("lostwrites", decision, *(["--yes"] if decision == "discard" else []))
    expected = ["before", "before", None] if decision == "discard" else ["landed", "merge", "merge"]
    texts = [text and f"{text}{at + n}" for n, text in zip((3, 5, 14), expected, strict=True)]
    decided = lambda: [rows(west).get(at + n) for n in (3, 5, 14)] == texts  # noqa: E731
    wait_until(decided, timeout_s=400, what="the decision's rows")
    await_same(east, west)
    assert rows(west)[at + 7] == f"newer{at + 7}"
    assert kept(west) == kept(east) == 0
    fail_back(east, west, f"back {decision}")


@pytest.mark.parametrize(("step", "undo"), [("no more writes", False), ("takes writes", True), ("takes writes", False)])
def test_a_switchover_that_was_interrupted_is_finished_or_undone(pair: Pair, step: str, undo: bool) -> None:
    class Killed(BaseException):  # scenario 27
        pass

    east, west = pair

    def die_at(text: str) -> None:
        if step in text:
            raise Killed

    with east.connect() as cluster:
        before = cluster.coordination.role().state
        with pytest.raises(Killed):
            switching.switchover(RoleChange(cluster, die_at), "west")
        assert west.json("readonly")["role"] == "STANDBY"
        if undo:
            state = switching.cancel(RoleChange(cluster))
            assert state.epoch > before.epoch
            put(east, 30, 1, "undone")
        done = switching.switchover(RoleChange(cluster), "west")
        assert done.successor == "west"
    assert [role for role, _ in roles(east, west)] == ["STANDBY", "ACTIVE"]
    west.shell("switchover", "east")
    await_same(east, west)


def test_a_failover_is_refused_while_the_other_cluster_answers(pair: Pair) -> None:
    east, west = pair
    refused = west.shell("failover", "west", "--yes", code=4)
    assert "east answers and is ACTIVE" in refused and "walship switchover west" in refused
    assert "this is east" in east.shell("failover", "west", "--yes", code=4)
    assert [role for role, _ in roles(east, west)] == ["ACTIVE", "STANDBY"]


def drill_probes(folder: Path) -> tuple[Path, Path, Path]:
    """Probes that pass, as SQL and as a program, and one that never ends."""
    sql, script, slow = folder / "check.sql", folder / "check.py", folder / "slow.sh"
    sql.write_text(
        "-- the rows are there\nselect count(*) = 100, min(text) = 'drilled200000' from ops.t where id >= 200000"
        " and id < 200100;\nupdate ops.t set text = 'changed' where id = 200000;\n"
        "delete from ops.t where id = 200001;\n"
        "select count(*) = 99 from ops.t where id between 200000 and 200099;\n"
    )
    script.write_text(
        "import os, subprocess, walship\n"
        "assert os.nice(0) >= 1\n"
        "with walship.drill() as fork:\n"
        "    assert fork.read('ops.t', 'id = 200000').read_all()['text'].to_pylist() == ['changed']\n"
        "    fork.upsert('ops.t', {'id': 200001, 'text': 'again'})\n"
        "found = subprocess.run(['walship', 'sql', 'select text from ops.t where id = 200001'], capture_output=True)\n"
        "print(found.stdout.decode(), found.stderr.decode())\n"
        "assert b'again' in found.stdout\n"
    )
    slow.write_text("sleep 600\n")
    return sql, script, slow


def test_a_drill_rehearses_a_failover_while_rows_keep_arriving(pair: Pair, tmp_path: Path) -> None:  # scenario 28
    east, west = pair
    put(east, 200_000, 100, "drilled")
    await_same(east, west)
    await_complete(west, east)  # the fork is of a time after them
    await_complete(west, west)
    sql, script, slow = drill_probes(tmp_path)
    with east.connect() as cluster:
        load = Load(cluster, 210_000)
        try:
            rounds = west.json("status")["replay"]["rounds"]
            report = west.json("drill", "west", "--probe", str(sql), "--probe", str(script))
        finally:
            east.shell("readonly", "on")
            load.join()
            east.shell("readonly", "off")
    assert report["problems"] == [] and report["drill"]["passed"], report
    assert [probe["passed"] for probe in report["probes"]] == [True, True]
    assert report["tables"] == ["ops.t"] and 0 <= report["drill"]["rpo_s"] < 60 and report["drill"]["rto_s"] > 0
    assert west.json("status")["replay"]["rounds"] > rounds, "replay went on"
    await_rows(west, "id >= 210000 and id < 300000", load.acked)
    found = rows(west, "id >= 200000 and id < 200100")
    assert (found[200_000], found[200_001]) == ("drilled200000", "drilled200001"), "the fork's writes are gone"
    missed = DrillSchedule("@daily", "west", (str(sql),), True, str(west.file.parent.parent), 1)
    missed.save(west.config.drills_dir)  # walship up begins it, and plans the switchover beside it
    ended = lambda: [each for each in west.json("drill", "west", "--history") if each["by"] == "schedule"]  # noqa: E731
    wait_until(lambda: [each["result"] for each in ended()] == ["passed"], timeout_s=400, what="the scheduled drill")
    full = json.loads(Path(ended()[0]["report"]).with_suffix(".json").read_text())
    assert len(full["switchover"]["steps"]) == 4 and full["failover"]["origin"] == "east"
    west.shell("drill", "west", "--schedule", "off")
    assert "last good drill" in west.shell("status")
    assert (east.plan("switchover", "west")["warning"], west.json("status")["drills"]["failure"]) == ("", "")
    assert "stopped after 1 s" in west.shell("drill", "west", "--probe", str(slow), "--probe-timeout-s", "1", code=1)
    newest, older = west.json("drill", "west", "--history")[:2]
    assert (newest["result"], older["result"]) == ("did not pass", "passed") and "stopped after 1 s" in newest["why"]
    for plan in (east.plan("switchover", "west"), west.plan("failover", "west", "--force")):
        assert "the last drill of west did not pass" in plan["warning"]


def nothing(_: Site) -> None:
    raise AssertionError("the page starts no cluster")


def test_the_page_on_switchover_does_what_it_says_and_its_hook_runs(pair: Pair) -> None:
    east, west = pair
    hook = east.file.parent / "hooks" / "10-dns"
    hook.write_text(program("switchover", "bash"))
    hook.chmod(0o755)
    put(east, 40, 3, "page")
    await_same(east, west)
    plan, done, status, *_ = follow("switchover", pair, "ops.t", nothing)
    assert "No acked row would be lost" in plan and "10-dns" in plan
    assert "west is ACTIVE" in done and "west took over from east" in status and "(switchover, epoch" in status
    log = (hook.parent / "changes.log").read_text().splitlines()
    hook.unlink()
    assert log == ["pause jobs that write to east", "point db.example.com at west"]
    assert [role for role, _ in roles(east, west)] == ["ACTIVE", "STANDBY"]


def test_the_page_on_drills_does_what_it_says(pair: Pair) -> None:
    east, west = pair
    put(east, 45, 3, "page")
    await_complete(west, east)
    probe = west.file.parent / "probes" / "rows.sql"
    probe.parent.mkdir()
    probe.write_text(program("drill", "sql").replace("ops.airports", "ops.t"))
    done, history, scheduled, ended, plan = follow("drill", pair, "ops.t", nothing)
    assert "passed" in done and "passed" in history and "no drill" not in plan and "good drill was" not in plan
    assert "0 3 * * *" in scheduled and "0 3 * * *" not in ended
    assert {n: rows(west)[n] for n in (45, 47)} == {45: "page45", 47: "page47"}, (
        "the probe deleted them on the fork only"
    )


def test_the_pages_on_failover_and_the_return_of_the_old_site_do_what_they_say(pair: Pair) -> None:
    east, west = pair
    put(east, 50, 3, "before")
    await_same(east, west)
    with east.frozen("worker"):
        put(east, 53, 3, "late")
        east.kill_all()
    _, plan, done, _ = follow("failover", pair, "ops.t", nothing)
    assert "east is refused with role epochs below" in plan and "west is ACTIVE" in done

    def lost() -> set[str]:
        listed = west.json("lostwrites", "list")
        return {row["text"] for row in west.json("lostwrites", "show", "ops.t")} if listed else set()

    def before(words: str) -> None:
        if words.endswith("lostwrites list"):
            wait_until(lambda: lost() >= {f"late{n}" for n in (53, 54, 55)}, timeout_s=400, what="the lost writes")
        if " verify " in f" {words} ":
            await_same(east, west)

    printed = follow("return-of-the-old-site", pair, "ops.t", start_again, before)
    assert "east is STANDBY" in printed[0] and "late53" in printed[2] and "rows in " in printed[3]
    assert {n: rows(east)[n] for n in (50, 53, 55)} == {50: "before50", 53: "late53", 55: "late55"}
    assert [role for role, _ in roles(east, west)] == ["ACTIVE", "STANDBY"]


@pytest.mark.parametrize("page", ["peer-down", "disk-filling"])
def test_the_pages_on_peers_and_disks_do_what_they_say(pair: Pair, page: str) -> None:
    east, west = pair
    with west.frozen("receiver"):
        put(east, 60, 3, page)
    printed = follow(page, pair, "ops.t", nothing)
    assert ("west" in printed[0]) if page == "peer-down" else ("disk use: WAL" in printed[0])
    await_same(east, west)


def test_a_failover_during_the_first_bootstrap_of_a_table_is_refused(pair: Pair) -> None:  # scenario 29
    east, west = pair
    east.shell("createtable", "ops.whole", "id long", "-k", "id")
    with east.connect() as cluster:
        cluster.upsert("ops.whole", [{"id": 1}])
    before = roles(east, west)
    with east.frozen("replay"):  # which writes the bootstrap
        east.shell("enablereplication", "-t", "ops.whole", "--bootstrap", "west")
        refused = lambda: west.plan("failover", "west", "--force", codes=(0, 4))["refusals"]  # noqa: E731
        said = "the bootstrap of ops.whole from east is not complete"
        wait_until(lambda: any(said in each for each in refused()), timeout_s=400, what="the refusal")
        assert said in west.shell("failover", "west", "--yes", "--force", code=4)
    assert roles(east, west) == before
    wait_until(lambda: not any(said in each for each in refused()), timeout_s=400, what="the bootstrap")
