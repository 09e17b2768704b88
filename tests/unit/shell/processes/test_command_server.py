"""Verbs that the cluster's supervisor answers: as this process would have run them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from replication import config
from replication.core.definition.define import cell_table
from replication.core.ids import ClusterId
from replication.ledger.sql.ledger import initialise, open_ledger
from shell.cli.forwarded import CAN_ASK
from tests.hostile import NOBODY, run_as_nobody
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not CAN_ASK, reason="supervisors answer on Linux only"),
]

_SUPERVISOR = """
import os, sys, time
from pathlib import Path
from shell.main import run
from shell.processes.command_server import CommandServer
from shell.processes.wakes import Wakes
def waits(words):
    try:
        print(os.getpid(), flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
def early(words):
    raise KeyboardInterrupt
def loads_what_has_changed():
    raise ImportError("of another version")
def hangs(words):
    import signal
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    waits(words)
with Wakes(None) as wakes, CommandServer({run}, {load}, Path(sys.argv[1]), wakes):
    print("listens", flush=True)
    while not wakes.wait(60):
        pass
"""
_CLIENT = "import sys; from shell.cli.forwarded import forward; {before}; print('code', forward(sys.argv[1:]))"
_ALONE = "import sys; from shell.main import run; print('code', run(sys.argv[1:]))"


def made_home(folder: Path) -> Path:
    """A cluster with one table, in a folder whose path is longer than a socket's address can be."""
    folder = folder / ("long" * 30) / "east"
    folder.mkdir(parents=True)
    file = folder / "walship.toml"
    file.write_text(config.default_toml("east"))
    loaded = config.load(file)
    loaded.run_dir.mkdir()
    initialise(loaded.ledger_url, ClusterId("east", uuid4()))
    ledger = open_ledger(loaded.ledger_url)
    ledger.tables.create(cell_table("ops.flights", uuids=iter(uuid4, None)))
    ledger.close()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return made_home(tmp_path)


@contextmanager
def supervisor(home: Path, run: str, load: str = "lambda: None") -> Iterator[subprocess.Popen[str]]:
    """One that answers by a function."""
    script = _SUPERVISOR.replace("{run}", run).replace("{load}", load)
    process = subprocess.Popen([sys.executable, "-c", script, str(home / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts a supervisor that answers by a function."""
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(supervisor(home, *given))


@dataclass(frozen=True)
class Answered:
    """A cluster whose supervisor answers verbs."""

    home: Path
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answered]:
    """For tests that change neither the cluster nor the supervisor."""
    home = made_home(tmp_path_factory.mktemp("answered"))
    with supervisor(home, "run") as process:
        yield Answered(home, process)


def client(words: Sequence[str], folder: Path, before: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CLIENT.replace("{before}", before), *words]
    return _ran(command, folder)


def alone(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return _ran([sys.executable, "-c", _ALONE, *words], folder)


def _ran(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=60, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["listtables"],
        ["--cluster", "east/walship.toml", "listtables", "--json"],
        ["listclusters", "--cluster=east"],
        ["describetable", "ops.flights"],
        ["describetable", "nowhere"],
        ["listtables", "--unknown"],
    ],
)
def test_a_command_is_answered_as_its_own_process_would(answered: Answered, words: list[str]) -> None:
    folder = answered.home.parent
    found, expected = client(words, folder), alone(words, folder)
    assert "code None" not in found.stdout, found.stderr
    assert (found.stdout, found.stderr) == (expected.stdout, expected.stderr)


def test_forks_that_have_answered_leave_nothing_behind(answered: Answered) -> None:
    pid = answered.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(3):
        assert "code 0" in client(["listtables"], answered.home).stdout
    wait_until(lambda: not children.read_text().split(), what="the supervisor to reap its forks")


def test_the_environment_of_the_command_counts(start: Start, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start("lambda words: print(os.environ['OWN'], os.getcwd(), os.environ.get('OTHERS')) or 0")
    monkeypatch.setenv("OWN", "x")
    monkeypatch.delenv("HOME", raising=False)
    assert client(["listtables"], home).stdout.splitlines() == [f"x {home} None", "code 0"]


@pytest.mark.parametrize(
    ("words", "before"),
    [
        (["read", "ops.flights"], "0"),  # not one of the verbs
        (["--debug", "listtables"], "0"),
        (["listtables", "--help"], "0"),
        ([], "0"),
        (["listtables", "--cluster", "nowhere"], "0"),
        (["listtables"], "import shell.cli.forwarded as a; a.program = lambda: ['another version']"),
        (["listtables"], "import os; os.geteuid = lambda: 12345"),  # the supervisor is another user's
    ],
)
def test_what_the_supervisor_may_not_answer_runs_here(answered: Answered, words: list[str], before: str) -> None:
    assert client(words, answered.home, before).stdout == "code None\n"


_OTHER = f"""
import os, socket, sys
from shell.cli.forwarded import ForwardedCommand, program
folder = os.open(sys.argv[1], os.O_RDONLY)
asked = ForwardedCommand(["listtables"], "/", {{}}, "utf-8", program()).pack()
os.setuid({NOBODY})
with socket.socket(socket.AF_UNIX) as server:
    server.settimeout(30)
    server.connect(f"/proc/self/fd/{{folder}}/commands")
    try:
        server.sendall(asked)
        print("answer", server.recv(1))
    except ConnectionError:
        print("answer", b"")
"""


def test_another_user_who_can_reach_the_socket_is_not_answered(start: Start, home: Path) -> None:
    start("run")
    (home / "run" / "commands").chmod(0o777)
    assert run_as_nobody(_OTHER, str(home / "run")) == "answer b''\n"
    assert "code 0" in client(["listtables"], home).stdout


def test_without_a_supervisor_a_command_runs_here(home: Path) -> None:
    assert client(["listtables"], home).stdout == "code None\n"


def test_a_supervisor_whose_code_was_replaced_goes_on(start: Start, home: Path) -> None:
    start("run", "loads_what_has_changed")
    for _ in range(2):
        assert "code 0" in client(["listtables"], home).stdout


def test_a_supervisor_with_too_many_files_open_goes_on(start: Start, home: Path) -> None:
    process = start("run")
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    opened = len(os.listdir(f"/proc/{process.pid}/fd"))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (opened + 1, limits[1]))
    assert client(["listtables"], home).stdout == "code None\n"
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
    assert "code 0" in client(["listtables"], home).stdout


def test_a_supervisor_that_hangs_holds_up_no_command(start: Start, home: Path) -> None:
    process = start("run")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        assert client(["listtables"], home).stdout == "code None\n"
    finally:
        os.kill(process.pid, signal.SIGCONT)


def has_ended(pid: int) -> bool:
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("run", "number", "end"),
    [
        ("waits", signal.SIGINT, "interrupted\ncode 130\n"),
        ("hangs", signal.SIGINT, "code 130\n"),  # and leaves without a word, as after its grace
        ("waits", signal.SIGKILL, ""),
    ],
)
def test_a_command_ends_with_its_client(start: Start, home: Path, run: str, number: int, end: str) -> None:
    start(run)
    command = [sys.executable, "-c", _CLIENT.replace("{before}", "0"), "status", "--watch"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home, env=env) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        said = process.stdout.read()
    assert said == end
    wait_until(lambda: has_ended(pid))


def test_ctrl_c_before_a_command_looks_for_it_ends_it_without_a_traceback(start: Start, home: Path) -> None:
    start("early")
    done = client(["status"], home)
    assert (done.stdout, done.stderr) == ("code 130\n", "")


def test_what_a_command_prints_is_json_in_a_pipe_too(answered: Answered) -> None:
    lines = client(["listtables", "--json"], answered.home).stdout.splitlines()
    assert json.loads(lines[0])[0]["name"] == "ops.flights" and lines[1] == "code 0"
