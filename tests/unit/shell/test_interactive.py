"""The interactive shell: lines, completion, and which cluster they are for."""

import io
import json
import os
import pwd
import signal
import stat
import threading
from functools import partial

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, Completer
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import DummyOutput

from replication.errors import ConfigError
from shell import main
from shell.cli.find import FoundCluster
from shell.cli.render import Printer
from shell.interactive import Shell, VerbCompleter, _from_lines, _history, interact
from shell.main import make_app


class Recorder:
    """Stands for the command line."""

    def __init__(self, code=0):
        self.lines = []
        self.code = code

    def __call__(self, arguments):
        self.lines.append(list(arguments))
        return self.code


NAMES = {"TABLE": ["ops.flights", "ops.weather"], "CLUSTER": ["west", "north"]}


@pytest.fixture(scope="module")
def app():
    return make_app()


def shell_of(app, run, found=None):
    return Shell(run, app, found or FoundCluster("east", "/x/east.toml"), Printer(False))


def complete(app, text):
    completer = VerbCompleter(app, lambda: NAMES, lambda: ["east", "west"])
    return [c.text for c in completer.get_completions(Document(text, len(text)), CompleteEvent())]


def test_a_line_is_a_command_line_for_the_cluster_in_use(app):
    run = Recorder()
    shell_of(app, run).execute("read ops.flights --where \"carrier = 'UA'\" -n 3")
    assert run.lines == [["--cluster", "/x/east.toml", "read", "ops.flights", "--where", "carrier = 'UA'", "-n", "3"]]


def test_a_shell_starts_no_other_that_would_have_to_be_left_too(app, capsys):
    run = Recorder()
    assert shell_of(app, run).execute("walship shell") == 0
    assert run.lines == [] and "already" in capsys.readouterr().err


def test_every_line_has_the_flags_of_the_shell(app):
    run = Recorder()
    shell = Shell(run, app, FoundCluster("east", "/x/east.toml"), Printer(True), ["--json", "--debug"])
    assert shell.execute("listtables") == shell.execute("select 1") == 0
    assert run.lines == [
        ["--cluster", "/x/east.toml", "--json", "--debug", *w] for w in (["listtables"], ["sql", "select 1"])
    ]


