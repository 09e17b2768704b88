"""The command line itself: verbs, help, errors and exit codes, without a cluster."""

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy import gen_docs
from replication import __version__
from replication import config as configuration
from replication.core.roles import Role, RoleState
from replication.errors import ConfigError, ReadOnlyClusterError, RequestError
from replication.ledger.sql.ledger import open_ledger
from shell import main
from shell.cli.pairs import pairs
from shell.processes.roles import make_ledger

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
VERBS = {
    "init": (),
    "up": ("--config", "--roles"),
    "down": ("--config",),
    "definecluster": ("NAME", "ZOOKEEPERS"),
    "deletecluster": ("CLUSTER",),
    "listclusters": (),
    "createtable": ("--key", "--group", "--partition", "--sort", "--like", "--kind", "--history-s"),
    "altertable": ("--add", "--group", "--rename", "--widen", "--drop", "TABLE"),
    "settable": ("TABLE", "KEY=VALUE"),
    "droptable": ("TABLE",),
    "describetable": ("TABLE",),
    "listtables": (),
    "enablereplication": (
        "--table",
        "-lg",
        "--all-loc-groups",
        "--remote-table",
        "--from-now",
        "--bootstrap",
        "--wait",
        "--without-properties",
        "CLUSTER",
    ),
    "reincarnate": ("--yes",),
    "rebuildledger": ("--yes",),
    "bootstrap": ("--table", "--wait", "CLUSTER"),
    "disablereplication": ("--table", "-lg", "--all-loc-groups", "CLUSTER"),
    "status": ("--peer", "--watch"),
    "readonly": ("on|off",),
    "write": ("--format", "--batch-id", "--delete", "--wait", "--until"),
    "read": ("--where", "--columns", "--limit", "--output"),
    "sql": ("QUERY", "--spark", "--settings", "--output"),
    "import": ("FILE", "--table", "--format", "--again", "--wait", "--until"),
    "replay": ("--timeout-s",),
    "fold": ("TABLE",),
    "verify": ("CLUSTER", "--list"),
    "wal list": (),
    "wal dump": ("FILE", "--rows"),
    "wal verify": ("FILE",),
    "demo": ("--dir", "--keep", "--graph"),
    "shell": (),
}


def test_help_shows_every_verb_in_a_section_with_its_whole_sentence():
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(main.make_app(), ["--help"]).output
    _, *sections = shown.split("\n\n")[2:]
    verbs = {line.split()[0] for section in sections for line in section.splitlines()[1:] if line[2:3].strip()}
    assert {verb.split()[0] for verb in VERBS} <= verbs
    assert not any("..." in section for section in sections)
    assert all(section.splitlines()[0].endswith(":") for section in sections)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_json_and_says_which_cluster(verb):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main.make_app(), [*verb.split(), "--help"])
    assert result.exit_code == 0, result.output
    for option in VERBS[verb]:
        assert option in result.output
    assert "--debug" in result.output
    if verb != "shell":
        assert "--json" in result.output
    assert ("--cluster" in result.output) == (verb not in ("init", "demo"))


