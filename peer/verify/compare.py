"""Whether two clusters hold the same table: row counts, a content hash that no order changes, and the keys that differ.

Both sides read as of a common replicated time, up to which each has everything, and say one hash. Only when the two
differ do they send hashes of buckets of keys, and only of buckets that differ the keys. Those are looked at again at a
later common time: what changed meanwhile is still moving and says nothing. So a difference that is reported is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from peer.verify.digest import Digest, unequal
from peer.verify.suspects import Suspects
from replication.errors import PeerRefusedError, RequestError
from replication.retries import repeated_on

DIFFERENCES_MAX = 1000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Holding:
    """One cluster's content of a table: its name, row count and content hash (32 hexadecimal digits)."""

    cluster: str
    rows: int
    content: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One key and why it is listed: ``only in east``, ``only in west`` or ``different``, then in which columns."""

    key: dict[str, Any]
    what: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found.

    ``upto`` is the common replicated time in microseconds since 1970 up to which it holds; 0 when there was none that
    both can be read as of (one folded past it), so that each was read as it was just then. ``differences`` are real
    ones, at most ``DIFFERENCES_MAX`` of ``differing``; ``moving`` keys were still being written and are not judged.
    """

    table: str
    left: Holding
    right: Holding
    upto: int
    differing: int = 0
    moving: int = 0
    rounds: int = 1
    differences: tuple[Difference, ...] = field(default=())

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.differing == 0

    @property
    def identical(self) -> bool:
        """Whether the two readings themselves were equal, row count and content hash."""
        return (self.left.rows, self.left.content) == (self.right.rows, self.right.content)


class OpenedSide(Protocol):
    """A table on one cluster as it was at one moment; see ``digest.Reading``."""

    def digest(self) -> Digest:
        """Rows and content hash."""

    def buckets(self) -> Mapping[int, tuple[int, int]]:
        """Rows and content hash of every bucket that holds rows."""

    def keys(self, buckets: Sequence[int]) -> Iterable[pa.RecordBatch]:
        """What names the rows of some buckets, and their hashes."""


class Side(Protocol):
    """A table on one cluster, as the comparison reads it."""

    name: str

    def reached(self) -> tuple[int, int | None]:
        """Replicated time over the origins that feed the table, and the earliest time that it can be read as of.

        Both in microseconds since 1970; the second is None when it can only be read as it is now.
        """

    def open(self, as_of: int | None) -> OpenedSide:
        """All live rows as of a commit time, or now; what was opened before is closed.

        Raises:
            RequestError, PeerRefusedError: it cannot be read as of that time, or just now.
        """


def compare(
    table: str,
    key: Sequence[str],
    left: Side,
    right: Side,
    wait: Callable[[int], bool],
    now: Callable[[], int],
    *,
    rounds_max: int = 5,
    values: Sequence[str] = (),
) -> Verdict:
    """Compare a table on two clusters.

    Args:
        table: its name, for the verdict.
        key: its key columns; empty for an append-only table, whose rows are then compared whole.
        left: one side.
        right: the other.
        wait: blocks until both sides' replicated time has reached the given time (microseconds since 1970); False when
            it did not in time. Keys that differ in readings of no common time are then counted as ``moving``.
        now: the time in microseconds since 1970, not behind any cluster's clock by more than their skew.
        rounds_max: how often differing keys are read again.
        values: the other columns in the order of the sides' ``_values``, to say which differ.
    """
    wait(now())
    with Suspects(key) as suspects:
        verdict, is_cut = _read_both(table, left, right, suspects)
        rounds, settled = 1, 0
        while settled < suspects.count and rounds < rounds_max:
            has_moved = wait(now())
            if not has_moved and not is_cut:
                break
            verdict, is_cut = _read_both(table, left, right, suspects)
            rounds += 1
            settled = suspects.settled
            if not has_moved:
                break
        listed = tuple(
            Difference(seen.key, _what(seen.in_left, seen.in_right, left, right), _columns(seen.values, values))
            for seen in (suspects.listed(DIFFERENCES_MAX) if settled else ())
        )
        return replace(verdict, rounds=rounds, differing=settled, moving=suspects.count - settled, differences=listed)


@repeated_on(RequestError, PeerRefusedError, times=_TRIES)  # folded past the common time just now
def _read_both(table: str, left: Side, right: Side, suspects: Suspects) -> tuple[Verdict, bool]:
    """One round: both sides at once, as of a common time when there is one; and whether there was."""
    (one_t, one_from), (two_t, two_from) = left.reached(), right.reached()
    common = min(one_t, two_t)
    is_cut = common > 0 and one_from is not None and two_from is not None and common >= max(one_from, two_from)
    return _read_at(table, left, right, suspects, common, is_cut), is_cut


def _read_at(table: str, left: Side, right: Side, suspects: Suspects, common: int, is_cut: bool) -> Verdict:
    as_of = common if is_cut else None
    beside = ThreadPoolExecutor(1, thread_name_prefix="verify")
    try:
        waiting = beside.submit(lambda: (opened := right.open(as_of), opened.digest()))
        try:
            one = left.open(as_of)
            left_digest = one.digest()
        except (RequestError, PeerRefusedError):
            waiting.exception()  # the other side is asked again, so it must have answered
            raise
        two, right_digest = waiting.result()
    finally:
        beside.shutdown(wait=False)  # who stops here ends the conversation, and with it what is waited for
    verdict = Verdict(
        table,
        Holding(left.name, left_digest.rows, left_digest.content),
        Holding(right.name, right_digest.rows, right_digest.content),
        common if is_cut else 0,
    )
    buckets = [] if verdict.identical else unequal(one.buckets(), two.buckets())
    suspects.look(one.keys(buckets) if buckets else (), two.keys(buckets) if buckets else ())
    return verdict


def _what(in_left: bool, in_right: bool, left: Side, right: Side) -> str:
    return "different" if in_left and in_right else f"only in {left.name if in_left else right.name}"


def _columns(differ: Sequence[bool], values: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, is_other in zip(values, differ, strict=False) if is_other)
