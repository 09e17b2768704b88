"""``--wait`` of verbs that write: the cluster is checked first, and durable rows are reported if the wait fails."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from peer.client.cluster import Cluster
from replication.core.position import Position
from replication.errors import PeerUnavailableError, ReplicationError
from shell.cli.render import Printer


@dataclass(frozen=True, slots=True)
class Wait:
    """What ``--wait`` waits for: rows that are ``until`` (durable, applied, visible) at a cluster."""

    cluster: str | None
    until: str
    timeout_s: float


def check_wait(cluster: Cluster, name: str | None) -> None:
    """Raise UnknownPeerError if no route leads to the cluster, before anything is written; None waits for nothing."""
    if name is not None and name != cluster.name:
        with suppress(PeerUnavailableError):  # it may answer later
            cluster.contacts.locate(name)


def print_written(
    cluster: Cluster, printer: Printer, result: Mapping[str, object], text: str, position: Position | None, wait: Wait
) -> None:
    """Wait for rows that are durable here, and print the result; if the wait fails, before its error is raised.

    Args:
        cluster: where they are durable.
        printer: prints.
        result: for JSON; the position and the seconds waited are added.
        text: for people.
        position: of the rows; None if there are none.
        wait: what to wait for.
    """
    shown = {**result, "waited_seconds": 0.0, "position": None if position is None else json.loads(position.to_json())}
    if wait.cluster is None or position is None:
        printer.value(shown, text)
        return
    began = time.monotonic()
    try:
        cluster.wait(position, cluster=wait.cluster, until=wait.until, timeout_s=wait.timeout_s)
    except ReplicationError:
        with suppress(OSError):  # a reader that has gone hides no error
            printer.value(shown, text)
        raise
    waited = time.monotonic() - began
    shown["waited_seconds"] = round(waited, 3)
    printer.value(shown, f"{text}, {wait.until} at {wait.cluster} after another {waited:.1f} s")
