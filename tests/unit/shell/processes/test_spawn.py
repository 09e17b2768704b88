"""Processes of walship's own, as they are started."""

import os
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from peer.drill.schedule import DrillSchedule
from peer.verify.conversation import Conversations
from replication import config as configuration
from replication.config import Config
from replication.core.grants import Grant
from replication.core.ids import ClusterId
from replication.errors import ConfigError
from replication.ledger.sql.ledger import initialise
from replication.link import questions
from shell import main
from shell.processes.drilling import run_drill
from shell.processes.spawn import spawn
from tests.waiting import wait_until


@pytest.mark.parametrize(("given", "made"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("de_DE.UTF-8", "de_DE.UTF-8")])
def test_java_can_name_every_file_whatever_the_locale(given, made, tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", given)
    process, lifeline = spawn(("--version",), tmp_path / "out")
    try:
        environ = Path(f"/proc/{process.pid}/environ")
        found = wait_until(environ.read_bytes, what="exec to set the environment up")
        assert f"LC_ALL={made}".encode() in found.split(b"\0")
    finally:
        process.kill()
        process.wait()
        os.close(lifeline)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A cluster, while the current folder has modules with the names of some that walship loads."""
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    for name in ("typer", "rich", "duckdb", "sqlalchemy"):
        Path(f"{name}.py").write_text(f"open('loaded', 'w').write({name!r})\nraise ImportError({name!r})\n")
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east"))
    loaded = configuration.load(file)
    for folder in (loaded.run_dir, loaded.log_dir):
        folder.mkdir()
    loaded.config_file.write_text(str(file))
    initialise(loaded.ledger_url, ClusterId("east", uuid4()))
    return loaded


def _up(config: Config) -> None:
    process, lifeline = spawn(("up", "--help"), config.log_dir / "up.out")
    os.close(lifeline)
    assert process.wait(60) == 0


def _scheduled_drill(config: Config) -> None:
    run_drill(DrillSchedule("@daily", "east", ("nowhere.sql",), False, os.getcwd(), 0), config, threading.Event())
    assert "nowhere.sql" in (config.log_dir / "drill.out").read_text()


def _drill_of_the_interactive_shell(config: Config) -> None:
    assert main._run_line(["--cluster", "nowhere.toml", "drill", "east"]) == ConfigError.exit_code


def _comparison(config: Config) -> None:
    conversations = Conversations(config)
    conversation = conversations.begin(Grant(ClusterId("west", uuid4())))
    try:
        conversation.ask(questions.encode_question(questions.AskTables()))
        assert conversation.answer()
    finally:
        conversations.close()


@pytest.mark.heavy
@pytest.mark.parametrize("start", [_up, _scheduled_drill, _drill_of_the_interactive_shell, _comparison])
def test_modules_of_the_current_folder_are_not_loaded(start, config: Config) -> None:
    start(config)
    assert not Path("loaded").exists()
