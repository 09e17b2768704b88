"""init, up, down: a cluster's beginning, its processes, and their end."""

from __future__ import annotations

import os
import shlex
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from peer.polling import polls
from replication import config as configuration
from replication.core.ids import check_name
from replication.errors import ConfigError, RequestError, WaitTimeoutError
from shell.cli.forwarded import VERBS as FORWARDED
from shell.cli.invocation import Invocation

if TYPE_CHECKING:
    from replication.config import Config
    from replication.ledger.base import Ledger
    from shell.cli.render import Printer
    from shell.processes.supervise import RoleEvent

FILE_NAME = "walship.toml"
_NAMELESS = "cluster name, so give one with --name"
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 45.0

ConfigOption = Annotated[str | None, Option("--config", "-f", metavar="FILE", help="The cluster's TOML file.")]


@dataclass(frozen=True, slots=True)
class InitOptions:
    """What a new cluster, or its next host, is configured with."""

    name: Annotated[str, Option(metavar="NAME", help="The cluster's name. Default: the folder's.")] = ""
    port: Annotated[int, Option(metavar="PORT", help="The port of its embedded ZooKeeper.")] = 2181
    listen: Annotated[str, Option(metavar="HOST:PORT", help="The receiver's address; port 0 takes a free one.")] = (
        "127.0.0.1:0"
    )
    host: Annotated[str, Option(metavar="SLOT", help="This host's slot, if the cluster has several hosts.")] = ""
    zookeepers: Annotated[
        str, Option(metavar="HOST:PORT,…", help="Servers of a ZooKeeper ensemble to use instead.")
    ] = ""
    ledger: Annotated[str, Option(metavar="URL", help="A ledger that several hosts share: postgresql://...")] = ""
    warehouse: Annotated[
        str, Option(metavar="URL", help="Where the tables' files are, if several hosts share them.")
    ] = ""
    certificates: Annotated[
        Path | None,
        Option(
            metavar="FOLDER", help="TLS certificates: ca.pem, HOST.pem, HOST.key (without --host: NAME.pem, NAME.key)."
        ),
    ] = None
    standby: Annotated[
        bool, Option("--standby", help="It begins as STANDBY: its tables and rows come from peers only.")
    ] = False


def init(
    invocation: Invocation,
    directory: Annotated[Path, Argument(metavar="DIR", help="The cluster's folder.")],
    options: InitOptions,
) -> None:
    """Write the configuration of a new cluster, or of another host of a cluster."""
    name = check_name(options.name or directory.absolute().name, "cluster name" if options.name else _NAMELESS)
    own: dict[str, object] = {"port": options.port}
    keeper = {"embedded": False, "servers": options.zookeepers} if options.zookeepers else own
    pem = {} if options.certificates is None else _pem_files(options.certificates.absolute(), options.host or name)
    given: dict[str, dict[str, object]] = {
        "cluster": {
            **({"host": options.host} if options.host else {}),
            **({"standby": True} if options.standby else {}),
        },
        "zookeeper": {**keeper, **pem},
        "ledger": {"url": options.ledger} if options.ledger else {},
        "receiver": {"listen": options.listen},
        "tls": {**pem},
        "catalog": {"warehouse": options.warehouse} if options.warehouse else {},
    }
    file = _configured(directory, name, given)
    invocation.printer.value(
        {"cluster": name, "file": str(file)},
        f"{file} describes cluster {name}. Start it: walship up --config {shlex.quote(str(file))}",
    )


def _configured(directory: Path, name: str, given: dict[str, dict[str, object]]) -> Path:
    """Write a cluster's TOML file, after its settings were checked."""
    file = directory / FILE_NAME
    if file.exists():
        raise RequestError(f"{file} exists already", "Edit it, or choose another folder")
    cluster = {"name": name, "data_dir": str(directory.absolute()), **given["cluster"]}
    configuration.load(overrides={**given, "cluster": cluster})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(configuration.default_toml(name, ".", **given), encoding="utf-8")
    except OSError as error:
        with suppress(OSError):
            file.unlink()  # a part of it would be in the way of the next try
        raise ConfigError(f"{file} cannot be written: {error.strerror}", "Choose another folder") from None
    configuration.load(file)
    return file


def _pem_files(folder: Path, host: str) -> dict[str, str]:
    return {
        key: str(folder / file) for key, file in (("ca", "ca.pem"), ("cert", f"{host}.pem"), ("key", f"{host}.key"))
    }


