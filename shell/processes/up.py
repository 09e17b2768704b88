"""``walship up``: one cluster's roles on this host, each a process.

The only place that starts a cluster. It makes the data directory and the ledger if they do not exist, holds the
directory's lock, and returns when every process that it started has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from replication import config as configuration
from replication.config import Config
from replication.errors import ConfigError, CoordinationError
from replication.ledger.changes import LedgerChanges
from replication.ledger.sql.ledger import open_ledger
from shell.processes.command_server import CommandServer
from shell.processes.drilling import has_schedule
from shell.processes.forked import load_for
from shell.processes.preflight import check_host, data_dir_lock
from shell.processes.roles import ROLES, make_ledger
from shell.processes.supervise import RoleEvent, Supervisor
from shell.processes.wakes import Wakes


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
        without = {"timeline", "monitor"} if config.replay_asks_receivers else {"timeline", "monitor", "replay"}
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
        "monitor": not config.monitor.port,
        "drill": True,  # the same, when drills are scheduled
    }
    return tuple(role for role in ROLES if not disabled.get(role, False))


def up(
    file: Path,
    wanted: str,
    on_event: Callable[[RoleEvent], None],
    ready: Callable[[], None],
    *,
    lifeline: int | None,
    answer: Callable[[Sequence[str]], int],
    load: Callable[[Config], None],
) -> None:
    """Run a cluster's roles on this host until SIGINT or SIGTERM, or until the ``lifeline`` pipe ends.

    Args:
        file: the cluster's TOML file.
        wanted: roles with commas between; empty for all.
        on_event: called with every event of a role.
        ready: called once, when every role is ready.
        lifeline: file descriptor of a pipe from whoever started this process, or None.
        answer: runs a command line, for commands that this process answers (``shell/cli/forwarded.py``).
        load: loads what those need.

    Raises:
        ConfigError: the configuration or this host does not fit; no process is left running.
        LockedFileError: another ``up`` runs here.
    """
    config = configuration.load(file)
    roles = chosen_roles(config, wanted)
    with Wakes(lifeline) as wakes, data_dir_lock(config):
        check_host(config, roles)
        make_ledger(config)
        config.config_file.write_text(f"{file.absolute()}\n", encoding="utf-8")
        with _later(config, roles) as later, CommandServer(answer, partial(load, config), config.run_dir, wakes):
            Supervisor(config, file.absolute(), (*roles, *later), on_event, later, load=load_for).run(wakes.wait, ready)


@contextmanager
def _later(config: Config, roles: Sequence[str]) -> Iterator[dict[str, Callable[[], bool]]]:
    """Roles that start later, with their conditions; they need the tables of replay."""
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
        yield {role: each for role, each in conditions.items() if "replay" in roles and role not in roles}
