"""The first moments of the command line."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from replication.errors import ConfigError, NoSpaceError
from shell.main import _foreseen, run

pytestmark = pytest.mark.heavy

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys, time

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "shell.main":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)

sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.default_int_handler)
from shell.entry import main
main()
"""


def test_ctrl_c_while_modules_load_ends_the_command_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_WHILE_LOADING], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


JAVA = """An error occurred while calling o72.sql.
: org.apache.hadoop.fs.FSError: java.io.IOException: {}
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
Caused by: java.io.IOException: {}
"""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device"),
        RuntimeError(JAVA.format(*[os.strerror(errno.ENOSPC)] * 2)),
    ],
)
def test_a_full_disk_is_not_told_as_the_output(error: Exception) -> None:
    told = _foreseen(error)
    assert isinstance(told, NoSpaceError) and "tables' files" in told.what and "Make room on the disks" in told.hint


def test_another_users_file_is_an_error_of_the_configuration() -> None:
    told = _foreseen(PermissionError(errno.EACCES, "Permission denied", "/data/walship.toml"))
    assert (told.exit_code, told.what) == (2, "permission denied: /data/walship.toml")


def test_a_path_that_is_too_long_is_named_as_that() -> None:
    for path in ("/tmp/" + "a" * 300, "/tmp/" + "a" * 200 * 30):
        with pytest.raises(OSError) as failed:
            os.stat(path)
        told = _foreseen(failed.value)
        assert isinstance(told, ConfigError) and told.what.startswith("this path is too long: /tmp/aaa")
    assert _foreseen(OSError(errno.ENAMETOOLONG, "File name too long")).what == "a path is too long"


def test_a_verb_that_finds_no_folder_for_temporary_files_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc", "/nonexistent"])
    with pytest.raises(FileNotFoundError) as failed:
        tempfile.TemporaryDirectory()
    told = _foreseen(failed.value)
    assert isinstance(told, ConfigError) and "/nonexistent" in told.what and "TMPDIR" in told.hint


def test_what_was_not_foreseen_is_one_line_without_where_java_raised_it() -> None:
    told = _foreseen(RuntimeError(JAVA.format("it is broken", "it is broken")))
    assert "it is broken" in told.what and "\n" not in told.what and "SparkSubmit" not in told.what


def entered(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """What the installed command does, and then the modules of others that it loaded."""
    script = (
        "import sys\nfrom shell.entry import main\ntry:\n    main()\nfinally:\n"
        "    print(sorted({'typer', 'pyarrow', 'pydantic'} & set(sys.modules)), file=sys.stderr)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-c", script, *words], stderr=subprocess.PIPE, text=True, timeout=60, env=environment, **how
    )


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["-h"]])
def test_version_and_overview_are_printed_without_loading_the_program(words: list[str]) -> None:
    at_once = entered(*words, stdout=subprocess.PIPE)
    assert (at_once.returncode, at_once.stderr.strip()) == (0, "[]")
    for module in ("shell.main", "walship"):
        whole = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=60)
        assert at_once.stdout == whole.stdout != ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_an_output_that_takes_nothing_is_told_by_the_whole_program() -> None:
    with open("/dev/full", "w") as full:
        done = entered("--help", stdout=full)
    assert done.returncode not in (0, 120) and "no space left" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["read"], ["status", "--cluster", "none.toml"], ["read", "--json"]])
def test_an_exit_code_stays_if_standard_error_takes_nothing(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stderr", Full())
    assert run(words) == 2


def test_what_the_command_makes_is_its_users_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from shell.entry import main; main()", "init", str(tmp_path / "east")]
    subprocess.run(command, check=True, capture_output=True, umask=0o022)
    made = [tmp_path / "east", *(tmp_path / "east").rglob("*")]
    assert any(path.name == "walship.toml" for path in made)
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def command(folder: Path, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the installed command does, by a shell."""
    line = f"{sys.executable} -c 'from shell.entry import main; main()' {words}"
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment}
    return subprocess.run(line, shell=True, cwd=folder, env=given, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("-c odd.toml status", 2, "cluster"),
        ("-c home.toml listtables", 2, "~nosuchuser/x"),
        ("-c ~nosuchuser/walship.toml status", 2, "~nosuchuser"),
        ("copy odd.toml there --report /nosuch/r.json", 4, "the report /nosuch/r.json cannot be written"),
        ("-c odd.toml status --debug", 2, "cluster"),
    ],
)
def test_odd_configurations_and_paths_are_named_without_a_traceback(
    tmp_path: Path, words: str, code: int, said: str
) -> None:
    (tmp_path / "odd.toml").write_text('cluster = "x"\n')
    (tmp_path / "home.toml").write_text('[cluster]\nname = "east"\ndata_dir = "~nosuchuser/x"\n')
    done = command(tmp_path, words)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert ("Traceback" in done.stderr) == ("--debug" in words)


def test_a_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    done = command(tmp_path, "status", BASH_ENV="")
    assert done.returncode == 2
    (tmp_path / "gone").mkdir()
    line = f"cd gone && rmdir ../gone && {sys.executable} -P -c 'from shell.entry import main; main()' status"
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "folder does not exist any more" in done.stderr, done.stderr


def test_an_interactive_shell_prints_on_after_a_file_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "lines").write_text("copy a.csv there --report /dev/full\ncopy --help\n")
    done = command(tmp_path, "shell < lines")
    assert "No space left" in done.stderr and "--report" in done.stdout, (done.stdout, done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_a_forwarded_verb_with_a_closed_stream_ends_with_its_own_code(tmp_path: Path, closed: str) -> None:
    (tmp_path / "east.toml").write_text('[cluster]\nname = "east"\n')
    assert command(tmp_path, f"-c east.toml describetable nosuch {closed}").returncode == 2


LEFT_QUERY = """
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
import duckdb
from shell.cli.interrupting import leave

pool = ThreadPoolExecutor(1)
pool.submit(print, "done").result()
rows = duckdb.connect().sql("select * from range(10000000)")
Thread(target=lambda kept: time.sleep(60), args=(rows,), daemon=True).start()
leave(3)
"""


def test_a_query_that_was_left_is_not_told_as_leaked_though_a_pool_has_threads() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_QUERY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")


WAITS_FOR_A_THREAD = """
import os, signal, time
from threading import Thread, Timer
from shell.cli.interrupting import leave

Thread(target=time.sleep, args=(30,)).start()
Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
leave(3)
"""


def test_ctrl_c_while_a_command_waits_for_its_threads_ends_it_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS_FOR_A_THREAD], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
