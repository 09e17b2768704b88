"""A table that is altered just when its older rows are to be sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.alter import add_column
from replication.core.routes.bootstrap import Coverage
from replication.ledger.base import Bootstrap
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from tests.bootstrap_pair import Pair
from tests.sites import Wal, rows


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_values_of_a_column_that_is_added_meanwhile_arrive(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.write(0, 5)
    pair.begin()
    bootstraps: Any = type(pair.east.ledger.bootstraps)
    covered = bootstraps.covered

    def alter_first(self: Any, wanted: Bootstrap) -> tuple[list[Coverage], int]:
        monkeypatch.setattr(bootstraps, "covered", covered)
        add = partial(add_column, name="more", kind=pa.int64(), group="default", uuid=uuid4(), now=5)
        pair.spec = pair.east.ledger.tables.alter(pair.spec.uuid, add)
        wal = Wal(pair.east, "w9", "h9")  # of a host that ships nothing now
        wal.append(pair.spec, rows(7, 1).append_column("more", pa.array([8], pa.int64())))
        Registrar(
            pair.east.ledger, HostFiles(pair.east.ledger, pair.east.files, "h9", str(Path(wal.path).parent))
        ).run_once()
        pair.east.replay()
        found: tuple[list[Coverage], int] = covered(self, wanted)
        return found

    monkeypatch.setattr(bootstraps, "covered", alter_first)
    pair.east.keeper.run_once()
    pair.connect()
    pair.finish()
    pair.level()
    assert {row["id"]: row["more"] for row in pair.west.shown(pair.spec)} == dict.fromkeys(range(5)) | {7: 8}
