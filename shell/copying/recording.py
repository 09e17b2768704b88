"""The timeline that a copy is recorded on: that of the cluster that the command names."""

from __future__ import annotations

from shell.cli.invocation import Invocation


def timeline_of(invocation: Invocation) -> str:
    """The address of the named cluster's timeline; "" when the command names no cluster."""
    if not invocation.names_cluster:
        return ""
    from peer.client.connect import find_config  # deferred: most copies are of no cluster

    return find_config(invocation.find().target).timeline_url
