"""init, up, down: a cluster's beginning, its processes, and their end."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replication import config as configuration
from replication.core.ids import check_name
from replication.errors import ConfigError, RequestError, WaitTimeoutError
from shell.cli.invocation import Invocation, add_verb

if TYPE_CHECKING:
    from shell.cli.render import Printer
    from shell.processes.supervise import RoleEvent

FILE_NAME = "walship.toml"
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 45.0

ConfigOption = Annotated[str | None, typer.Option("--config", "-f", metavar="FILE", help="The cluster's TOML file.")]


def register(app: typer.Typer) -> None:
    """Add these verbs to ``app``."""
    add_verb(app, "init", init, any_cluster=True)
    add_verb(app, "up", up)
    add_verb(app, "down", down)


def init(
    invocation: Invocation,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new cluster.")],
    name: Annotated[str, typer.Option(help="The cluster's name; the folder's when not given.")] = "",
    port: Annotated[int, typer.Option(help="Port of its embedded ZooKeeper.")] = 2181,
    listen: Annotated[str, typer.Option(help="host:port of its receiver; port 0 means any free one.")] = "127.0.0.1:0",
    host: Annotated[str, typer.Option(help="This host's slot, where the cluster has several hosts.")] = "",
    zookeepers: Annotated[str, typer.Option(help="host:port,... of an ensemble, instead of its own.")] = "",
    ledger: Annotated[str, typer.Option(metavar="URL", help="postgresql://... that its hosts share.")] = "",
    warehouse: Annotated[str, typer.Option(metavar="URL", help="Where its hosts share tables' files.")] = "",
    certificates: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of ca.pem, HOST.pem, HOST.key (NAME.… without --host), for all TLS."),
    ] = None,
) -> None:
    """Write a commented configuration for a new cluster, or for another host of one."""
    printer = invocation.printer
    name = check_name(name or directory.absolute().name, "cluster name")
    file = directory / FILE_NAME
    if file.exists():
        raise RequestError(f"{file} is there already", "Edit it, or choose another folder")
    pem: dict[str, str] = {}
    if certificates is not None:
        folder = certificates.absolute()
        files = {"ca": "ca.pem", "cert": f"{host or name}.pem", "key": f"{host or name}.key"}
        pem = {key: str(folder / each) for key, each in files.items()}
    keeper: dict[str, object] = {"embedded": False, "servers": zookeepers} if zookeepers else {"port": port}
    given: dict[str, dict[str, object]] = {
        "cluster": {"host": host} if host else {},
        "zookeeper": {**keeper, **pem},
        "ledger": {"url": ledger} if ledger else {},
        "receiver": {"listen": listen},
        "tls": {**pem},
        "catalog": {"warehouse": warehouse} if warehouse else {},
    }
    described = {**given, "cluster": {"name": name, "data_dir": str(directory.absolute()), **given["cluster"]}}
    configuration.load(overrides=described)  # what is wrong with it is said before anything is written
    text = configuration.default_toml(name, ".", **given)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", "Choose another folder") from None
    configuration.load(file)
    printer.value(
        {"cluster": name, "file": str(file)},
        f"{file} describes cluster {name}. Start it: walship up --config {shlex.quote(str(file))}",
    )


def up(
    invocation: Invocation,
    config: ConfigOption = None,
    roles: Annotated[str, typer.Option(metavar="ROLE,…", help="Only these roles on this host.")] = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all are ready; they run on.")] = False,
    one_process: Annotated[bool, typer.Option("--one-process", help="All roles as threads; for tests.")] = False,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a cluster's processes on this host, restarting those that end, until Ctrl-C."""
    from shell.processes.up import up as run_up

    file = _file(invocation, config)
    printer = invocation.printer
    if detach:
        if one_process:
            raise RequestError("--detach and --one-process were both given", "Give one of them")
        _detached(printer, file.absolute(), roles)
        return
    printer.header(configuration.load(file).cluster.name, str(file))
    began = time.monotonic()

    def say(event: RoleEvent) -> None:
        detail = f": {event.detail}" if event.detail else ""
        printer.value(event, f"  {event.role:<10} {event.event} (process {event.pid}){detail}")

    def ready() -> None:
        took = time.monotonic() - began
        printer.value({"event": "ready", "seconds": round(took, 2)}, f"ready after {took:.1f} s; Ctrl-C stops all")

    run_up(file, roles, say, ready, one_process=one_process, lifeline=lifeline)


def _detached(printer: Printer, file: Path, roles: str) -> None:
    """Start ``walship up`` and let go of it once every role is ready; stop it when that fails."""
    from shell.processes.launched import Launched, await_ready
    from shell.processes.preflight import DataDirLock
    from shell.processes.up import chosen_roles

    loaded = configuration.load(file)
    with DataDirLock(loaded):
        pass  # refused now when another runs here
    name = loaded.cluster.name
    launched = Launched(name, file, loaded, chosen_roles(loaded, roles))
    printer.header(name, str(file))
    began = time.monotonic()
    try:
        launched.start(*(("--roles", roles) if roles else ()))
        await_ready([launched], _START_TIMEOUT_S, tell=printer.note)
    except BaseException:
        launched.stop()
        launched.join()
        raise
    launched.leave_running()
    pid = 0 if launched.process is None else launched.process.pid
    took = time.monotonic() - began
    told = {"cluster": name, "pid": pid, "seconds": round(took, 2), "output": str(launched.output)}
    printer.value(told, f"{name}: process {pid}, ready after {took:.1f} s; it says more in {launched.output}")


def down(invocation: Invocation, config: ConfigOption = None) -> None:
    """Stop the cluster's processes on this host, as Ctrl-C would."""
    from shell.processes.preflight import running_pid

    loaded = configuration.load(_file(invocation, config))
    printer = invocation.printer
    printer.header(loaded.cluster.name)
    pid = running_pid(loaded.run_dir)
    if pid is None:
        printer.value({"stopped": False}, "nothing runs here")
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise ConfigError(f"Process {pid}, which runs it, is another user's", "Stop it as that user") from None
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while running_pid(loaded.run_dir) == pid:
        if time.monotonic() > deadline:
            raise WaitTimeoutError(
                f"Process {pid} has not stopped within {_STOP_TIMEOUT_S:.0f} s", f"See {loaded.log_dir}"
            )
        time.sleep(0.1)
    printer.value({"stopped": True, "pid": pid}, f"stopped process {pid} and all it had started")


def _file(invocation: Invocation, given: str | None) -> Path:
    if given is not None:
        return Path(given)
    target = invocation.find().target
    if not target.endswith(".toml"):
        raise ConfigError(f"{target} is no configuration file on this host", "Give one: --config FILE")
    return Path(target)
