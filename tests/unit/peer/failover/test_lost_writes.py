"""What a person is told of lost writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from peer.client.cluster import Cluster
from peer.failover import lost_writes
from peer.repair.quarantine_actions import saved_frame
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.roles import Role, RoleState
from replication.core.succession import Successions
from replication.errors import CorruptFrameError, WaitTimeoutError
from replication.ledger.base import Quarantined
from tests.sites import table

EAST = ClusterId("east", UUID(int=1))


def keeping(*specs: TableSpec, copy: str = "") -> Cluster:
    """An ACTIVE cluster that keeps a lost write of each table."""
    kept = [
        Quarantined(FileId(EAST, "h0", number), 0, 9, spec.uuid, "late", copy or f"/gone/{number}", 7, succession="s")
        for number, spec in enumerate(specs)
    ]
    ledger = SimpleNamespace(
        replay=SimpleNamespace(quarantined=lambda: kept), successions=SimpleNamespace(known=Successions)
    )
    role = SimpleNamespace(state=RoleState(Role.ACTIVE, 2))
    coordination = SimpleNamespace(role=lambda: role)
    return cast(Cluster, SimpleNamespace(ledger=ledger, coordination=coordination, tables=lambda: list(specs)))


def test_an_error_says_of_which_tables_lost_writes_are_discarded_already(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = table("ops.one"), table("ops.two")
    discarded: list[UUID] = []

    def restate(_: Cluster, spec: TableSpec, *__: Any) -> None:
        if spec is two:
            raise WaitTimeoutError("ops.two has not got what was written here", "See walship status")

    monkeypatch.setattr(lost_writes, "_restate", restate)
    monkeypatch.setattr(lost_writes, "_readable", lambda records: ([SimpleNamespace(record=r) for r in records], []))
    monkeypatch.setattr(lost_writes, "discard_frame", lambda _, record: discarded.append(record.table))
    with pytest.raises(WaitTimeoutError) as late:
        lost_writes.discard(keeping(one, two))
    assert late.value.what == "ops.two has not got what was written here; discarded of other tables: 1 frame"
    assert discarded == [one.uuid]
    with pytest.raises(WaitTimeoutError) as late:
        lost_writes.discard(keeping(two))
    assert late.value.what == "ops.two has not got what was written here"


def test_a_lost_write_whose_copy_is_damaged_is_given_up_as_the_rest_of_a_decision_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "h0-0.frame"
    copy.write_bytes(b"half a fr")
    cluster = keeping(table(), copy=str(copy))
    discarded: list[Quarantined] = []
    monkeypatch.setattr(lost_writes, "discard_frame", lambda _, record: discarded.append(record))
    assert lost_writes.discard(cluster) == 0, "it stays kept"
    remedy = "walship lostwrites discard --leave-applied"
    assert f"or, if a copy is damaged or gone for good: {remedy}" in lost_writes.still_undecided(cluster, "")
    with pytest.raises(CorruptFrameError) as damaged:
        saved_frame(cluster.ledger.replay.quarantined()[0])
    assert remedy in damaged.value.hint
    assert lost_writes.discard(cluster, leave_applied=True) == 1 == len(discarded)
