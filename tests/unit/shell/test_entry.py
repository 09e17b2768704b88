"""The first moments of the command line."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from replication.errors import NoSpaceError
from shell.main import _foreseen

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


def test_what_was_not_foreseen_is_one_line_without_where_java_raised_it() -> None:
    told = _foreseen(RuntimeError(JAVA.format("it is broken", "it is broken")))
    assert "it is broken" in told.what and "\n" not in told.what and "SparkSubmit" not in told.what
