"""A following handle that a callback of an append tries to close."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from replication.core.position import Position
from replication.core.roles import Role
from replication.errors import ReadOnlyClusterError, RequestError
from tests.unit.peer.client.test_following import Clusters, clusters, row
from tests.waiting import wait_until

__all__ = ["clusters"]
pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("clusters", [2.0], indirect=True)
@pytest.mark.parametrize("is_active", [True, False])
def test_nothing_of_a_handle_is_closed_by_a_callback_and_the_next_append_is_written(
    clusters: Clusters, is_active: bool
) -> None:
    """Callbacks run in the commit thread, or in the one that sends again; neither can wait for itself."""
    handle, raised = clusters.follow(), list[Exception]()
    handle.upsert("ops.log", [row(0)])

    def close(_: Future[Position]) -> None:
        try:
            handle.close()
        except Exception as error:
            raised.append(error)

    if not is_active:
        clusters.set_role("east", Role.STANDBY, 2)
    appended = handle.upsert_async("ops.log", [row(1)])
    appended.add_done_callback(close)
    if not is_active:
        with pytest.raises(ReadOnlyClusterError):
            appended.result(20)
    wait_until(lambda: raised)
    assert [type(each) for each in raised] == [RequestError] and not handle._closing.is_set()
    if not is_active:
        clusters.set_role("east", Role.ACTIVE, 3)
    assert handle.upsert("ops.log", [row(2)]).cluster.name == "east"
