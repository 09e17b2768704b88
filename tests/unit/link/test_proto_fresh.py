"""Generated protobuf code is what proto/walship.proto makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from replication.link._pb import walship_pb2 as pb
from replication.link.base import Reason

ROOT = Path(__file__).resolve().parents[3]


def test_generated_code_is_fresh() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "gen_proto.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_reason_has_its_name_on_the_wire() -> None:
    assert set(Reason.__members__) == set(pb.Reason.keys()) - {"UNSPECIFIED"}
