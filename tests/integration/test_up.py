"""``walship up`` as a process: readiness, restarts, one at a time, and never an orphan. Without Spark."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from peer.client.connect import connect
from replication import config as configuration
from replication.errors import ConfigError, CoordinationError, LockedFileError, NoWorkerError
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
ROLES = "zookeeper,master,worker,receiver"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Up:
    """One ``walship up`` process and what it said."""

    def __init__(self, file, *options):
        command = [sys.executable, "-m", "shell.main", "up", "--config", str(file), "--json", *options]
        self.config = configuration.load(file)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        self.said = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def events(self, event, role=None):
        return [e for e in list(self.said) if e["event"] == event and role in (None, e.get("role"))]

    def ready(self):
        wait_until(lambda: self.events("ready") and "seconds" in self.events("ready")[-1], what="ready", timeout_s=120)

    def pids(self):
        states = [json.loads((self.config.run_dir / f"{role}.json").read_text()) for role in ROLES.split(",")]
        java = int((self.config.zookeeper_dir / "pid").read_text())
        return {state["role"]: state["pid"] for state in states} | {"java": java}

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(120)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "walship.toml"
    path.write_text(configuration.default_toml("east", ".", zookeeper={"port": free_port()}))
    return path


@pytest.fixture
def start(file):
    started = []

    def start(*options, config=file):
        started.append(Up(config, *options))
        return started[-1]

    yield start
    for up in started:
        up.end()


def test_roles_start_are_restarted_when_killed_and_stop_together(start):
    up = start("--roles", ROLES)
    up.ready()
    before = up.pids()
    assert all(alive(pid) for pid in before.values())
    for role in ("worker", "zookeeper"):
        os.kill(before[role], signal.SIGKILL)
    for role in ("worker", "zookeeper"):
        wait_until(lambda role=role: len(up.events("ready", role)) == 2, what=f"{role} ready again", timeout_s=120)
        assert "SIGKILL" in up.events("ended", role)[0]["detail"]
    after = up.pids()
    assert after["master"] == before["master"]
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(120) == 0
    assert not [name for name, pid in {**before, **after}.items() if alive(pid)]


def test_nothing_is_left_when_the_supervisor_is_killed(start):
    up = start("--roles", ROLES)
    up.ready()
    pids = up.pids()
    up.process.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids.values()), what="all processes gone", timeout_s=120)


@pytest.mark.linux
def test_nothing_is_left_when_the_supervisor_and_zookeepers_role_are_killed_at_once(start):
    if sys.platform != "linux":
        pytest.skip("only Linux's kernel kills a process with its parent")
    up = start("--roles", ROLES)
    up.ready()
    pids = up.pids()
    for pid in (up.process.pid, pids["zookeeper"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids.values()), what="all processes gone", timeout_s=120)


def test_connecting_for_writing_wants_a_worker_on_this_host(start, file):
    up = start("--roles", "zookeeper,master")
    up.ready()
    address = f"{up.config.zookeeper_servers}{up.config.zookeeper_root}"
    for target in (file, address):
        with pytest.raises(NoWorkerError, match=r"no worker is alive on host h0.*walship up.*for_writing=False"):
            connect(target)
        with connect(target, for_writing=False) as cluster:
            cluster.create_table("ops.t", "id long", ["id"]) if target is file else None
            assert [spec.name for spec in cluster.tables()] == ["ops.t"]
            with pytest.raises(NoWorkerError, match="walship up"):
                cluster.upsert("ops.t", [{"id": 1}])
    up.end()
    with pytest.raises(CoordinationError, match=r"Start the cluster: walship up.*To read only: .*for_writing=False"):
        connect(file)
    connect(file, for_writing=False).close()


def test_a_cluster_named_by_its_zookeeper_has_the_configuration_it_was_started_with(start, tmp_path):
    elsewhere = tmp_path / "etc" / "east.toml"
    elsewhere.parent.mkdir()
    sections = {"zookeeper": {"port": free_port()}, "writer": {"buffer_bytes_max": 12345678}}
    elsewhere.write_text(configuration.default_toml("east", tmp_path / "data", **sections))
    up = start("--roles", "zookeeper,master", config=elsewhere)
    up.ready()
    address = f"{up.config.zookeeper_servers}{up.config.zookeeper_root}"
    with connect(address, for_writing=False) as cluster:
        assert cluster.config.writer.buffer_bytes_max == 12345678


def test_a_second_up_on_the_same_directory_is_refused_and_the_first_goes_on(start, file):
    up = start("--roles", ROLES)
    up.ready()
    second = start("--roles", ROLES)
    assert second.process.wait(120) == LockedFileError.exit_code
    assert f"process {up.process.pid}" in second.process.stderr.read()
    assert up.process.poll() is None


def test_a_port_in_use_is_one_clear_line_and_nothing_is_left_running(start, file):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", configuration.load(file).zookeeper.port))
        taken.listen()
        up = start("--roles", ROLES)
        assert up.process.wait(120) == ConfigError.exit_code
    told = json.loads(up.process.stderr.read())
    assert "cannot listen on" in told["error"] and "[zookeeper] port" in told["hint"]
    assert not any(alive(event["pid"]) for event in up.events("started"))


def walship(*arguments, code=0):
    command = [sys.executable, "-m", "shell.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stderr if code else done.stdout)


def test_init_writes_what_up_runs_and_down_stops(tmp_path):
    port = free_port()
    made = walship("init", str(tmp_path / "south"), "--port", str(port))
    assert made["cluster"] == "south" and configuration.load(made["file"]).zookeeper.port == port
    assert "exists already" in walship("init", str(tmp_path / "south"), code=4)["error"]
    assert walship("down", "--config", made["file"]) == {"stopped": False}
    up = Up(made["file"], "--roles", ROLES)
    try:
        up.ready()
        pids = up.pids()
        os.kill(up.process.pid, signal.SIGSTOP)  # frozen, it stops all the same
        assert walship("down", "--config", made["file"]) == {"stopped": True, "pid": up.process.pid}
        assert up.process.wait(120) == 0
        assert not [name for name, pid in pids.items() if alive(pid)]
    finally:
        up.end()


def test_detached_up_returns_when_all_are_ready_which_run_on_until_down(file):
    up = ("up", "--detach", "--roles", ROLES, "--config", str(file))
    told = walship(*up)
    try:
        assert told["cluster"] == "east" and alive(told["pid"])
        run_dir = configuration.load(file).run_dir
        states = [json.loads((run_dir / f"{role}.json").read_text()) for role in ROLES.split(",")]
        assert all(state["state"] == "ready" and alive(state["pid"]) for state in states)
        wait_until(lambda: "ready after" in Path(told["output"]).read_text(), what="the supervisor's own line")
        again = walship(*up, code=LockedFileError.exit_code)
        assert f"process {told['pid']}" in again["error"] and alive(told["pid"])
    finally:
        stopped = walship("down", "--config", str(file))
    assert stopped == {"stopped": True, "pid": told["pid"]}
    assert not any(alive(state["pid"]) for state in states)


def test_detached_up_says_why_it_did_not_stay_up_and_leaves_nothing(file):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", configuration.load(file).zookeeper.port))
        taken.listen()
        told = walship("up", "--detach", "--roles", ROLES, "--config", str(file), code=ConfigError.exit_code)
    assert "did not stay up" in told["error"] and "cannot listen on" in told["error"]
    assert "[zookeeper] port" in told["hint"]
    assert walship("down", "--config", str(file)) == {"stopped": False}


def test_a_secret_of_the_configuration_is_nowhere_in_what_a_run_writes(start, file, tmp_path):
    canary = "canary-5a1e77"
    secrets = {
        "zookeeper": {"port": free_port()},
        "catalog": {"pyiceberg": {"s3.secret-access-key": canary}, "spark": {"password": canary}},
        "replay": {"spark": {"spark.hadoop.fs.s3a.secret.key": canary}},
        "log": {"level": "debug"},
    }
    file.write_text(configuration.default_toml("east", "data", **secrets))
    file.chmod(0o600)
    assert configuration.load(file).catalog.spark["password"] == canary
    up = start("--roles", ROLES)
    up.ready()
    said = []
    for asked in (
        ("status",),
        ("status", "--json"),
        ("describetable", "ops.none", "--debug"),
        ("import", "-t", "ops.none", f"ftp://u:{canary}@127.0.0.1:1/rows.csv"),
        ("grants", "list", "--json"),
        ("sql", "select 1"),
    ):
        command = [sys.executable, "-m", "shell.main", *asked, "--cluster", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
        said.append(done.stdout + done.stderr)
    up.process.terminate()
    _, err = up.process.communicate(timeout=60)
    said += [json.dumps(up.said), err or ""]
    assert "east" in said[0] and not [text for text in said if canary in text]
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert any(path.name == "worker.log" for path in written)
    assert not [path for path in written if canary.encode() in path.read_bytes()]
