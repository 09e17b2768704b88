"""The drill role: begins this host's scheduled drills, each in a process of its own, one at a time.

It runs only where a schedule was made. A drill that hangs or fails changes nothing for the other roles.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from peer.drill.schedule import DrillSchedule
from replication import log
from replication.config import Config
from replication.errors import ReplicationError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

_POLL_S = 1.0
_STOP_S = 5.0
_log = log.get(__name__)


def has_schedule(config: Config) -> bool:
    """Whether drills are scheduled on this host."""
    try:
        return DrillSchedule.load(config.drills_dir) is not None
    except ReplicationError:
        return True  # the role says what is wrong with it


def run_schedule(
    config: Config,
    ledger: Ledger,
    stop: threading.Event,
    run: Callable[[DrillSchedule, threading.Event], None],
    poll_s: float = _POLL_S,
) -> None:
    """Begin drills when they are due, until ``stop``; ``run`` runs one."""
    tried, problem = 0, ""
    while not stop.wait(poll_s):
        try:
            schedule = DrillSchedule.load(config.drills_dir)
            now = now_us()
            if schedule is None or schedule.due(ledger.drills.all(), config.cluster.host, tried, now) > now:
                continue
        except ReplicationError as error:
            if problem != str(error):
                _log.warning("schedule_not_followed", reason=str(error))
            problem = str(error)
            continue
        tried, problem = now, ""
        run(schedule, stop)


def run_drill(schedule: DrillSchedule, config: Config, stop: threading.Event) -> None:
    """Run a scheduled drill as a process, to its end or until ``stop``; its output is in ``drill.out``."""
    file = Path(config.config_file.read_text(encoding="utf-8").strip())
    probes = [part for probe in schedule.probes for part in ("--probe", probe)]
    options = ["--full"] if schedule.full else []
    if schedule.probe_timeout_s is not None:
        options += ["--probe-timeout-s", str(schedule.probe_timeout_s)]
    command = [sys.executable, "-P", "-m", "shell.main", "--cluster", str(file), "drill", schedule.cluster]
    _log.info("scheduled_drill_began", cluster=schedule.cluster)
    config.log_dir.mkdir(parents=True, exist_ok=True)
    try:
        with (config.log_dir / "drill.out").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--scheduled", *options, *probes],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=schedule.folder if Path(schedule.folder).is_dir() else None,
            )
    except OSError as error:  # a full disk, or too many processes
        _log.error("scheduled_drill_not_begun", reason=str(error))
        return
    while process.poll() is None and not stop.wait(0.2):
        pass
    if process.returncode is None:
        process.send_signal(signal.SIGINT)  # it removes its fork
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        process.kill()
        process.wait()
    _log.info("scheduled_drill_ended", cluster=schedule.cluster, code=process.returncode)
