"""What landed on another host is decoded in Spark's executors, which fetch it over the link themselves."""

from __future__ import annotations

import base64
import os
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from peer.tables.read import read
from replication.tables.spark.iceberg import IcebergTables
from tests.integration.test_hosts import Hosted
from tests.sites import SCHEMA, table
from tests.waiting import wait_until

FRAMES, ROWS, TEXT_BYTES = 5, 1000, 6000


def test_executors_fetch_and_decode_what_lies_on_another_host(
    tmp_path: Path, spark_tables: IcebergTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        west = Hosted(tmp_path, stack, secured=True)
        west.tables = spark_tables
        west.restart()
        spec = table("hosts.executed")
        west.one.ledger.tables.create(spec)
        there = west.two.wal("w2")
        wanted = {}
        for at in range(0, FRAMES * ROWS, ROWS):
            made = {n: base64.b85encode(os.urandom(TEXT_BYTES * 4 // 5)).decode() for n in range(at, at + ROWS)}
            there.append(spec, pa.table({"id": list(made), "text": list(made.values())}, schema=SCHEMA))
            wanted |= made
        west.register(west.two)
        (part,) = west.one.ledger.replay.pending()
        monkeypatch.setattr(spark_tables, "small_bytes", part.end // 2)  # less is decoded by the driver
        with west.two.receiver():
            wait_until(west.knows)
            assert west.replayer.round().frames == FRAMES
        found = read(spark_tables, spec).read_all()
        assert dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True)) == wanted
