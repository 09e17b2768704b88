"""Callers that a receiver must not trust: with a certificate of its authority, or as another user of the machine."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from replication.core.ids import ClusterId
from replication.link import channel
from replication.link.base import PeerLink
from replication.link.grpc_client import connect
from replication.link.tls import LinkTls

NOBODY = 65534


@contextmanager
def memory_below(mib: int) -> Iterator[None]:
    """The resident memory of this process grows by no more than so much in the block, at its peak."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before_kib = _resident_kib("VmRSS")
    yield
    grown_mib = (_resident_kib("VmHWM") - before_kib) / 1024
    assert grown_mib <= mib, f"memory grew by {grown_mib:.0f} MiB, more than {mib} MiB"


def _resident_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


@contextmanager
def calling(port: int, to: str, caller: ClusterId, tls: LinkTls | None) -> Iterator[PeerLink]:
    """A link to a receiver in the name of a cluster."""
    link = connect(f"127.0.0.1:{port}", to, caller, tls=tls, timeout_s=20.0)
    try:
        yield link
    finally:
        link.close()


@contextmanager
def raw_channel(port: int, to: str, tls: LinkTls, **options: int) -> Iterator[grpc.Channel]:
    """A channel to a receiver, for bytes that no ``PeerLink`` sends; ``options`` are names and values of gRPC's."""
    given = [*channel.client_options(8 << 20, to), *((f"grpc.{key}", value) for key, value in options.items())]
    made = grpc.secure_channel(f"127.0.0.1:{port}", tls.client(), options=given)
    try:
        yield made
    finally:
        made.close()


def metadata(caller: ClusterId, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """What every call carries."""
    return ((channel.CALLER_KEY, str(caller)), *more)


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
