"""replay, fold: tables brought up to date now."""

from __future__ import annotations

import math
import os
import shlex
import time
from pathlib import Path
from typing import Annotated

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from typer import Option

from replication.errors import ReplicationError, RequestError
from shell.cli.interrupting import detached
from shell.cli.invocation import Invocation, tables_argument, timeout_option
from shell.cli.render import bytes_text, moment_text

_SILENT_S = 5.0  # one that has just started has yet to report


def replay(
    invocation: Invocation,
    timeout_s: Annotated[float, timeout_option("How long it may take.")] = 600.0,
    submit: Annotated[bool, Option("--submit", help="Run the replay process by spark-submit, until Ctrl-C.")] = False,
    deploy_mode: Annotated[
        str, Option(metavar="MODE", help="With --submit, where Spark's driver runs: client (here) or cluster.")
    ] = "",
) -> None:
    """Apply everything that has landed to the tables; by this process if no replay process runs."""
    if submit:
        _submit(invocation, deploy_mode or "client")
        return
    if deploy_mode:
        raise RequestError("--deploy-mode is for --submit", "Add --submit, or leave it out")
    from peer.client.on_demand import backlog_bytes, catch_up
    from shell.processes.preflight import check_moved

    with invocation.connect(grace_s=0) as (cluster, printer):
        check_moved(cluster.config)
        total = backlog_bytes(cluster.ledger)
        began = time.monotonic()
        tell_s = began + _SILENT_S
        columns = (TextColumn("replaying"), BarColumn(), TextColumn("{task.fields[left]} to go"), TimeRemainingColumn())
        with printer.bar(*columns) as bar:
            task = bar.add_task("replay", total=total, left=bytes_text(total))

            def report(left: int, silent: str) -> None:
                nonlocal tell_s
                if silent and time.monotonic() > tell_s:
                    tell_s = math.inf
                    printer.note(f"still waiting: the replay process {silent}, see walship status")
                done = max(0, total - left)
                bar.update(task, total=max(total, left), completed=done, left=bytes_text(left))

            coordination = cluster.coordination if cluster.config.replay_asks_receivers else None
            ran_here = catch_up(cluster.config, cluster.ledger, timeout_s, report, coordination)
        took = time.monotonic() - began
        who = "here" if ran_here else "by the replay process"
        result = {"bytes": total, "seconds": round(took, 2), "ran_here": ran_here}
        text = f"{bytes_text(total)} replayed {who} in {took:.1f} s; the tables" if total else "the tables"
        printer.value(result, f"{text} are up to date with what has landed")


def _submit(invocation: Invocation, deploy_mode: str) -> None:
    """Become ``spark-submit``: its signals and exit code are this command's."""
    from replication import config as configuration
    from shell.processes.preflight import check_moved
    from shell.processes.submit import submission

    file = Path(invocation.find().target)
    if not file.is_file():
        raise RequestError("--submit needs the configuration of a host", "Name its file: --cluster FILE")
    config = configuration.load(file)
    check_moved(config)
    made = submission(config, file.absolute(), deploy_mode)
    invocation.printer.err.print(shlex.join(made.command), soft_wrap=True, highlight=False, markup=False)
    os.execve(made.command[0], made.command, made.environment)


def fold(
    invocation: Invocation,
    tables: Annotated[list[str] | None, tables_argument("Tables to fold. Default: every table with a key.")] = None,
) -> None:
    """Merge changes into the tables that other engines read, now, in this process; large ones by Spark."""
    from peer.client.on_demand import fold_now
    from shell.commands.operate import for_each
    from shell.processes.preflight import check_moved

    with invocation.connect(grace_s=0) as (cluster, printer):
        check_moved(cluster.config)
        specs = [cluster.table(name) for name in tables] if tables else [s for s in cluster.tables() if s.key]
        without = [spec.name for spec in specs if not spec.key]
        if without:
            raise RequestError(f"{', '.join(without)} has no key, so there is nothing to fold", "Name keyed tables")
        results = detached(lambda: fold_now(cluster.config, cluster.ledger, specs))
        folded = cluster.ledger.replay.folds()
        upto = {spec.name: moment_text(folded[spec.uuid]) for spec in specs if spec.uuid in folded}
        rows: list[dict[str, object]] = []

        def show(name: str) -> None:
            result = results[name]
            if isinstance(result, ReplicationError):
                raise result
            versions, deletes = (result.versions, result.deletes) if result else (0, 0)
            rows.append({"table": name, "versions": versions, "deletes": deletes, "folded_upto": upto.get(name)})

        try:
            for_each(list(results), show, printer)
        finally:
            if rows or not results:
                printer.rows(rows, empty="no keyed tables")
