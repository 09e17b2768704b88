"""Successions in the ledger: which cluster originates in place of which. Part of ``base``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol
from uuid import UUID

from replication.core.ids import ClusterId
from replication.core.succession import Cut, Succession, Successions


class SuccessionRecords(Protocol):
    """Every succession that this cluster has made or learned of."""

    def known(self) -> Successions:
        """All of them."""

    def record(self, succession: Succession) -> Succession:
        """Store a succession and refuse the origin's older epochs; return it joined with what is stored.

        Raises:
            SuccessionError: another cluster has taken over from the origin under that epoch. Nothing was changed.
        """

    def accept(self, succession: Succession) -> Succession:
        """As ``record``, for the successor: refuses a succession that its origin has cancelled.

        Raises:
            SuccessionError: the origin has a newer epoch by now, or another successor. Nothing was changed.
        """

    def cancel(self, origin: ClusterId, epoch: int) -> bool:
        """Have a succession with this epoch refused from now on; False when it is stored already."""

    def take_over(
        self,
        origin: ClusterId,
        successor: ClusterId,
        epoch: int,
        at: int,
        upto: int = 0,
        within: Cut | None = None,
        whole: Collection[UUID] = (),
    ) -> Succession:
        """As ``record``, of a succession that is not planned and whose cut is what this cluster has claimed.

        One transaction reads the claims and stores the succession: what lands later is beyond the cut. When the
        succession is stored already, it is returned as it is. With ``upto``, only what was committed by then counts,
        and of later frames those in ``within``; but all that is claimed of the tables in ``whole``, and of those
        without a key, whose rows cannot be taken back. Writers' clocks then start above ``at``, and above what has
        landed by two microseconds, in which rows can be restated, and lost ones be written again.

        Raises:
            SuccessionError: not everything up to ``upto`` has landed, or as ``record``. Nothing was changed.
        """

    def coverage_after(self, origin: ClusterId, upto: int) -> Cut:
        """The whole coverage of the streams of ``origin`` that may have frames after ``upto``, or may lack some.

        With ``upto`` 0, of those that may lack some: frames up to each table's landed time are all here.
        """

    def contradict(self, succession: Succession) -> None:
        """Keep, for ``status``, that another cluster says it took over under the epoch of a known succession."""

    def contradictions(self) -> tuple[Succession, ...]:
        """The successions that were kept so, without their cuts."""

    def landed_beyond(self, succession: Succession) -> int:
        """How many frames beyond its cut were here when it was learned, less those that count or are kept since.

        Of very many streams only some are counted. None if the ledger was rebuilt after it: nobody knows.
        """

    def highest_epoch(self) -> int:
        """The highest role epoch of any cluster that was stored, 0 for none."""

    def keep_lease(self, cluster: ClusterId, epoch: int, lease_s: float) -> None:
        """Keep that another cluster's writers ask this one before they ack, and for how long they ack then."""

    def lease(self, cluster: ClusterId) -> tuple[int, float]:
        """The newest role epoch under which they asked, and the longest of their leases; zeros when they never did."""

    def note_answer(self, succession: Succession) -> None:
        """Keep that the origin has answered this cluster, its successor, since it was lost."""

    def has_answered(self, succession: Succession) -> bool:
        """Whether it has."""

    def keep_address(self, cluster: ClusterId, zookeepers: str) -> None:
        """Store the ZooKeeper address that another cluster names as its own."""

    def address(self, cluster: ClusterId) -> str:
        """That address; "" when it never said."""
