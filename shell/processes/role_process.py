"""One role's own process, as ``walship up`` starts it: signals, the lifeline, its state file.

A role never outlives its supervisor. Its lifeline is a pipe whose write end only the supervisor has. When the pipe
ends, the role stops, and kills its whole process group if that takes too long. On Linux the kernel sends a signal, too.
The state file ``run/<role>.json`` has the role's state. On SIGUSR1 a role writes the stacks of its threads to standard
error, ``log/<role>.out``.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from peer.status.role_processes import ProcessState
from replication import config as configuration
from replication import log
from replication.config import Config
from replication.errors import ConfigError, ReplicationError
from shell.cli.find import VARIABLE
from shell.processes.descriptors import raise_limit
from shell.processes.heap import keep_freed
from shell.processes.stopping import stopping_on_signals, stopping_on_thread_errors, watch_lifeline

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

STOP_GRACE_S = 15.0
_LEAVE_S = 5.0
_CARRIERS = ("worker", "receiver")
_PR_SET_PDEATHSIG = 1


def serve_arguments(arguments: Sequence[str]) -> int:
    """``ROLE --config FILE [--lifeline FD]``, as the supervisor starts a role's process."""
    parser = argparse.ArgumentParser(prog="walship _role")
    parser.add_argument("role")
    parser.add_argument("--config", required=True)
    parser.add_argument("--lifeline", type=int)
    given = parser.parse_args(arguments)
    return serve(given.role, given.config, given.lifeline)


def serve(role: str, file: str, lifeline: int | None) -> int:
    """Run ``role`` until it is stopped; returns the exit code.

    The supervisor is gone when the pipe of ``lifeline`` ends; None without a supervisor.
    """
    supervisor = os.getppid()
    faulthandler.register(signal.SIGUSR1)
    raise_limit()
    if role in _CARRIERS:
        keep_freed()
    with stopping_on_signals() as stop:
        if lifeline is not None:
            _die_with_parent()
            watch_lifeline(lifeline, stop)
        threading.Thread(target=_exit_at_deadline, args=(stop,), name="stop-deadline", daemon=True).start()
        try:
            config = configuration.load(file)
        except ConfigError as error:  # it was changed while the supervisor runs, which read it before
            sys.stderr.write(f"error {error.what}\nhint  {error.hint}\n")
            return error.exit_code
        os.environ[VARIABLE] = os.path.abspath(file)  # it calls peers for their folders: see PeerFileSystem
        log.configure(
            config.log.level, config.log_dir / f"{role}.log", config.log.format, cluster=config.cluster.name, role=role
        )
        return _served(role, config, stop, log.get(__name__), supervisor)


def _served(role: str, config: Config, stop: threading.Event, logger: BoundLogger, supervisor: int) -> int:
    def report(state: str, what: str = "", hint: str = "", exit_code: int = 0) -> None:
        if os.getppid() == supervisor:  # else the role of another one, which runs by now, writes the file
            ProcessState(role, os.getpid(), state, what, hint, exit_code, time.time()).write(config.run_dir)

    from shell.processes.roles import run_role  # deferred: reading a state file needs none of the roles

    report("starting")
    try:
        with stopping_on_thread_errors(stop) as failed:
            run_role(role, config, stop, lambda: report("ready"))
        if failed:
            raise RuntimeError(failed[0])
    except ReplicationError as error:
        logger.error("role_failed", what=error.what, hint=error.hint, exc_info=True)
        report("failed", error.what, error.hint, error.exit_code)
        return error.exit_code
    except Exception as error:
        logger.error("role_failed", what=str(error), exc_info=True)
        report("failed", f"{type(error).__name__}: {error}", f"See {config.log_dir / role}.log", 1)
        return 1
    report("stopped")
    return 0


def leave(code: int) -> NoReturn:
    """Exit once the threads have ended, without Python's finalization, in which native threads can hang.

    It never returns nor raises: in a fork, the code of its parent would go on.
    """
    try:
        deadline = time.monotonic() + _LEAVE_S
        pool = sys.modules.get("pyiceberg.utils.concurrent")
        if pool is not None:  # its threads wait for work until it is shut down
            pool.ExecutorFactory.get_or_create().shutdown(wait=False)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join(max(0.0, deadline - time.monotonic()))
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader has gone, or its disk is full
                stream.flush()
    finally:
        os._exit(code)


def _exit_at_deadline(stop: threading.Event) -> None:
    stop.wait()
    time.sleep(STOP_GRACE_S)
    sys.stderr.write(f"still not stopped after {STOP_GRACE_S:.0f} s: killed\n")
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
