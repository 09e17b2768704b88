"""pause, resume, throttle, drain, removehost: peers and hosts, while the cluster runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer import Argument

from replication.core.shipping.rate import parse_rate
from replication.error_text import counted
from replication.errors import ReplicationError, RequestError
from shell.cli.invocation import Invocation, PeerArgument, table_option, timeout_option
from shell.cli.render import Printer, bytes_text, seconds_text

_REPORT_EVERY_S = 2.0


def pause(invocation: Invocation, cluster_name: PeerArgument) -> None:
    """Stop sending to a peer until resume; the files that it needs are retained."""
    with invocation.connect() as (cluster, printer):
        workers = cluster.operations.pause(cluster_name)
        text = f"{cluster_name} is paused. {_stopped(workers)}; the files that it needs are retained"
        printer.value({"peer": cluster_name, "paused": True, "workers": workers}, text)


def resume(invocation: Invocation, cluster_name: PeerArgument) -> None:
    """Send to a paused peer again, from where it was."""
    with invocation.connect() as (cluster, printer):
        workers = cluster.operations.resume(cluster_name)
        printer.value(
            {"peer": cluster_name, "paused": False, "workers": workers}, f"{cluster_name} is no longer paused"
        )


def throttle(
    invocation: Invocation,
    cluster_name: PeerArgument,
    rate: Annotated[str, Argument(metavar="RATE", help="Bytes per second, such as 10MB or 512KiB; off for no limit.")],
) -> None:
    """Limit the bytes per second that all workers together send to a peer."""
    bytes_per_s = parse_rate(rate)
    with invocation.connect() as (cluster, printer):
        workers = cluster.operations.throttle(cluster_name, bytes_per_s)
        share = f", {bytes_text(bytes_per_s / len(workers))}/s from each of {len(workers)}" if len(workers) > 1 else ""
        text = f"at most {bytes_text(bytes_per_s)}/s{share}" if bytes_per_s else "as fast as it goes"
        printer.value(
            {"peer": cluster_name, "bytes_per_s": bytes_per_s, "workers": workers}, f"{cluster_name} is sent {text}"
        )


def removehost(
    invocation: Invocation,
    host: Annotated[str, Argument(metavar="HOST", help="The host's slot, as status shows it.")],
) -> None:
    """Remove a host that is gone for good, once none of its files is needed."""
    with invocation.connect() as (cluster, printer):
        cluster.operations.remove_host(host)
        printer.value({"removed": host}, f"host {host} is removed from {cluster.name}")


def drain(
    invocation: Invocation,
    cluster_name: PeerArgument,
    table: Annotated[str, table_option("Only this table.")] = "",
    timeout_s: Annotated[float, timeout_option("How long to wait.", "--timeout-s", "--timeout")] = 3600,
) -> None:
    """Wait until a peer has everything that is written by now."""
    with invocation.connect() as (cluster, printer):
        layout = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        with printer.bar(*layout, TimeRemainingColumn()) as bar:
            drained = cluster.drain(cluster_name, table, timeout_s, _reporting(printer, bar))
        what = f"{table} at {cluster_name}" if table else cluster_name
        rate = f", {bytes_text(drained.pending_bytes / drained.seconds)}/s" if drained.seconds >= 0.1 else ""
        arrived = (
            f"{bytes_text(drained.pending_bytes)} in {counted(drained.files, 'file')} arrived "
            f"within {seconds_text(drained.seconds)}{rate}"
        )
        printer.value(drained, f"{what} is drained: {arrived if drained.files else 'nothing was pending'}")
        for name in drained.bootstrapping:
            wait = f"walship bootstrap {cluster_name} -t {name} --wait 600"
            printer.note(f"{name} is being bootstrapped at {cluster_name}; to wait for it: {wait}")


def for_each(names: Sequence[str], act: Callable[[str], None], printer: Printer, what: str = "tables") -> None:
    """Act on each; one that fails is reported and does not stop the others. ``what`` they are.

    Raises:
        ReplicationError: the one failed, or, of several, which.
    """
    if len(names) == 1:
        act(names[0])
        return
    failed = []
    for name in names:
        try:
            act(name)
        except ReplicationError as error:
            printer.note(f"{name}: {error}")
            failed.append(name)
    if failed:
        left = f"{len(failed)} of {len(names)} {what} were left as they are: {', '.join(failed)}"
        raise RequestError(left, "The reasons are above")


def _reporting(printer: Printer, bar: Progress) -> Callable[[int, int], None]:
    """What shows how a drain goes: a bar on a terminal, a line now and then elsewhere."""
    task, reported_s = bar.add_task("draining", total=None), time.monotonic()

    def report(pending: int, left: int) -> None:
        nonlocal reported_s
        bar.update(task, total=pending, completed=pending - left, description=f"{bytes_text(left)} left")
        if bar.disable and not printer.as_json and time.monotonic() - reported_s > _REPORT_EVERY_S:
            reported_s = time.monotonic()
            printer.note(f"{bytes_text(left)} of {bytes_text(pending)} left")

    return report


def _stopped(workers: tuple[str, ...]) -> str:
    return f"The worker on {', '.join(workers)} has stopped sending to it" if workers else "No worker is running"
