"""``--wait`` of verbs that write: the cluster is checked first, and durable rows are reported if the wait fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from peer.client.cluster import Cluster
from peer.replay_report import silence
from replication.core.position import Position
from replication.errors import (
    CoordinationError,
    PeerUnavailableError,
    ReplicationError,
    UnknownPeerError,
    WaitTimeoutError,
)
from shell.cli.interrupting import run_beside
from shell.cli.render import Printer
from shell.processes.preflight import running_pid

_LOOK_EVERY_S = 5.0  # a cluster that restarts is ready after that


@dataclass(frozen=True, slots=True)
class Wait:
    """What ``--wait`` waits for: rows that are ``until`` (durable, applied, visible) at a cluster."""

    cluster: str | None
    until: str
    timeout_s: float


def check_wait(cluster: Cluster, name: str | None, table: str) -> None:
    """Raise UnknownPeerError if no route of the table leads to the cluster, before anything is written.

    UnknownTableError if there is no such table. None waits for nothing.
    """
    if name is not None and name != cluster.name:
        spec = cluster.table(table)
        if not any(rule.table == spec.uuid for rule in cluster.ledger.rules.all()):
            raise UnknownPeerError(f"{spec.name} goes to no peer, so not to {name}", "First: walship enablereplication")
        with suppress(PeerUnavailableError):  # it may answer later
            cluster.contacts.locate(name)


def print_written(
    cluster: Cluster, printer: Printer, result: Mapping[str, object], text: str, position: Position | None, wait: Wait
) -> None:
    """Wait for rows that are durable here, and print the result; if the wait fails, before its error is raised.

    JSON has ``result``, to which the position and the seconds waited are added; people get ``text``. ``position`` is
    None if there are no rows.
    """
    shown = {**result, "waited_seconds": 0.0, "position": None if position is None else json.loads(position.to_json())}
    if wait.cluster is None or position is None:
        printer.value(shown, text)
        return
    began = time.monotonic()
    try:
        with _telling_standstill(cluster, printer, wait):
            cluster.wait(position, cluster=wait.cluster, until=wait.until, timeout_s=wait.timeout_s)
    except ReplicationError as error:
        with suppress(OSError):  # a reader that has gone hides no error
            printer.value(shown, text)
        if isinstance(error, WaitTimeoutError):
            error.hint = _standstill(cluster, wait) or error.hint
        raise
    waited = time.monotonic() - began
    shown["waited_seconds"] = round(waited, 3)
    printer.value(shown, f"{text}, {wait.until} at {wait.cluster} after another {waited:.1f} s")


def _telling_standstill(cluster: Cluster, printer: Printer, wait: Wait) -> AbstractContextManager[None]:
    """Tell once if what is waited for cannot come because nothing here works on it; the wait goes on."""

    def look(ended: threading.Event) -> None:
        while not ended.wait(_LOOK_EVERY_S):
            if reason := _standstill(cluster, wait):
                printer.note(f"still waiting: {reason}")
                return

    return run_beside(look, "standstill")


def _standstill(cluster: Cluster, wait: Wait) -> str:
    """Why nothing here works on what is waited for, and what to do; "" if something does."""
    if running_pid(cluster.config.run_dir) is None:
        return f"{cluster.name} does not run on this host, so the rows stay in its WAL. First: walship up"
    is_replayed = wait.cluster == cluster.name and wait.until != "durable"
    with suppress(CoordinationError):  # the wait tells of a ledger that does not answer
        if is_replayed and (silent := silence(cluster.ledger.replay)):
            return f"Replay of {cluster.name} {silent}. If no replay process runs: walship replay"
    return ""