def up(
    invocation: Invocation,
    config: ConfigOption = None,
    roles: Annotated[
        str,
        Option(
            metavar="ROLE,…",
            help="Run only these: zookeeper, master, worker, receiver, replay, derive, timeline, monitor, drill.",
        ),
    ] = "",
    detach: Annotated[
        bool, Option("--detach", "-d", help="Return when all are ready, and leave them running.")
    ] = False,
    lifeline: Annotated[int | None, Option(hidden=True)] = None,
) -> None:
    """Run the cluster's processes on this host until Ctrl-C, and restart those that end."""
    from shell.processes.up import up as run_up

    file = _file(invocation, config)
    printer = invocation.printer
    if detach:
        _detached(printer, file.absolute(), roles)
        return
    printer.header(configuration.load(file).cluster.name, str(file))
    began = time.monotonic()

    def on_event(event: RoleEvent) -> None:
        detail = f": {event.detail}" if event.detail else ""
        printer.value(event, f"  {event.role:<10} {event.event} (process {event.pid}){detail}")

    def ready() -> None:
        took = time.monotonic() - began
        printer.value({"event": "ready", "seconds": round(took, 2)}, f"ready after {took:.1f} s; Ctrl-C stops all")

    assert invocation.run is not None, "a command line was given"
    run_up(file, roles, on_event, ready, lifeline=lifeline, answer=invocation.run, load=_load_forwarded)


def _load_forwarded(config: Config) -> None:
    """Load what the commands use that ``up`` answers, and answer the longest of them once, to nobody."""
    from rich.console import Console

    from peer.client import connect  # noqa: F401
    from peer.status.collect import collect
    from peer.status.members import Members
    from replication.coordination import zookeeper  # noqa: F401
    from replication.ledger.sql.ledger import use_before_forks
    from shell.cli.render import Printer
    from shell.commands import register as register_all
    from shell.status.page import show_status

    register_all(typer.Typer(), FORWARDED)

    def answer(ledger: Ledger) -> None:
        nobody = Console(file=StringIO())
        show_status(Printer(False, nobody, nobody), collect(config, ledger, Members()))

    with suppress(Exception):  # the command itself tells what is wrong; nothing may end the supervisor
        use_before_forks(config.ledger_url, config.ledger.busy_timeout_s, answer)


def _detached(printer: Printer, file: Path, roles: str) -> None:
    """Start ``walship up`` and leave it running once every role is ready; stop it if one fails."""
    from shell.processes.launched import Launched, await_ready
    from shell.processes.preflight import data_dir_lock
    from shell.processes.up import chosen_roles

    loaded = configuration.load(file)
    with data_dir_lock(loaded):
        pass  # refused now when another runs here
    name = loaded.cluster.name
    launched = Launched(name, file, loaded, chosen_roles(loaded, roles))
    printer.header(name, str(file))
    began = time.monotonic()
    try:
        launched.start(*(("--roles", roles) if roles else ()))
        await_ready([launched], _START_TIMEOUT_S, report=printer.note)
    except BaseException:
        launched.stop()
        launched.join()
        raise
    launched.leave_running()
    pid = 0 if launched.process is None else launched.process.pid
    took = time.monotonic() - began
    result = {"cluster": name, "pid": pid, "seconds": round(took, 2), "output": str(launched.output)}
    printer.value(result, f"{name}: process {pid}, ready after {took:.1f} s; its output is in {launched.output}")


def down(invocation: Invocation, config: ConfigOption = None) -> None:
    """Stop the cluster's processes on this host."""
    from shell.processes.preflight import running_pid, runs_elsewhere

    loaded = configuration.load(_file(invocation, config))
    printer = invocation.printer
    printer.header(loaded.cluster.name)
    pid = running_pid(loaded.run_dir)
    if pid is None:
        printer.value({"stopped": False}, "not running")
        return
    if where := runs_elsewhere(loaded.run_dir):
        raise ConfigError(
            f"cluster {loaded.cluster.name} is run by {where}, in a container or on another machine",
            "Run walship down there",
        )
    try:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # one that is frozen
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError:
        raise ConfigError(f"process {pid} belongs to another user", "Stop it as that user") from None
    if all(running_pid(loaded.run_dir) == pid for _ in polls(_STOP_TIMEOUT_S, 0.1)):
        raise WaitTimeoutError(f"process {pid} has not stopped within {_STOP_TIMEOUT_S:.0f} s", f"See {loaded.log_dir}")
    printer.value({"stopped": True, "pid": pid}, f"stopped process {pid} and all it had started")


def _file(invocation: Invocation, given: str | None) -> Path:
    if given is None:
        return invocation.config_file("--config")
    return Path(given, FILE_NAME) if Path(given).is_dir() else Path(given)
