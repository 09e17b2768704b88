"""Deletes that are not forgotten, since rows from before them may yet count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.tables.maintenance import trim
from replication.core.ids import StreamId
from replication.ledger.base import Quarantined
from tests.integration.test_bootstrap_purged import World, now, stored
from tests.sites import rows


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_delete_is_not_forgotten_while_a_lost_write_is_kept(world: World) -> None:  # scenario 25
    """Merged later, an older one would bring the row back."""
    world.write(0, 4)
    lost = Quarantined(world.wal.file, 256, 300, world.spec.uuid, "it came too late", "/q/1", 1, succession="a -> b")
    world.east.ledger.replay.quarantine(lost, (StreamId(world.wal.file, world.spec.uuid, "default"), 0))
    world.wal.delete(world.spec, [{"id": 1}])
    world.catch_up()
    world.present.append(world.spec, rows(9, 1))
    world.fold_and_trim()
    assert stored(world.east, world.spec.name + "__tombstones") == 1
    world.east.ledger.replay.discard(lost.file, lost.begin, now())
    trim(world.east.tables, world.east.ledger, world.spec, now(), 0.0)
    assert stored(world.east, world.spec.name + "__tombstones") == 0
