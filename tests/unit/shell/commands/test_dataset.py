"""walship dataset: declared, run, paused, suspended after failures and resumed, and its history."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replication import config as configuration
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.declared.definitions import DatasetFile
from replication.datasets.declared.history import FAILURES_MAX, DatasetHistory
from replication.datasets.job import CopyJob
from shell.cli.render import Printer
from shell.main import run
from tests.certificates import write_secret
from tests.copying import read_tree, write_tree
from tests.file_servers import ftp_server

pytestmark = pytest.mark.heavy

FILES = {"a/1.csv": b"one", "b/2.csv": b"two"}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "src", FILES)


def shown(capsys: pytest.CaptureFixture[str], *line: str) -> Any:
    capsys.readouterr()
    assert run(["dataset", *line, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_where_no_dataset_was_declared_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    before = {*Path().iterdir()}
    assert shown(capsys, "list") == []
    assert run(["dataset", "run", "d"]) == run(["dataset", "pause", "d"]) == 4
    assert run(["dataset", "run"]) == 0
    assert "no dataset in datasets.toml is active" in capsys.readouterr().err
    assert {*Path().iterdir()} == before


def test_a_declared_dataset_is_run_and_its_copies_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["dataset", "add", "d", "src", "dst", "--finder", "glob", "--set", "pattern=a", "-o", "delete=true"]) == 0
    )
    assert shown(capsys, "show", "d")["options"] == {"delete": True}
    assert run(["dataset", "run"]) == 0
    assert read_tree(Path("dst")) == {"a/1.csv": b"one"}
    (row,) = shown(capsys, "list")
    assert (row["state"], row["files"]) == ("active", 1)
    assert (Path(row["source"]), Path(row["target"])) == (Path("src").resolve(), Path("dst").resolve())
    (copied,) = shown(capsys, "history", "d", "--path", "a/1.csv")  # 000-3, audited
    assert copied["source"].endswith("src/a/1.csv") and copied["user"] and copied["bytes"] == 3
    (ran,) = shown(capsys, "history", "d")
    assert ran["ended"].endswith("Z") and ran["ended_us"] >= ran["begun_us"]
    with closing(DatasetHistory(Path("datasets.db"))) as history:
        history.begin("d", "src", "dst")
    assert [each["ended"] for each in shown(capsys, "history", "d")] == ["runs, or was killed", ran["ended"]]
    assert run(["dataset", "remove", "d"]) == 0
    assert run(["dataset", "show", "d"]) == run(["dataset", "history", "other"]) == 4


def test_a_dataset_that_fails_is_suspended_alone_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    # 002-8
    assert run(["dataset", "add", "bad", "nothing", "dst1"]) == 0
    assert run(["dataset", "add", "good", "src", "dst2"]) == 0
    for _ in range(FAILURES_MAX):
        assert run(["dataset", "run"]) == 12
    assert read_tree(Path("dst2")) == FILES, "one that fails stops no other"
    assert {row["dataset"]: row["state"] for row in shown(capsys, "list")} == {"bad": "suspended", "good": "active"}
    assert run(["dataset", "run"]) == 0, "it is left out"
    assert run(["dataset", "run", "bad"]) == 4
    assert "walship dataset resume bad" in capsys.readouterr().err
    write_tree(Path("nothing"), {"x": b"1"})
    assert run(["dataset", "resume", "bad"]) == 0
    assert run(["dataset", "run", "bad"]) == 0
    assert read_tree(Path("dst1")) == {"x": b"1"}


def test_a_summary_that_cannot_be_printed_is_no_failure_of_the_dataset(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["dataset", "add", "d", "src", "dst"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Printer, "value", _no_reader)
        assert run(["dataset", "run"]) == 12
    assert read_tree(Path("dst")) == FILES
    assert shown(capsys, "list")[0]["state"] == "active"


def _no_reader(*_: object) -> None:
    raise BrokenPipeError


def test_a_dataset_that_meets_a_defect_stops_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["dataset", "add", "bad", "src", "dst1"]) == 0
    assert run(["dataset", "add", "good", "src", "dst2"]) == 0
    running = CopyJob.run

    def defective(job: CopyJob) -> CopyCounts:
        assert not job.target.url.endswith("dst1"), "a defect"
        return running(job)

    monkeypatch.setattr(CopyJob, "run", defective)
    assert run(["dataset", "run"]) == 12
    assert "bad: AssertionError: a defect" in capsys.readouterr().err
    assert read_tree(Path("dst2")) == FILES


def test_a_dataset_that_is_removed_while_another_one_runs_is_not_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["dataset", "add", "one", "src", "dst1"]) == 0
    assert run(["dataset", "add", "two", "src", "dst2"]) == 0
    running = CopyJob.run

    def removed_meanwhile(job: CopyJob) -> CopyCounts:
        assert job.target.url.endswith("dst1")
        DatasetFile(Path("datasets.toml")).remove("two")
        return running(job)

    monkeypatch.setattr(CopyJob, "run", removed_meanwhile)
    assert run(["dataset", "run"]) == 12
    assert "there is no dataset two" in capsys.readouterr().err
    assert read_tree(Path("dst1")) == FILES and not Path("dst2").exists()


@pytest.mark.parametrize("option", ["range-size=0", "block-size=0", "attempts=0", "files-per-split=0"])
def test_a_number_that_is_too_small_is_refused_when_it_is_declared(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dataset", "add", "d", "src", "dst", "-o", option]) == 4
    assert f"{option.partition('=')[0]} cannot be 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["2024", "01", "true"])
def test_a_pattern_may_be_a_number_or_a_word_that_means_something_elsewhere(name: str) -> None:
    write_tree(Path("src"), {f"{name}/x": b"mine"})
    assert run(["dataset", "add", "d", "src", "dst", "-o", f"include={name}"]) == 0
    assert run(["dataset", "run", "d"]) == 0
    assert read_tree(Path("dst")) == {f"{name}/x": b"mine"}


def test_no_password_of_a_dataset_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    section = '[dataset.d]\nsource = "/src"\ntarget = "/dst"\ntarget_options = {password = "hidden", user = "$USER"}\n'
    write_secret(Path("datasets.toml"), section.encode())
    assert shown(capsys, "show", "d")["target_options"] == {"password": "…", "user": "$USER"}


def test_a_paused_dataset_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dataset", "add", "d", "src", "dst"]) == 0
    assert run(["dataset", "pause", "d"]) == 0
    assert run(["dataset", "run", "d"]) == 4
    assert not Path("dst").exists()
    assert run(["dataset", "resume", "d"]) == 0
    assert run(["dataset", "run", "d"]) == 0


def test_files_of_a_dataset_that_names_a_cluster_are_on_its_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    Path("east.toml").write_text(configuration.default_toml("east", "."))  # 003-4
    assert run(["dataset", "add", "d", "src", "dst", "--cluster", "east.toml"]) == 0
    assert run(["dataset", "run", "d"]) == 0
    assert run(["copy", "src", "other", "--cluster", "east.toml"]) == 0
    capsys.readouterr()
    assert run(["timeline", "files", "d", "--cluster", "east.toml", "--json"]) == 0
    assert [row["path"] for row in json.loads(capsys.readouterr().out)] == sorted(FILES)
    assert run(["timeline", "list", "--cluster", "east.toml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["dataset"], row["state"]) for row in rows] == [
        (name, state)
        for name in ("d", f"file://{Path('other').resolve()}")
        for state in ("requested", "inflight", "completed")
    ]


def test_versions_of_a_dataset_are_kept_rolled_back_and_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("east.toml").write_text(configuration.default_toml("east", "."))
    added = ["dataset", "add", "d", "src", "dst", "-o", "versions=true"]
    assert run(added) == 4
    assert "on a cluster's timeline, and dataset d has none" in capsys.readouterr().err
    assert run([*added, "--cluster", "east.toml"]) == 0
    for second in range(3):
        write_tree(Path("src"), {"a/1.csv": b"x" * second}, 1_700_000_001 + second)
        assert run(["dataset", "run", "d"]) == 0

    def timeline(*line: str) -> Any:
        capsys.readouterr()
        assert run(["timeline", *line, "--cluster", "east.toml", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert len(shown(capsys, "history", "d", "--path", "a/1.csv")) == 3, "by the name that it has in the source"
    last = timeline("list")[-1]
    assert timeline("rollback", "d", str(last["completed"]))["deleted"] == 1
    assert [row["size"] for row in timeline("files", "d") if row["path"].startswith("a/")] == ["1 B"]
    assert timeline("clean", "d", "--keep-versions", "1")["deleted"] == 1
    assert timeline("clean", "d", "--keep-age", "1h") == {"dataset": "d", "instant": None, "deleted": 0}
    assert run(["timeline", "clean", "d", "--cluster", "east.toml"]) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["d", "src", "dst", "--finder", "nobody"], "no finder 'nobody'"),
        (["d", "src", "dst", "--finder", "glob"], "pattern is missing"),
        (["d", "src", "dst", "-o", "colour=red"], "there is no option colour"),
        (["d", "src", "dst", "-o", "delete=7"], "cannot be 7"),
        (["d", "src", "dst", "-o", "threads=" + "9" * 5000], "threads cannot be '99"),
        (["d", "src", "dst", "-o", "exclude=\udcff"], "a value of dataset d is no UTF-8"),
        (["d", "src", "dst", "--finder", "stream", "--set", "days=" + "9" * 5000], "days is '99"),
        (["d", "ftp://ann:secret@host/x", "dst"], "holds a password"),
        (["d", "src", "dst", "--source-option", "password=$NOT_SET_HERE"], "is not set"),
        (["d", "src", "s3://nosuch/x", "--target-option", "endpoint_url=http://127.0.0.1:1"], "does not answer"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_declared(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dataset", "add", *line]) in (2, 4, 7)  # 001-19, 001-28
    shown = capsys.readouterr().err
    assert said in shown and "secret" not in shown
    assert not Path("datasets.toml").exists()


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("options = {max_delete = 3}", "there is no option max_delete", "without --: max-delete"),
        ('options = {delete = "yes"}', "the option delete cannot be 'yes'", "Write true or false"),
        ('options = {max-delete = "3"}', "max-delete cannot be '3'", "Write a whole number"),
        ("options = {threads = 1000}", "threads cannot be 1000", "at most 256"),
        ("options = {exclude = {a = 1}}", "exclude cannot be", "a text, or a list of such"),
        ("options = {versions = true}", "dataset d has none", "add it anew with --cluster"),
        ('after = "e"', "and d has none", "add it anew with --cluster"),
        ("properties = {pattern = '*'}", "pattern is unknown", "It takes none"),
    ],
)
def test_what_does_not_fit_in_a_file_that_people_wrote_is_told_when_it_runs(
    line: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("datasets.toml").write_text(f'[dataset.d]\nsource = "/src"\ntarget = "/dst"\n{line}\n')
    assert run(["dataset", "run", "d"]) == 4
    shown = capsys.readouterr().err
    assert said in shown and hint in shown


def test_a_password_that_people_wrote_into_an_address_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    write_secret(Path("datasets.toml"), b'[dataset.d]\nsource = "ftp://ann:secret@host/x"\ntarget = "/dst"\n')
    for line in (["list"], ["list", "--json"], ["show", "d"]):
        assert run(["dataset", *line]) == 0
        shown = capsys.readouterr().out
        assert "ftp://ann:" in shown and "secret" not in shown


def test_a_warning_is_given_when_files_leave_for_a_store_without_encryption(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTP_PASSWORD_OF_ANN", "secret")  # 001-28, 000-17
    (tmp_path / "served").mkdir()
    with ftp_server(tmp_path / "served") as url:
        open_url = url.replace("ann:secret@", "")
        login = ["--target-option", "username=ann", "--target-option", "password=$FTP_PASSWORD_OF_ANN"]
        assert run(["dataset", "add", "d", "src", f"{open_url}/x", *login]) == 0
        assert "is not encrypted on its way" in capsys.readouterr().err
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        assert run(["dataset", "run", "d"]) == 0
    assert read_tree(tmp_path / "served/x") == FILES
    assert "secret" not in Path("datasets.toml").read_text()


def test_a_folder_that_is_missing_for_the_declarations_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dataset", "list", "--file", "/nosuch/sets.toml"]) == 2
    assert "there is no folder /nosuch" in capsys.readouterr().err


def test_a_folder_in_place_of_the_file_is_refused_and_nothing_is_made_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "at/sets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "at")
    for folder in (".", "/", "sets"):
        assert run(["dataset", "list", "--file", folder]) == 2
        assert f"{folder} is a folder" in capsys.readouterr().err
    assert os.listdir() == ["sets"]


def test_a_file_that_would_be_its_own_history_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["add", "d", "src", "dst"], ["list"]):
        assert run(["dataset", *line, "--file", "mine.db"]) == 2
        assert "mine.db would be the history, too" in capsys.readouterr().err
    assert not Path("mine.db").exists()
