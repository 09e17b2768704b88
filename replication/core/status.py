"""ReplicationStatus: which bytes of one file a peer needs and has.

Statuses combine in any order and any number of times (rule 7): shipped ranges by union, ``needed`` and ``applied`` by
max, ``begin`` by min; CLOSED wins. ``finished`` is derived. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import ClosedFileError


class FileState(StrEnum):
    """Whether a file may still grow."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """A peer needs bytes ``[begin, needed)`` of a file. ``shipped`` ranges are durable there, a prefix is ``applied``.

    All are byte offsets of the source file. Skipped bytes (other tables, groups, loops) count as shipped and applied.
    """

    state: FileState
    begin: int
    needed: int
    shipped: Ranges = Ranges()
    applied: int = 0

    @property
    def finished(self) -> int:
        """The end of the contiguous prefix from ``begin`` that is durable at the peer; never more than ``needed``."""
        return max(self.begin, min(self.shipped.prefix(self.begin), self.needed))

    @property
    def remaining(self) -> int:
        """The number of bytes that are not durable at the peer yet."""
        return self.shipped.missing(self.begin, self.needed).total


def reported(shipped: Ranges, applied: int = 0) -> ReplicationStatus:
    """Return the status of a file by the peer's own report; the file is at least that long."""
    needed = max(FILE_HEADER_BYTES, shipped.end, applied)
    return ReplicationStatus(FileState.OPEN, FILE_HEADER_BYTES, needed, shipped, applied)


def combine(one: ReplicationStatus, two: ReplicationStatus) -> ReplicationStatus:
    """Combine two statuses; commutative, associative, idempotent.

    Raises:
        ClosedFileError: one is CLOSED at fewer bytes than the other needs: the file grew after it was closed.
    """
    needed = max(one.needed, two.needed)
    for status in (one, two):
        if status.state is FileState.CLOSED and status.needed < needed:
            raise ClosedFileError(
                f"a file that was CLOSED at {status.needed} bytes now has {needed}",
                "A process writes to a closed file: find out which one, and keep both copies",
            )
    closed = FileState.CLOSED in (one.state, two.state)
    return ReplicationStatus(
        state=FileState.CLOSED if closed else FileState.OPEN,
        begin=min(one.begin, two.begin),
        needed=needed,
        shipped=one.shipped.union(two.shipped),
        applied=max(one.applied, two.applied),
    )


def is_fully_replicated(status: ReplicationStatus) -> bool:
    """Return whether the file is CLOSED and every needed byte is durable at the peer."""
    return status.state is FileState.CLOSED and status.finished >= status.needed


def is_applied(status: ReplicationStatus) -> bool:
    """Return whether the file is fully replicated and all of it is applied at the peer."""
    return is_fully_replicated(status) and max(status.applied, status.begin) >= status.needed


def ranges_needing_replication(status: ReplicationStatus) -> Ranges:
    """Return the ranges that are not shipped yet, in order."""
    return status.shipped.missing(status.begin, status.needed)
