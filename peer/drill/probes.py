"""The user's probes: SQL files, and scripts with the fork's address in their environment.

A statement of an SQL file passes when it succeeds. A query whose columns are all boolean is a check: it passes when it
has rows, and every value is true. A ``--`` comment above a statement is its title. The first statement that does not
pass ends its file. A script passes when it exits with 0. A probe that takes longer than its timeout is stopped.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.drill.changes import split_statements
from peer.drill.fork import ForkTables
from peer.drill.session import Answered, ForkSession
from replication.error_text import one_line, signal_text, storable
from replication.errors import ReplicationError, RequestError
from replication.priority import lower_session

ROWS_SHOWN = 10
_OUTPUT_SHOWN = 20_000
_GRACE_S = 2.0
_INTERRUPT_S = 0.1
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_COMMENT = re.compile(r"\A(?:\s*--[^\n]*\n)*\s*--\s*([^\n]+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """One statement of an SQL probe. ``why`` is why it did not pass, "" if it did."""

    title: str
    statement: str
    passed: bool
    seconds: float
    why: str = ""
    answered: Answered = Answered()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe. ``why`` is why it did not pass, ``not_run`` how many statements were left, ``output`` a script's."""

    name: str
    kind: str
    passed: bool
    seconds: float
    why: str = ""
    steps: tuple[ProbeStep, ...] = ()
    not_run: int = 0
    output: str = ""


def check_probe(file: Path) -> None:
    """Raise RequestError unless a file can be run as a probe."""
    if not file.is_file():
        raise RequestError(f"there is no probe {file}", "Give the path of an SQL file or a script")
    if file.suffix != ".sql":
        _command(file)


def run_probe(file: Path, fork: ForkTables, environment: Mapping[str, str], timeout_s: float) -> ProbeResult:
    """Run one probe to its end, or until its timeout; whatever goes wrong is in the result.

    An SQL file runs on ``fork``; a script gets ``environment`` besides this process's.
    """
    began = time.monotonic()
    try:
        if file.suffix == ".sql":
            return _run_sql(file, fork, timeout_s)
        return _run_script(file, environment, timeout_s)
    except (ReplicationError, OSError, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, ReplicationError) else one_line(error)
        kind = "SQL" if file.suffix == ".sql" else "script"
        return ProbeResult(storable(file.name), kind, False, _since(began), storable(why))


def _run_sql(file: Path, fork: ForkTables, timeout_s: float) -> ProbeResult:
    began = time.monotonic()
    session = ForkSession(fork)
    ended = threading.Event()
    stopper = threading.Thread(target=_interrupt_late, args=(session, ended, timeout_s), name="probe timeout")
    steps: list[ProbeStep] = []
    try:
        statements = split_statements(file.read_text(encoding="utf-8"))
        if not statements:
            raise RequestError(f"{file.name} has no statement", "Write SQL into it, each statement ended by ;")
        stopper.start()
        for statement in statements:
            steps.append(_step(session, statement, began + timeout_s, timeout_s))
            if not steps[-1].passed:
                break
    finally:
        ended.set()
        if stopper.ident is not None:
            stopper.join()
        session.close()
    passed = all(step.passed for step in steps)
    why = "" if passed else f"{steps[-1].title}: {steps[-1].why}"
    left = len(statements) - len(steps)
    return ProbeResult(storable(file.name), "SQL", passed, _since(began), why, tuple(steps), left)


def _interrupt_late(session: ForkSession, ended: threading.Event, timeout_s: float) -> None:
    """Interrupt what runs after the timeout, again and again: an interrupt between two queries ends neither."""
    late = timeout_s
    while not ended.wait(late):
        session.interrupt()
        late = _INTERRUPT_S


def _step(session: ForkSession, statement: str, deadline_s: float, timeout_s: float) -> ProbeStep:
    began, title, text = time.monotonic(), _title(statement), statement.strip()
    try:
        answered = session.run(statement, ROWS_SHOWN)
    except Exception as error:  # also of a library; the probe did not pass, and the drill goes on
        late = time.monotonic() >= deadline_s
        why = str(error) if isinstance(error, ReplicationError) else one_line(error)
        return ProbeStep(title, text, False, _since(began), f"it was stopped after {timeout_s:g} s" if late else why)
    why = ""
    if answered.checked is False:
        why = "the check is not true" if answered.rows else "the check has no row"
    elif time.monotonic() >= deadline_s:
        why = f"it was stopped after {timeout_s:g} s"
    return ProbeStep(title, text, not why, _since(began), why, answered)


def _run_script(file: Path, environment: Mapping[str, str], timeout_s: float) -> ProbeResult:
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            _command(file),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_drill if sys.platform == "linux" else None,
            env={**os.environ, **environment},
        )
        try:
            process.wait(timeout_s)
            why = _ending(process.returncode)
        except subprocess.TimeoutExpired:
            why = f"it was stopped after {timeout_s:g} s"
            _signal(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        finally:
            _signal(process.pid, signal.SIGKILL)  # and what it left in the background
            process.wait()
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _OUTPUT_SHOWN))
        text = output.read().decode(errors="replace")
    return ProbeResult(storable(file.name), "script", not why, _since(began), why, output=text)


def _die_with_drill() -> None:
    """Have the kernel kill the script when the drill's process is killed. Other work goes before both."""
    lower_session()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _command(file: Path) -> list[str]:
    if file.suffix == ".py":
        return [sys.executable, str(file)]
    if file.suffix == ".sh" and not (os.access(file, os.X_OK) and file.read_bytes().startswith(b"#!")):
        return ["sh", str(file)]
    if os.access(file, os.X_OK):
        return [str(file.absolute())]
    raise RequestError(f"{file} cannot be run", "Make it executable, or give a .sql, .py or .sh file")


def _ending(code: int) -> str:
    if code < 0:
        return f"it was killed by {signal_text(-code)}"
    return f"it exited with {code}" if code else ""


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _title(statement: str) -> str:
    named = _COMMENT.match(statement)
    first = named[1] if named else " ".join(statement.split()).rstrip("; ")
    return first.strip()[:100]


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