def test_the_table_of_verbs_in_the_papers_is_made_from_the_program():  # 004-30
    done = subprocess.run(
        [sys.executable, "-m", "deploy.gen_docs", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    typed = [words for words, _ in gen_docs.verbs()]
    assert {verb for verb in VERBS if not any(words.split(" -")[0].startswith(verb) for words in typed)} == set()
    assert "`enablereplication -t TABLE CLUSTER`" in gen_docs.table()


def test_the_lines_of_the_table_of_verbs_are_sentences():
    for words, summary in gen_docs.verbs():
        assert summary.endswith(".") and "..." not in summary, words
        assert len(summary.split()) <= 25, words


def test_the_version_is_printed(capsys):
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_wrong_verb_is_a_wrong_command_line():
    assert main.run(["enablereplicatoin"]) == 2


def test_an_error_is_one_clear_line_with_a_hint_and_its_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WALSHIP_CLUSTER", raising=False)
    assert main.run(["status"]) == ConfigError.exit_code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error no cluster was found")
    assert "hint  Make one: walship init DIR" in told.err
    assert "Traceback" not in told.err


def test_an_error_with_json_is_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WALSHIP_CLUSTER", raising=False)
    assert main.run(["--json", "status"]) == ConfigError.exit_code
    assert json.loads(capsys.readouterr().err)["exit_code"] == ConfigError.exit_code


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nope", "No such command 'nope'"),
        ("status --nope", "No such option"),
        ("read", "TABLE"),
        ("readonly maybe", "'maybe'"),
        ("wal nope", "No such command 'nope'"),
        ("trace t -3", "after --: … -- -3"),
        ("read t -n -1", "greater than or equal to 0"),
    ],
)
def test_a_wrong_command_line_with_json_is_told_as_json(line, says, capsys):
    assert main.run(["--json", *line.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    error = json.loads(told.err)
    assert says in error["error"] and "--help" in error["hint"] and error["exit_code"] == 2


def test_what_reads_the_output_may_go():
    program = "import sys; from shell.main import run; code = run(['--help']); sys.stderr.write(str(code))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writing)
    assert done.stderr == "0"


def test_a_name_that_is_given_twice_or_without_a_value_is_refused():
    assert pairs(["a=1", "b ="]) == {"a": "1", "b": ""}
    for wrong, said in ((["where=a", "where=b"], "given twice"), (["a"], "Write NAME=VALUE"), (["=a"], "Write NAME")):
        with pytest.raises(RequestError, match=said):
            pairs(wrong)


def test_debug_shows_the_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WALSHIP_CLUSTER", raising=False)
    assert main.run(["status", "--debug"]) == ConfigError.exit_code
    assert "Traceback" in capsys.readouterr().err


def test_init_writes_a_configuration_that_loads_and_never_overwrites_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.run(["init", "east", "--port", "2191", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"cluster": "east", "file": "east/walship.toml"}
    text = (tmp_path / "east" / "walship.toml").read_text()
    assert "port = 2191" in text and "# wal_bytes_max" in text
    assert main.run(["init", "east"]) == RequestError.exit_code


def test_init_standby_begins_as_standby_and_only_once(tmp_path, capsys):
    assert main.run(["init", str(tmp_path / "west"), "--standby"]) == 0
    config = configuration.load(tmp_path / "west" / "walship.toml")
    config.data_dir.mkdir(exist_ok=True)
    make_ledger(config)
    with contextlib.closing(open_ledger(config.ledger_url)) as ledger:
        assert ledger.terms.role() == RoleState(Role.STANDBY, 2)
        ledger.terms.keep_role(RoleState(Role.ACTIVE, 3))
    make_ledger(config)
    with contextlib.closing(open_ledger(config.ledger_url)) as ledger:
        assert ledger.terms.role() == RoleState(Role.ACTIVE, 3)


def test_a_name_that_can_be_no_cluster_is_refused(tmp_path, capsys):
    assert main.run(["init", str(tmp_path / "x"), "--name", "a/b"]) == 3
    assert main.run(["init", str(tmp_path / "my cluster")]) == 3
    assert "'my cluster' cannot be a cluster name, so give one with --name" in capsys.readouterr().err


def test_help_is_given_for_the_word_help(capsys):
    for words in (["help", "wal", "list"], ["help"]):
        assert main.run(words) == 0
        asked = capsys.readouterr().out
        assert main.run([*words[1:], "--help"]) == 0
        assert asked == capsys.readouterr().out and "Usage: walship" in asked


def test_down_of_a_file_or_its_folder_where_nothing_runs_says_so(tmp_path, capsys):
    main.run(["init", str(tmp_path / "east")])
    for given in (tmp_path / "east" / "walship.toml", tmp_path / "east"):
        assert main.run(["down", "--config", str(given)]) == 0
        assert "not running" in capsys.readouterr().out


def test_a_role_that_is_not_known_is_refused_before_anything_starts(tmp_path, capsys):
    main.run(["init", str(tmp_path / "east")])
    code = main.run(["up", "--config", str(tmp_path / "east" / "walship.toml"), "--roles", "mastre"])
    assert code == ConfigError.exit_code
    assert "mastre" in capsys.readouterr().err


def test_init_describes_one_host_of_several(tmp_path, capsys):
    pki = tmp_path / "pki"
    pki.mkdir()
    shared = [
        "--zookeepers",
        "zk1:2281",
        "--ledger",
        "postgresql://u@db/west?sslmode=require",
        "--warehouse",
        "s3://b/west",
    ]
    command = ["init", str(tmp_path / "w1"), "--name", "west", "--host", "w1", "--listen", "10.0.0.11:7070", *shared]
    assert main.run([*command, "--certificates", str(pki)]) == ConfigError.exit_code
    assert "w1.key" in capsys.readouterr().err
    assert not (tmp_path / "w1").exists()
    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(main.make_app(), ["init", "--help"]).output
    assert "HOST.pem, HOST.key (without --host: NAME.pem, NAME.key)" in " ".join(help_text.split())
    assert (
        main.run(["init", str(tmp_path / "w1"), "--name", "west", "--certificates", str(pki)]) == ConfigError.exit_code
    )
    assert "west.key" in capsys.readouterr().err
    for name in ("ca.pem", "w1.pem", "w1.key"):
        (pki / name).touch(0o600)
    assert main.run([*command, "--certificates", str(pki)]) == 0
    made = configuration.load(tmp_path / "w1" / "walship.toml", environ={})
    assert (made.cluster.name, made.cluster.host, made.shares_ledger) == ("west", "w1", True)
    assert made.zookeeper_servers == "zk1:2281" and not made.zookeeper.embedded
    assert made.tls.enabled and made.zookeeper.secured and made.warehouse == "s3://b/west"


@pytest.mark.parametrize("wrong", [["--port", "-5"], ["--port", "99999"], ["--listen", "nowhere"]])
def test_init_writes_nothing_when_a_value_is_wrong(tmp_path, capsys, wrong):
    assert main.run(["init", str(tmp_path / "east"), *wrong]) == ConfigError.exit_code
    assert "cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "east").exists()
    assert main.run(["init", str(tmp_path / "east")]) == 0


def test_down_of_a_cluster_that_ends_just_then_succeeds(tmp_path, monkeypatch):
    assert main.run(["init", str(tmp_path / "east")]) == 0
    pids = iter([2**22 + 1, None])  # which no process has
    monkeypatch.setattr("shell.processes.preflight.running_pid", lambda _: next(pids))
    assert main.run(["down", "--config", str(tmp_path / "east" / "walship.toml")]) == 0


def test_init_leaves_no_part_of_a_configuration_on_a_full_disk(tmp_path, capsys, monkeypatch):
    def written(file, text, **given):
        file.write_bytes(text.encode()[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", written)
        assert main.run(["init", str(tmp_path / "east")]) != 0
    assert "No space left" in capsys.readouterr().err
    assert main.run(["init", str(tmp_path / "east")]) == 0


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf", "soon"])
@pytest.mark.parametrize(
    "verb",
    [
        ["write", "t.x", "a.csv", "--timeout-s"],
        ["import", "-t", "t.x", "a.csv", "--timeout-s"],
        ["replay", "--timeout-s"],
        ["verify", "west", "--timeout-s"],
        ["drain", "west", "--timeout"],
        ["drain", "west", "--timeout-s"],
        ["bootstrap", "west", "-t", "t.x", "--wait"],
        ["enablereplication", "west", "-t", "t.x", "--bootstrap", "--wait"],
    ],
)
def test_a_time_that_is_none_is_a_wrong_command_line(verb, seconds, capsys):
    assert main.run([*verb, seconds]) == 2
    assert f"{seconds} is not a number of seconds" in capsys.readouterr().err


def test_rows_that_are_not_sent_are_not_waited_for(capsys):
    assert main.run(["enablereplication", "west", "-t", "t.x", "--wait", "5"]) == RequestError.exit_code
    assert "--bootstrap" in capsys.readouterr().err


def test_until_is_checked_without_wait_too(capsys):
    assert main.run(["write", "t.x", "a.csv", "--until", "foo"]) == 2
    assert "durable" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_choice_that_does_not_exist_is_told_in_plain_words(more, capsys):
    assert main.run(["write", "t", "a.csv", "--until", "soon", *more]) == 2
    told = capsys.readouterr().err
    assert "'soon' is not one of" in told and "Value error" not in told


@pytest.fixture
def walship(tmp_path, monkeypatch, capsys):
    """A cluster whose verbs print JSON; its ledger is there, and none of its processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WALSHIP_CLUSTER", raising=False)
    assert main.run(["init", "east"]) == 0
    make_ledger(configuration.load(tmp_path / "east" / "walship.toml"))
    capsys.readouterr()

    def run(*words, code=0):
        assert main.run(["--json", *words]) == code
        out, err = capsys.readouterr()
        return [json.loads(line) for line in (err if code else out).splitlines()][0]

    return run


def test_a_table_without_a_namespace_is_in_default(walship):
    assert walship("createtable", "foo", "k long, a int", "-k", "k", "-g", "cf1=a")["table"] == "default.foo"
    assert walship("altertable", "foo", "--add", "b int", "-g", "cf1")["table"] == "default.foo"
    assert walship("settable", "foo", "max_age_s=60")["table"] == "default.foo"
    assert walship("describetable", "default.foo")["groups"] == "cf1(a, b)"
    assert walship("sql", "select count(*) n from foo") == {"n": 0}
    assert walship("droptable", "foo")["dropped"] == "default.foo"


def test_tables_of_a_standby_are_changed_on_the_active_cluster(walship, tmp_path):
    walship("createtable", "foo", "k long, a int", "-k", "k")
    before = walship("describetable", "foo")
    with contextlib.closing(open_ledger(configuration.load(tmp_path / "east" / "walship.toml").ledger_url)) as ledger:
        ledger.terms.keep_role(RoleState(Role.STANDBY, 2))
    for words in (
        ("createtable", "bar", "k long", "-k", "k"),
        ("createtable", "bar", "--like", "127.0.0.1:1/west"),
        ("altertable", "foo", "--add", "b int"),
        ("settable", "foo", "max_age_s=60"),
        ("derivetable", "bar", "--from", "foo", "--hook", "select"),
        ("droptable", "foo"),
    ):
        refused = walship(*words, code=ReadOnlyClusterError.exit_code)
        assert "readonly off" in refused["hint"], words
    assert walship("describetable", "foo") == before and [t["name"] for t in walship("listtables")] == ["default.foo"]
    with contextlib.closing(open_ledger(configuration.load(tmp_path / "east" / "walship.toml").ledger_url)) as ledger:
        ledger.terms.keep_role(RoleState(Role.ACTIVE, 3))
    assert walship("droptable", "foo")["dropped"] == "default.foo"


def test_a_table_is_created_with_its_groups_partition_and_sort_order(walship):
    columns = "id long, at timestamp, note string, price double, tax double"
    groups = ["--group", "text=note", "--group", "money=price, tax"]
    order = ["--partition", "day(at)", "--partition", "bucket(4, id)", "--sort", "at, id"]
    made = walship("createtable", "ops.sales", columns, "--key", "id,at", *groups, *order)
    described = walship("describetable", "ops.sales")
    assert {name: described[name] for name in made} == made
    assert described["key"] == "id, at"
    assert described["groups"] == "text(note), money(price, tax)"
    assert (described["partition"], described["sort"]) == ("day(at), bucket(4, id)", "at, id")
    assert [(column["name"], column["in"]) for column in described["columns"]] == [
        ("id", "key"),
        ("at", "key"),
        ("note", "group text"),
        ("price", "group money"),
        ("tax", "group money"),
    ]


@pytest.mark.parametrize("verb", ["write", "import"])
def test_help_says_for_how_long_rows_are_known_to_be_there_already(verb):
    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(main.make_app(), [verb, "--help"]).output
    assert "within the table's history_s" in " ".join(help_text.split())
