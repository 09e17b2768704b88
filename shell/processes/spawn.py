"""Starts a walship process in its own session, tied to this process by a pipe.

The pipe is its lifeline: the process stops when the pipe ends, also if this process is killed
(``shell/processes/stopping.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from replication.tables.spark.jars import allow_any_path


def spawn(
    arguments: Sequence[str], output: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[subprocess.Popen[bytes], int]:
    """Start ``walship ARGUMENTS``; the process and its lifeline.

    Its output is appended to ``output``. ``environment`` is what it has besides this process's.
    """
    readable, writable = os.pipe()
    command = [sys.executable, "-P", "-m", "shell.main", *arguments, "--lifeline", str(readable)]
    try:
        with output.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(readable,),
                start_new_session=True,
                env={**child_environment(), **environment},
            )
    except BaseException:
        os.close(writable)
        raise
    finally:
        os.close(readable)
    return process, writable


def child_environment() -> dict[str, str]:
    """This process's environment, with the folder that ``shell`` was imported from on the path."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    made = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
    made.pop("FORCE_COLOR", None)  # the output file is read by whoever started it
    allow_any_path(made)
    return made
