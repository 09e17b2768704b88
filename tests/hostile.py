"""Callers that a receiver must not trust: with a certificate of its authority, or as another user of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replication.core.ids import ClusterId
from replication.link.base import PeerLink
from replication.link.grpc_client import connect
from replication.link.tls import LinkTls

NOBODY = 65534


@contextmanager
def calling(port: int, to: str, caller: ClusterId, tls: LinkTls | None) -> Iterator[PeerLink]:
    """A link to a receiver in the name of a cluster."""
    link = connect(f"127.0.0.1:{port}", to, caller, tls=tls, timeout_s=20.0)
    try:
        yield link
    finally:
        link.close()


def of_other_users(patch: pytest.MonkeyPatch) -> None:
    """From now on no connection in this process counts as one of the receiver's own user."""
    patch.setattr("replication.link.callers.is_own", lambda peer, port: False)


def run_as_nobody(script: str, *arguments: str) -> str:
    """Run a script that becomes another user where it calls ``os.setuid({NOBODY})``; its output. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    asked = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, env=env, cwd="/", timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
