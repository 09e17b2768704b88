"""The first moments of the command line."""

from __future__ import annotations

import signal
import subprocess
import sys

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
