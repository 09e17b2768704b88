"""status: lag, errors and disk use."""

from __future__ import annotations

import time
from typing import Annotated

from typer import Option

from peer.client.contacts import known_peer
from shell.cli.invocation import Invocation
from shell.status.page import show_status


def status(
    invocation: Invocation,
    peer: Annotated[str | None, Option("--peer", metavar="CLUSTER", help="Show only this peer.")] = None,
    watch: Annotated[bool, Option("--watch", "-w", help="Repeat every two seconds until Ctrl-C.")] = False,
) -> None:
    """Show lag, errors and disk use, here and at each peer."""
    with invocation.connect() as (cluster, printer):
        if peer is not None:
            known_peer(cluster.ledger, peer)
        while True:
            found = cluster.status() if peer is None else cluster.status().of_peer(peer)
            if printer.as_json:
                printer.value(found)
            else:
                if watch and printer.out.is_terminal:  # in place of the page before
                    printer.out.clear()
                    printer.header(cluster.name)
                show_status(printer, found)
            if not watch:
                return
            time.sleep(2)