@pytest.mark.parametrize("flag", ["--json", "--debug"])
def test_flags_before_and_after_the_verb_shell_are_for_its_lines(flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WALSHIP_CLUSTER", raising=False)
    for words in ([flag, "shell"], ["shell", flag]):
        monkeypatch.setattr("sys.stdin", io.StringIO("listtables\nlistclusters\n"))
        assert main.run(words) == ConfigError.exit_code
        told = capsys.readouterr().err
        if flag == "--json":
            assert [json.loads(line)["exit_code"] for line in told.splitlines()] == [ConfigError.exit_code] * 2
        else:
            assert told.count("Traceback") == 2, "and the session goes on"


def test_a_query_needs_no_verb(app):
    run = Recorder()
    shell_of(app, run).execute("select count(*) from ops.flights where carrier = 'UA';")
    assert run.lines[0][2:] == ["sql", "select count(*) from ops.flights where carrier = 'UA'"]


@pytest.mark.parametrize("line", ["", "   ", "# a remark"])
def test_empty_lines_do_nothing(app, line):
    run = Recorder()
    assert shell_of(app, run).execute(line) == 0
    assert run.lines == []


def test_a_remark_may_follow_a_line_as_in_the_readme(app):
    run = Recorder()
    shell_of(app, run).execute("walship status       # lag in bytes, what is retained and why: it's all here")
    shell_of(app, run).execute("read 'ops.#1' --where \"a = '#'\" -o a#b")
    assert [words[2:] for words in run.lines] == [
        ["status"],
        ["read", "ops.#1", "--where", "a = '#'", "-o", "a#b"],
    ]


PASTED = """walship throttle west 10MB      # at most
# it's slow
pause \\
  west
sql "select 1
from t"
exit
status"""


def test_each_pasted_line_is_one_of_its_own(app, monkeypatch):
    run = Recorder()
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("shell.interactive._history", InMemoryHistory)
    with create_pipe_input() as typed, create_app_session(input=typed, output=DummyOutput()):
        typed.send_text("\x1b[200~select 1\n  from t\x1b[201~\r")
        typed.send_text(f"\x1b[200~{PASTED}\x1b[201~\r")
        assert interact(shell_of(app, run), Printer(False)) == 0
    assert [words[2:] for words in run.lines] == [
        ["sql", "select 1\n  from t"],
        ["throttle", "west", "10MB"],
        ["pause", "west"],
        ["sql", "select 1\nfrom t"],
    ]


def test_keys_are_taken_while_the_names_of_tables_are_waited_for(app, monkeypatch):
    """Of a ledger that does not answer."""
    asked, typed_on, answered = threading.Event(), threading.Event(), []

    class Waiting(Completer):
        def get_completions(self, document, complete_event):
            asked.set()
            answered.append(typed_on.wait(10))
            return iter(())

    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("shell.interactive._history", InMemoryHistory)
    monkeypatch.setattr(Shell, "completer", lambda _: Waiting())
    keys = KeyBindings()
    keys.add("c-x")(lambda _: typed_on.set())
    monkeypatch.setattr("shell.interactive.PromptSession", partial(PromptSession, key_bindings=keys))
    with create_pipe_input() as typed, create_app_session(input=typed, output=DummyOutput()):
        typed.send_text("exi")

        def type_on():
            asked.wait(10)
            typed.send_text("\x18t\r")

        typing = threading.Thread(target=type_on)
        typing.start()
        assert interact(shell_of(app, Recorder()), Printer(False)) == 0
        typing.join()
    assert answered[0]


@pytest.mark.parametrize("line", ["exit", "quit", " EXIT ", "exit;"])
def test_leaving(app, line):
    assert shell_of(app, Recorder()).execute(line) is None


def test_an_open_quote_is_said_and_runs_nothing(app):
    run = Recorder()
    assert shell_of(app, run).execute("read 'ops.flights") == 2
    assert run.lines == []


def test_use_changes_the_cluster_and_the_prompt(app, tmp_path, monkeypatch):
    (tmp_path / "west.toml").write_text('[cluster]\nname = "west"\n')
    monkeypatch.chdir(tmp_path)
    run = Recorder()
    shell = shell_of(app, run)
    assert shell.prompt == "walship east> "
    assert shell.execute("use west") == 0
    assert shell.prompt == "walship west> "
    shell.execute("listtables")
    assert run.lines[0][1].endswith("west.toml")
    assert shell.execute("use north") != 0
    assert shell.prompt == "walship west> "


def test_lines_on_standard_input_run_to_the_end_and_the_last_failure_is_the_exit_code(app):
    run = Recorder(code=4)
    assert _from_lines(shell_of(app, run), io.StringIO("listtables\nlistclusters\nexit\nstatus\n")) == 4
    assert [line[2] for line in run.lines] == ["listtables", "listclusters"]


def test_verbs_complete(app):
    assert complete(app, "enable") == ["enablereplication"]
    assert "listtables" in complete(app, "list") and "listclusters" in complete(app, "list")
    assert {"dump", "list", "verify"} <= set(complete(app, "wal "))


def test_tables_peers_options_and_clusters_complete(app):
    assert complete(app, "read ops.f") == ["ops.flights"]
    assert complete(app, "enablereplication -t ") == ["ops.flights", "ops.weather"]
    assert complete(app, "enablereplication -t ops.flights ") == ["north", "west"]
    assert complete(app, "enablereplication --rem") == ["--remote-table"]
    assert complete(app, "select * from ops.w") == ["ops.weather"]
    assert complete(app, "use e") == ["east"]
    assert complete(app, "readonly o") == ["off", "on"]
    assert complete(app, "deletecluster w") == complete(app, "status --peer w") == ["west"]
    assert complete(app, "wal verify --j") == ["--json"] and complete(app, "nothing ") == []


def test_what_was_typed_is_remembered_in_a_file_that_only_its_owner_can_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0o022)
    try:
        _history().append_string("read ops.flights")
    finally:
        os.umask(before)
    file = tmp_path / "state" / "walship" / "history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = _history()
    assert isinstance(again, FileHistory) and list(again.load_history_strings()) == ["read ops.flights"]


def test_a_shell_that_has_no_place_for_its_history_keeps_it_in_memory(tmp_path, monkeypatch):
    (tmp_path / "state").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert isinstance(_history(), InMemoryHistory)


def test_a_line_that_the_disk_does_not_take_is_known_in_its_session(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = _history()
    (tmp_path / "walship" / "history").unlink()
    (tmp_path / "walship" / "history").symlink_to("/dev/full")
    history.append_string("status")
    assert history.get_strings() == ["status"]


def test_a_user_without_a_home_has_a_shell_too(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    assert isinstance(_history(), InMemoryHistory)


def test_a_drill_leaves_the_shell_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    before, handler = os.nice(0), signal.getsignal(signal.SIGINT)
    assert main._run_line(["--cluster", "/nowhere/walship.toml", "drill", "east"]) == ConfigError.exit_code
    assert os.nice(0) == before and signal.getsignal(signal.SIGINT) is handler


def test_up_forks_from_a_process_without_what_earlier_lines_have_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the catalog of a query, whose locks in SQLite do not follow a fork."""
    monkeypatch.setattr(main, "run", lambda words: pytest.fail(f"{words} ran in the shell itself"))
    assert main._run_line(["--cluster", "/nowhere/walship.toml", "up"]) == ConfigError.exit_code
