"""What a witness keeps of clusters, and who may end whose role epochs there."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from uuid import UUID

import pytest

from replication.coordination.base import Node, Tree
from replication.coordination.witness import Witness, Witnessed
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, FormatError, SuccessionError
from tests.fakes.coordination import MemoryEnsemble

EAST, WEST, NORTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "north"), 1))


@pytest.fixture
def third() -> MemoryEnsemble:
    return MemoryEnsemble()


def opening(ensemble: MemoryEnsemble) -> Callable[[], Tree]:
    def opened() -> Tree:
        tree = ensemble.tree()
        tree.start(lambda: None, 1.0)
        return tree

    return opened


def test_who_ends_an_epoch_learns_the_longest_lease_and_no_other_cluster_can_end_it_again(
    third: MemoryEnsemble,
) -> None:
    witness = Witness(opening(third), "/deep/down")
    assert witness.read(EAST) == Witnessed()
    assert [witness.confirm(EAST, lease_s) for lease_s in (5.0, 9.0, 7.0)] == [0, 0, 0]
    assert [witness.end(EAST, 2, WEST) for _ in range(2)] == [9.0, 9.0]
    assert witness.confirm(EAST, 1.0) == 2
    for epoch in (2, 1):
        with pytest.raises(SuccessionError, match="west:.* took over from east with epoch 2, so north cannot"):
            witness.end(EAST, epoch, NORTH)
    assert witness.end(EAST, 3, NORTH) == 9.0
    with pytest.raises(SuccessionError):
        witness.end(EAST, 2, WEST)
    assert (witness.confirm(EAST, 1.0), witness.confirm(WEST, 1.0)) == (3, 0)
    assert not third._trees


@pytest.mark.parametrize("late", ["get", "check"])
def test_a_lease_that_is_confirmed_while_its_epoch_ends_is_known_to_one_of_the_two(
    third: MemoryEnsemble, late: str
) -> None:
    witness = Witness(opening(third), "/w")
    witness.confirm(EAST, 1.0)
    ended = list[float]()

    def interfere(call: str, path: str) -> None:
        if call == late:
            third.fault = third.fault_after = None
            ended.append(witness.end(EAST, 2, WEST))

    if late == "get":
        third.fault_after = interfere
    else:
        third.fault = interfere
    confirmed = witness.confirm(EAST, 4.0 if late == "get" else 1.0)
    assert confirmed == 2 and ended == [1.0]


def test_what_is_read_is_not_older_than_the_call_though_the_server_of_its_session_lags(third: MemoryEnsemble) -> None:
    witness = Witness(opening(third), "/w")
    witness.confirm(EAST, 9.0)

    class Lagging:
        """Its server has nothing yet; it has all once the quorum has answered."""

        def __init__(self) -> None:
            self.of, self.lags = opening(third)(), True

        def check(self, path: str, version: int) -> bool:
            self.lags = False
            return self.of.check(path, version)

        def get(self, path: str) -> Node | None:
            return None if self.lags else self.of.get(path)

        def close(self) -> None:
            self.of.close()

    lagging = Witness(lambda: cast(Tree, Lagging()), "/w")
    assert lagging.read(EAST).lease_s == 9.0, "else a failover would not wait for the leases"
    assert lagging.read(WEST) == Witnessed()


def test_a_witness_that_does_not_answer_confirms_nothing(third: MemoryEnsemble) -> None:
    witness = Witness(opening(third), "/w")

    def cut(call: str, path: str) -> None:
        raise CoordinationError("cut off")

    third.fault = cut
    for asked in (lambda: witness.confirm(EAST, 1.0), lambda: witness.read(EAST), lambda: witness.end(EAST, 2, WEST)):
        with pytest.raises(CoordinationError, match="cut off"):
            asked()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"ended": "x", "successor": "", "lease_s": 1}'])
def test_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError):
        Witnessed.decode(content)
