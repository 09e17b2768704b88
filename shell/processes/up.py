"""``walship up``: one cluster's roles on this host, each a process (or, for tests, all threads of this one).

The only place that starts a cluster. It makes the data directory and the ledger if they do not exist, holds the
directory's lock, and returns when every process that it started has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from replication import config as configuration
from replication import log
from replication.config import Config
from replication.errors import ConfigError, CoordinationError, ReplicationError
from replication.ledger.changes import LedgerChanges
from replication.ledger.sql.ledger import open_ledger
from shell.processes.command_server import CommandServer
from shell.processes.drilling import has_schedule
from shell.processes.forked import load_for
from shell.processes.preflight import check_host, data_dir_lock
from shell.processes.role_process import ProcessState
from shell.processes.roles import ROLES, make_ledger, run_role
from shell.processes.stopping import stopping_on_signals, stopping_on_thread_errors, watch_lifeline
from shell.processes.supervise import RoleEvent, Supervisor
from shell.processes.wakes import Wakes

_LATER = ("derive", "drill")


def chosen_roles(config: Config, wanted: str) -> tuple[str, ...]:
    """The roles to run, in starting order.

    Args:
        config: leaves out what it disables (an embedded ZooKeeper, the master, replay).
        wanted: names with commas between; empty for all. An embedded ZooKeeper runs with those that need one; where
            there is none, its name is ignored.

    Raises:
        ConfigError: an unknown name, or nothing to run.
    """
    if wanted:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        unknown = [name for name in names if name not in ROLES]
        if unknown:
            raise ConfigError(f"there is no role {', '.join(unknown)}", f"Roles are {', '.join(ROLES)}")
        without = {"timeline"} if config.replay_asks_receivers else {"timeline", "replay"}
        if config.zookeeper.embedded and not without.issuperset(names):
            names.append("zookeeper")
        elsewhere = set() if config.zookeeper.embedded else {"zookeeper"}
        if elsewhere.issuperset(names):
            hint = "ZooKeeper runs elsewhere ([zookeeper] servers)" if names else f"Choose of {', '.join(ROLES)}"
            raise ConfigError("none of these roles runs here", hint)
        return tuple(role for role in ROLES if role in names and role not in elsewhere)
    disabled = {
        "zookeeper": not config.zookeeper.embedded,
        "master": not config.master.enabled,
        "replay": not config.replay.enabled,
        "derive": True,  # it starts later, when there is something to derive
        "timeline": not config.timeline.service or bool(config.timeline.server),
        "drill": True,  # the same, when drills are scheduled
    }
    return tuple(role for role in ROLES if not disabled.get(role, False))


def up(
    file: Path,
    wanted: str,
    on_event: Callable[[RoleEvent], None],
    ready: Callable[[], None],
    *,
    one_process: bool = False,
    lifeline: int | None = None,
    answer: Callable[[Sequence[str]], int] | None = None,
    load: Callable[[Config], None] = lambda _: None,
) -> None:
    """Run a cluster's roles on this host until SIGINT or SIGTERM, or until the ``lifeline`` pipe ends.

    Args:
        file: the cluster's TOML file.
        wanted: roles with commas between; empty for all.
        on_event: called with every event of a role.
        ready: called once, when every role is ready.
        one_process: all roles as threads of this process; for tests.
        lifeline: file descriptor of a pipe from whoever started this process, or None.
        answer: runs a command line, for commands that this process answers (``shell/cli/forwarded.py``); None for none.
        load: loads what those need.

    Raises:
        ConfigError: the configuration or this host does not fit; no process is left running.
        LockedFileError: another ``up`` runs here.
    """
    config = configuration.load(file)
    roles = chosen_roles(config, wanted)
    if not one_process:
        with Wakes(lifeline) as wakes, data_dir_lock(config):
            _prepare(config, roles, file)
            with _later(config, roles) as later, _serving_commands(config, answer, load, wakes):
                Supervisor(config, file.absolute(), (*roles, *later), on_event, later, load=load_for).run(wakes, ready)
        return
    with stopping_on_signals() as stop, data_dir_lock(config):
        if lifeline is not None:
            watch_lifeline(lifeline, stop)
        _prepare(config, roles, file)
        threads = tuple(role for role in _LATER if _may_start(role, roles))  # as threads they cost next to nothing
        with stopping_on_thread_errors(stop) as failed:
            _run_threads(config, (*roles, *threads), stop, on_event, ready)
        if failed:
            raise ReplicationError(f"walship up ended: {failed[0]}", f"See {config.log_dir}/up.log")


def _serving_commands(
    config: Config, answer: Callable[[Sequence[str]], int] | None, load: Callable[[Config], None], wakes: Wakes
) -> AbstractContextManager[object]:
    return nullcontext() if answer is None else CommandServer(answer, partial(load, config), config.run_dir, wakes)


def _prepare(config: Config, roles: Sequence[str], file: Path) -> None:
    check_host(config, roles)
    make_ledger(config)
    config.config_file.write_text(f"{file.absolute()}\n", encoding="utf-8")


def _may_start(later: str, roles: Sequence[str]) -> bool:
    """Whether a role may start later: it needs the tables of replay."""
    return "replay" in roles and later not in roles


@contextmanager
def _later(config: Config, roles: Sequence[str]) -> Iterator[dict[str, Callable[[], bool]]]:
    """Roles that start later, with their conditions."""
    ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
    ledger.close()  # it connects again when it is asked; roles are forked while no connection to SQLite is open

    changes = LedgerChanges(ledger)

    def derives() -> bool:
        if not changes.any():
            return False
        try:
            return bool(ledger.derivations.all())
        except CoordinationError:
            changes.forget()
            return False
        finally:
            if not config.shares_ledger:
                ledger.close()

    conditions: dict[str, Callable[[], bool]] = {"derive": derives, "drill": lambda: has_schedule(config)}
    with closing(ledger):
        yield {role: condition for role, condition in conditions.items() if _may_start(role, roles)}


def _run_threads(
    config: Config,
    roles: Sequence[str],
    stop: threading.Event,
    on_event: Callable[[RoleEvent], None],
    ready: Callable[[], None],
) -> None:
    log.configure(config.log.level, config.log_dir / "up.log", config.log.format, cluster=config.cluster.name)
    failed: list[ReplicationError] = []
    stops = [threading.Event() for _ in roles]
    threads: list[threading.Thread] = []

    def run(role: str, own_stop: threading.Event, is_ready: threading.Event) -> None:
        def report() -> None:
            ProcessState(role, os.getpid(), "ready").write(config.run_dir)
            on_event(RoleEvent(role, "ready", os.getpid()))
            is_ready.set()

        try:
            run_role(role, config, own_stop, report)
        except ReplicationError as error:
            failed.append(error)
        except Exception as error:  # the main thread raises it
            failed.append(ReplicationError(f"{role}: {type(error).__name__}: {error}"))
        finally:
            is_ready.set()
            if not own_stop.is_set():
                stop.set()

    try:
        for role, own_stop in zip(roles, stops, strict=True):
            is_ready = threading.Event()
            thread = threading.Thread(target=run, args=(role, own_stop, is_ready), name=role)
            threads.append(thread)
            on_event(RoleEvent(role, "started", os.getpid()))
            thread.start()
            while not is_ready.wait(0.1) and not stop.is_set():
                pass
            if stop.is_set():
                break
        else:
            ready()
        stop.wait()
    finally:
        for own_stop, thread in reversed(list(zip(stops, threads, strict=False))):
            own_stop.set()
            thread.join()
            on_event(RoleEvent(thread.name, "stopped", os.getpid()))
    if failed:
        raise failed[0]
