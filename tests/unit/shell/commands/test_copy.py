"""walship copy: what it prints, writes and exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import RelativePath
from replication.datasets.copying.progress import ProgressView
from replication.datasets.stores.base import Entry
from replication.datasets.stores.local import LocalStore
from replication.errors import ConfigError
from shell.cli.render import Printer
from shell.copying import running
from shell.main import run
from tests.copying import read_tree, write_tree
from tests.file_servers import http_server

pytestmark = pytest.mark.heavy

FILES = {"a/1.csv": b"one", "a/2.txt": b"two", "b/3.csv": b"three"}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "src", FILES)
    return tmp_path / "src"


def test_a_folder_is_copied_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["copy", "src", "dst"]) == 0  # 000-6, 000-12, 001-6
    assert read_tree(Path("dst")) == FILES
    assert "3 files copied, 11 B" in capsys.readouterr().out
    assert run(["copy", "src", "dst", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["files_listed"], shown["skipped"]) == (0, {"same": 3})


def test_files_that_failed_are_told_though_the_summary_has_no_reader(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    write_tree(Path("dst"), {"b": b"no folder"})
    monkeypatch.setattr(Printer, "value", no_reader)
    assert run(["copy", "src", "dst"]) == 12
    assert "1 file failed" in capsys.readouterr().err
    assert run(["copy", "src", "dst", "--exclude", "b"]) == 0, "as head ends a pipe"


@pytest.mark.parametrize(
    "verb", [["copy", "src", "dst"], ["sync", "src", "dst"], ["dataset", "list"], ["init", "east"]]
)
def test_a_current_folder_that_was_removed_is_said(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(verb) == ConfigError.exit_code
    assert "the current folder does not exist any more" in capsys.readouterr().err


def test_a_dry_run_shows_what_would_be_copied_and_copies_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["copy", "src", "dst", "-n", "--include", "*.csv"]) == 0  # 001-9, 001-13
    assert "2 files, 8 B, would be copied" in capsys.readouterr().out
    assert not Path("dst").exists()


def test_a_dry_run_tells_of_a_target_that_the_copy_could_not_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_bytes(b"no folder")
    os.symlink("loop", "loop")
    assert run(["copy", "src", "file/dst", "-n"]) == 4
    assert "file, above" in capsys.readouterr().err
    for address in (["src", "loop"], ["loop", "dst"]):
        for verb in ("-n", "--check"):
            assert run(["copy", *address, verb]) == 7
            assert "Too many levels of symbolic links" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run(["copy", "src", "dst", "-n"]) == 7
    assert f"{Path.cwd()} may not be written" in capsys.readouterr().err
    assert run(["copy", "src", "src2", "--check"]) == 13, "which writes nothing"


def test_a_dry_run_of_what_would_fail_exits_as_the_copy_does(capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(Path("dst"), {"b": b"no folder"})
    assert run(["copy", "src", "dst", "-n"]) == 12
    shown = capsys.readouterr()
    assert "b is a file in the target" in shown.out and "1 file would not be copied" in shown.err


def test_check_says_that_it_compares_no_content_of_what_is_converted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["copy", "src", "dst", "--convert", "gzip"]) == 0
    assert run(["copy", "src", "dst", "--convert", "gzip", "--check"]) == 0
    assert "compared by its time alone" in capsys.readouterr().err


def test_check_compares_contents_and_exits_with_13(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["copy", "src", "dst"]) == 0
    assert run(["copy", "src", "dst", "--check"]) == 0
    write_tree(Path("dst"), {"a/1.csv": b"ONE", "extra": b""})
    (Path("dst") / "b/3.csv").unlink()
    assert run(["copy", "src", "dst", "--check"]) == 13
    shown = capsys.readouterr()
    assert "1 missing, 1 different, 1 extra" in shown.err
    lines = {tuple(line.split()) for line in shown.out.splitlines()}
    assert {("missing", "b/3.csv"), ("different", "a/1.csv"), ("extra", "extra")} <= lines


def test_a_dry_run_of_a_delete_that_would_be_refused_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(Path("dst"), {"extra/1": b"", "extra/2": b""})
    assert run(["copy", "src", "dst", "-n", "--delete", "--max-delete", "1"]) == 4
    shown = capsys.readouterr()
    assert "3 files, 11 B, would be copied; 2 extra" in shown.out
    assert "2 files would be removed, more than --max-delete 1 allows" in shown.err
    assert run(["copy", "src", "dst", "-n", "--delete", "--max-delete", "2"]) == 0
    assert run(["copy", "src", "dst", "-n", "--max-delete", "1"]) == 0, "nothing would be removed"


@pytest.mark.parametrize(("given", "code"), [("--check", 13), ("--dry-run", 12)])
@pytest.mark.parametrize("printed", ["line", "value"])
def test_what_a_comparison_found_is_told_though_its_output_has_no_reader(
    given: str, code: int, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Printer, printed, no_reader)
    write_tree(Path("dst"), {"b": b"no folder"})
    assert run(["copy", "src", "dst", given, "--report", "report.json"]) == code
    assert "1 failed" in capsys.readouterr().err or given == "--dry-run"
    outcomes = [json.loads(line)["outcome"] for line in Path("report.json").read_text().splitlines()]
    assert sorted(outcomes) == ["failed", "missing", "missing"]


@pytest.mark.parametrize("given", [["--skip"], ["--update"], ["--overwrite"], ["--register", "iceberg:c.n.t"]])
def test_check_tells_what_differs_whatever_a_copy_would_replace(given: list[str]) -> None:
    assert run(["copy", "src", "dst"]) == 0
    assert run(["copy", "src", "dst", "--check", *given]) == 0
    write_tree(Path("dst"), {"a/1.csv": b"ONE"}, time_s=1_800_000_000)
    assert run(["copy", "src", "dst", "--check", *given]) == 13


@pytest.mark.parametrize(("given", "name"), [("dst/", "dst/1.csv"), ("dst", "dst"), ("made/other", "made/other")])
def test_a_file_is_copied_into_a_folder_or_gets_a_name(given: str, name: str) -> None:
    assert run(["copy", "src/a/1.csv", given]) == 0
    assert Path(name).read_bytes() == b"one"
    assert sorted(path.name for path in Path(name).parent.iterdir() if path.name != "src") == [Path(name).name]


@pytest.mark.parametrize("given", [["--newer-than", "1d"], ["--min-size", "4"], ["--exclude", "*.csv"]])
def test_a_file_that_filters_leave_out_is_not_copied_by_its_name_either(given: list[str]) -> None:
    assert run(["copy", "src/a/1.csv", "dst/", *given]) == 0
    assert read_tree(Path("dst")) == {}


@pytest.mark.parametrize("linked", ["src", "src/a/1.csv"])
def test_a_link_that_is_named_is_followed_and_links_below_are_named_as_skipped(
    linked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("src/b/link").symlink_to("3.csv")
    Path("named").symlink_to(linked)
    assert run(["copy", "named", "dst"]) == 0
    if linked == "src":
        assert read_tree(Path("dst")) == FILES
        assert "; 1 symbolic link skipped" in capsys.readouterr().out
        assert run(["copy", "named", "dst", "-n"]) == 0
        assert "symbolic link b/link" in capsys.readouterr().out
    else:
        assert Path("dst").read_bytes() == b"one"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_is_not_preserved_is_as_the_users_umask_has_it(umask: int, tmp_path: Path) -> None:
    line = ["copy", "--preserve", "none", "src", "dst"]
    entry = f"import sys; sys.argv[1:] = {line}; from shell.entry import main; main()"
    subprocess.run([sys.executable, "-c", entry], umask=umask, check=True, capture_output=True, timeout=120)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (Path("dst"), *Path("dst").rglob("*"))}
    assert {modes["dst"], modes["a"]} == {0o777 & ~umask} and modes["1.csv"] == 0o666 & ~umask


def test_each_files_outcome_is_reported(source: Path) -> None:
    (source / "bad\nname").write_bytes(b"")
    (source / "bad\tname").write_bytes(b"")
    line = ["copy", "src", "dst", "--report", "report.json", "--exclude", "*.txt"]
    assert run(line) == 12
    lines = [json.loads(line) for line in Path("report.json").read_text().splitlines()]
    assert {(line["outcome"], line["path"]) for line in lines} == {
        ("copied", "a/1.csv"),
        ("copied", "b/3.csv"),
        ("failed", r"bad\nname"),
        ("failed", r"bad\tname"),
    }
    assert all(("control character" in line.get("reason", "")) == (line["outcome"] == "failed") for line in lines)
    assert not Path("dst/.walship").exists(), "nothing waits there"
    assert run([*line, "--exclude", r"bad\nname", "--exclude", r"bad\tname"]) == 0, "as they are shown"


def test_a_file_does_not_replace_a_device_or_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    assert run(["copy", "src/b/3.csv", "pipe"]) == 4
    assert "pipe is a special file" in capsys.readouterr().err and Path("pipe").is_fifo()


@pytest.mark.parametrize("count", [1, 300])
def test_a_report_that_does_not_fit_its_disk_is_named_and_files_are_copied(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(Path("many"), {f"{number}": b"x" for number in range(count)})
    assert run(["copy", "many", "dst", "--report", "/dev/full"]) == 7
    shown = capsys.readouterr()
    assert f"{count} file" in shown.out and "the report /dev/full is not whole: No space left on device" in shown.err
    assert len(read_tree(Path("dst"))) == count


def test_an_empty_source_which_may_not_be_mounted_removes_nothing_unless_it_is_said_how_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_tree(Path("dst"), {"a/b": b"1", "c": b"2"})
    Path("mount").mkdir()
    for line in (["copy", "mount", "dst", "--delete"], ["copy", "mount", "dst", "--delete", "-n"]):
        assert run(line) == 4
        said = capsys.readouterr().err
        assert "mount is empty, and 2 files of the target would be removed" in said and "--max-delete 2" in said
    assert len(read_tree(Path("dst"))) == 2
    assert run(["copy", "mount", "dst", "--delete", "--max-delete", "2"]) == 0
    assert read_tree(Path("dst")) == {}


def test_what_waits_for_a_file_that_failed_is_told_and_extras_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = LocalStore.open

    def refused(store: LocalStore, file: FileAttributes) -> Any:
        if file.path == "a/1.csv":
            raise PermissionError("not yours")
        return opened(store, file)

    monkeypatch.setattr(LocalStore, "open", refused)
    write_tree(Path("dst"), {"extra": b""})
    assert run(["copy", "src", "dst", "--delete", "--report", "report.json"]) == 12
    assert set(read_tree(Path("dst"))) >= {"b/3.csv", "extra"} and not Path("dst/a").exists()
    shown = capsys.readouterr()
    assert "1 not removed, since a file failed; 1 failed; 1 waiting for them" in shown.out
    assert "1 file failed, and 1 file to be published with them; the first: a/1.csv: P" in shown.err
    assert "With --file-set file each is published alone" in shown.err
    lines = [json.loads(line) for line in Path("report.json").read_text().splitlines()]
    assert sorted((line["outcome"], line["path"], line.get("reason", "")) for line in lines) == [
        ("copied", "b/3.csv", ""),
        ("failed", "a/1.csv", "PermissionError: not yours"),
        ("not removed", "extra", "nothing is removed in a run in which a file fails"),
        ("waiting", "a/2.txt", ""),
    ]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["nothing", "dst"], 7, "there is nothing at"),
        (["src", "src/below"], 4, "within it"),
        (["src", "dst", "--update", "--skip"], 4, "exclude each other"),
        (["src", "dst", "--backup-dir", "/"], 4, "is the target itself"),
        (["src", "dst", "--backup-dir", "../kept"], 4, "../kept is no folder below the target"),
        (["src", "dst", "--backup-dir", "/kept"], 4, "/kept is no folder below the target"),
        (["src", "dst", "--backup-dir", ".walship/kept"], 4, "where copies keep their own files"),
        (["src", "dst", "--filter", "*.csv"], 4, "begins with neither"),
        (["src", "dst", "--since-snapshot", "s1"], 4, "has no snapshots"),
        (["src", "dst", "--older-than", "soon"], 4, "is not an age"),
        (["src", "dst", "--older-than", "99999999999w"], 4, "more than a hundred years"),
        (["src", "dst", "--older-than", "9" * 400 + "w"], 4, "more than a hundred years"),
        (["src", "dst", "--exclude", "regex:a{99999999999}"], 4, "cannot be read: the repetition number is too large"),
        (["src", "dst", "--exclude", "regex:" + "(" * 3000 + ")" * 3000], 4, "cannot be read: maximum recursion"),
        (["src", "nosuchstore://x/y"], 7, "cannot be opened"),
        (["src/a", "src/b/3.csv"], 4, "3.csv is not a folder"),
        (["src/a", "src/b/3.csv/below"], 4, "is a file"),
        (["src/a", "/proc/nothing/x"], 7, "/proc/nothing/x cannot be used: FileNotFoundError"),
    ],
)
def test_what_cannot_be_done_is_refused(
    line: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["copy", *line]) == code
    assert said in capsys.readouterr().err


def test_an_http_server_is_a_source_of_folders_and_files_and_no_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {"a b/1#é.csv": b"one", "a b/per%20cent?": b"two", "a b/below/3": bytes(9 << 20), "top": b"four"}
    write_tree(tmp_path / "served", tree)
    with http_server(tmp_path / "served") as url:
        assert run(["copy", url, "all"]) == 0
        assert read_tree(Path("all")) == tree
        assert run(["copy", url, "all"]) == 0
        assert "4 same" in capsys.readouterr().out
        assert run(["copy", f"{url}/a%20b", "folder"]) == 0
        assert sorted(read_tree(Path("folder"))) == ["1#é.csv", "below/3", "per%20cent?"]
        assert run(["copy", f"{url}/a%20b/1%23%C3%A9.csv", "folder/"]) == 0
        assert run(["copy", f"{url}/nothing", "x"]) == 7
        assert run(["copy", "src", f"{url}/x"]) == 4
    assert "HTTP is a source" in capsys.readouterr().err
    assert run(["copy", f"{url}/a", "x"]) == 7
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("given", [("--range-size", "0"), ("--block-size", "0")])
def test_a_size_below_one_byte_is_refused(given: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["copy", "src", "dst", *given]) == 4
    assert f"{given[0][2:]} cannot be {given[1]}" in capsys.readouterr().err


def test_a_file_whose_size_an_http_server_does_not_tell_fails_and_the_others_arrive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "served", {"good": b"1", "endless": b"2"})
    send = SimpleHTTPRequestHandler.send_header

    def sending(self: SimpleHTTPRequestHandler, name: str, value: str) -> None:
        if not (self.path.endswith("endless") and name == "Content-Length"):
            send(self, name, value)

    monkeypatch.setattr(SimpleHTTPRequestHandler, "send_header", sending)
    with http_server(tmp_path / "served") as url:
        assert run(["copy", url, "dst"]) == 12
        assert "endless: the server does not tell its size" in capsys.readouterr().err
        assert read_tree(Path("dst")) == {"good": b"1"}, "it is not taken for an empty file"
        assert run(["copy", f"{url}/endless", "file"]) == 12
        assert "the server does not tell its size" in capsys.readouterr().err
    assert not Path("file").exists()


@pytest.mark.parametrize("option", ["--check", "--dry-run", "--checksum"])
def test_a_long_comparison_tells_how_far_it_is(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(Path("flat"), {name: b"x" for name in "123"})
    assert run(["copy", "flat", "dst"]) == 0
    said = "0 files found, 0 B, 2 skipped, still listing" if option == "--checksum" else "2 files found, 2 B, still"
    told, line, scan = threading.Event(), running._line, LocalStore.scan

    def watched(stage: str, view: ProgressView) -> str:
        text = line(stage, view)
        if said in text:
            told.set()
        return text

    def slow(self: LocalStore, folder: RelativePath) -> Iterator[Entry]:
        for number, entry in enumerate(scan(self, folder)):
            assert number < 2 or self.root.endswith("dst") or told.wait(10)
            yield entry

    monkeypatch.setattr(running, "_LINE_EVERY_S", 0.01)
    monkeypatch.setattr(running, "_line", watched)
    monkeypatch.setattr(LocalStore, "scan", slow)
    assert run(["copy", "flat", "dst", option]) == 0
    assert said in capsys.readouterr().err
