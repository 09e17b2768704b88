"""What a following handle sends again are the rows of the call, whatever the caller has done with them since."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from peer.client.following import FollowingCluster
from peer.client.search import OpenedCluster
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.rows.mutation import Mutation, cells_of
from replication.errors import ReadOnlyClusterError


class Refusing:
    """A writer that refuses the first append, and keeps the rows of the next."""

    def __init__(self) -> None:
        self.refused = False
        self.rows: Any = None

    def upsert_async(self, spec: object, rows: object, batch_id: str | None = None) -> Future[Position]:
        if not self.refused:
            self.refused = True
            raise ReadOnlyClusterError("the role changed")
        self.rows = rows
        ack: Future[Position] = Future()
        ack.set_result(Position(ClusterId("west", UUID(int=2))))
        return ack

    delete_async = apply_async = upsert_async

    def flush(self) -> None:
        """Nothing waits."""


class Following(FollowingCluster):
    """A handle that moves when the caller has changed its rows."""

    def __init__(self, writer: Refusing) -> None:
        config = SimpleNamespace(writer=SimpleNamespace(append_timeout_s=20.0))
        calls = {"close": lambda: None, "check_may_close": lambda: None}
        parts = SimpleNamespace(writer=writer, tables=SimpleNamespace(get=lambda name: name), **calls)
        super().__init__(OpenedCluster(config, parts), lambda _: pytest.fail("it moved"))  # type: ignore[arg-type]
        self.changed = threading.Event()

    def _move(self, *_: object) -> None:
        assert self.changed.wait(20)


@pytest.mark.parametrize("how", ["upsert_async", "delete_async"])
@pytest.mark.parametrize("form", [lambda row: row, lambda row: (row,), lambda row: [OrderedDict(row), row]])
def test_rows_that_were_changed_after_the_call_are_sent_again_as_they_were(how: str, form: Any) -> None:
    writer, row = Refusing(), {"id": 1, "tags": ["a"]}
    given = form(row)
    with Following(writer) as handle:
        sent = getattr(handle, how)("ops.log", given)
        row["id"] = 2
        row["tags"] = []
        handle.changed.set()
        sent.result(20)
    assert writer.rows == form({"id": 1, "tags": ["a"]})


def test_mutations_that_were_changed_after_the_call_are_sent_again_as_they_were() -> None:
    for of in (lambda one: one, lambda one: [one]):
        writer, mutation = Refusing(), Mutation("r").put("f", "q", "v")
        given = of(mutation)
        with Following(writer) as handle:
            sent = handle.apply_async("ops.cells", given)
            mutation.put("f", "p", "w")
            if isinstance(given, list):
                given.clear()
            handle.changed.set()
            sent.result(20)
        found = [writer.rows] if isinstance(writer.rows, Mutation) else writer.rows
        assert [cell["qualifier"] for cell in cells_of(found, "ops.cells")] == ["q"]
