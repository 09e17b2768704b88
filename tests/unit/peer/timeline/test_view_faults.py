"""Views when something fails, or happens at the same time."""

from __future__ import annotations

import pytest

from peer.timeline.stores.memory import MemoryViews
from peer.timeline.views import Views
from replication.core.timeline.instants import FileVersion
from tests.datasets_made import OUT, Dataset, Listing


@pytest.fixture
def dataset() -> Dataset:
    made = Dataset({"p/a@0": 1, "p/b@0": 1, "q/a@0": 1})
    made.publish("p/a@1", replaces=("p/a@0",))
    return made


@pytest.mark.parametrize("bytes_max", range(0, 6000, 200))
def test_a_partition_that_has_nothing_is_answered_however_little_room_there_is(
    dataset: Dataset, bytes_max: int
) -> None:
    for count in range(2, 6):
        dataset.publish(f"p/a@{count}", replaces=(f"p/a@{count - 1}",))

    class Once(Listing):
        def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
            assert not made.calls, "it is listed again and again"
            return super().files(dataset, root, partition)

    made = dataset
    views = Views(dataset.timeline, MemoryViews(), Once(dataset), remembered_bytes_max=bytes_max)
    views.sync()
    assert views.latest(OUT, "nowhere") == []
