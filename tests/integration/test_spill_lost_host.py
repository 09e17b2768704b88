"""Files in the store of a host that is gone: another host salvages them, and until then the host is not forgotten."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.client.operations import Operations
from peer.repair.salvage import SalvageSite, plan_salvage, salvage
from replication.coordination.base import HostRecord
from replication.errors import RequestError
from replication.ledger.base import FileKind
from tests.integration.test_spill import World
from tests.waiting import wait_until


def test_a_host_that_is_gone_loses_nothing_that_it_moved_to_the_store(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        with world.east.worker():
            wait_until(lambda: world.stored(wal))
        other = stack.enter_context(world.east.host("h1"))
        other.coordination.put_host(HostRecord("h0", "/data", ""))
        operations = Operations(other.ledger, other.coordination)
        where = SalvageSite(other.config, other.ledger, other.files, other.coordination)
        (control,) = [row.file for row in other.ledger.files.all("h0") if row.kind is FileKind.CONTROL]
        salvage(where, control)
        with pytest.raises(RequestError, match="host h0 has 1 file of this cluster.*salvage"):
            operations.remove_host("h0")
        plan = plan_salvage(where, wal.file)
        assert not plan.lost and not plan.lacking
        assert salvage(where, wal.file).copies is not None
        assert not list(tmp_path.glob("store/**/*.wal"))
        operations.remove_host("h0")
        receiver = stack.enter_context(world.west.receiver())
        stack.enter_context(other.worker())
        other.assign(world.west.cluster, receiver.port)
        wait_until(lambda: world.there(world.spec) == 3, what="the rows")
