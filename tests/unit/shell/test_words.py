"""The words of a command line: help before a verb, options beside each other, empty arguments; without a cluster."""

import json

import pytest

from replication.errors import RequestError
from shell import main

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("line", ["--cluster x help read", "--json help read", "-c x help help read", "help read"])
def test_help_comes_before_a_verb_and_after_the_options_that_all_verbs_have(line: str, capsys) -> None:
    assert main.run(line.split()) == 0
    assert "Usage: walship read [OPTIONS] TABLE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("altertable ops.a --rename old --json", "--rename takes OLD NEW, but the option --json follows"),
        ("--cluster --json status", "--cluster takes NAME|FILE, but the option --json follows"),
        ("grants --json", "Missing command"),
        ("--json grants", "Missing command"),
    ],
)
def test_an_option_is_never_the_value_of_another(line: str, said: str, capsys) -> None:
    assert main.run(line.split()) == 2
    told = json.loads(capsys.readouterr().err)
    assert said in told["error"] and "--help" in told["hint"]


def test_what_follows_two_dashes_is_no_option(capsys) -> None:
    assert main.run(["trace", "--cluster", "/nowhere/x.toml", "ops.a", "--", "--json"]) == 2
    assert "there is no configuration file" in capsys.readouterr().err.splitlines()[0].replace("error ", "", 1)


@pytest.mark.parametrize("line", ["dataset --json list", "--json dataset list", "dataset list --json"])
def test_json_may_stand_before_a_noun_after_it_and_after_its_verb(line: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(line.split()) == 0 and json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["init", ""], "DIR is empty"),
        (["demo", "--dir", ""], "DIR is empty"),
        (["dataset", "list", "--file", ""], "FILE is empty"),
        (["import", "-t", "ops.a", "x.csv", ""], "FILE is empty"),
        (["drill", ""], "CLUSTER is empty"),
    ],
)
def test_an_empty_argument_is_refused_and_is_not_the_current_folder(line, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(line) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_key_may_be_empty(capsys) -> None:
    assert main.run(["trace", "--cluster", "/nowhere/x.toml", "ops.a", ""]) == 2
    assert "there is no configuration file" in capsys.readouterr().err


def test_a_deploy_mode_without_submit_is_refused(capsys) -> None:
    assert main.run(["replay", "--deploy-mode", "cluster", "--json"]) == RequestError.exit_code
    assert json.loads(capsys.readouterr().err)["hint"] == "Add --submit, or leave it out"
