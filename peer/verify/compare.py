"""Compares a table of two clusters: row counts, a content hash that does not depend on order, and the keys that differ.

Both sides read as of a common replicated time, up to which each has everything. Each sends one hash. When the two
differ, each sends hashes of buckets of keys, and then the keys of the buckets that differ. These keys are read again as
of a later common time. A key that changed meanwhile is moving and is not judged. So every reported difference is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from peer.verify.digest import Digest, unequal
from peer.verify.suspects import Suspects
from peer.verify.verdict import DIFFERENCES_MAX, Difference, Holding, Verdict
from replication.errors import PeerRefusedError, RequestError
from replication.retries import repeated_on

_TRIES = 3


class OpenedSide(Protocol):
    """A table of one cluster at one moment; see ``digest.Reading``."""

    def digest(self) -> Digest:
        """Rows and content hash."""

    def buckets(self) -> Mapping[int, tuple[int, int]]:
        """Rows and content hash of every bucket that holds rows."""

    def keys(self, buckets: Sequence[int]) -> Iterable[pa.RecordBatch]:
        """The keys of the rows of some buckets, and their hashes."""


class Side(Protocol):
    """A table of one cluster, as the comparison reads it."""

    name: str

    def reached(self) -> tuple[int, int | None]:
        """Replicated time over the origins that feed the table, and the earliest time that it can be read as of.

        Both in microseconds since 1970; the second is None when it can only be read as it is now.
        """

    def open(self, as_of: int | None) -> OpenedSide:
        """All live rows as of a commit time, or now. Closes the reading before.

        Raises:
            RequestError, PeerRefusedError: the table cannot be read as of that time, or not now.
        """


def compare(
    table: str,
    key: Sequence[str],
    left: Side,
    right: Side,
    wait: Callable[[], bool],
    *,
    rounds_max: int = 5,
    values: Sequence[str] = (),
) -> Verdict:
    """Compare a table on two clusters.

    Args:
        table: its name, for the verdict.
        key: its key columns; empty for an append-only table, whose rows are compared whole.
        left: one side.
        right: the other side.
        wait: called before each round; blocks until both sides' replicated time has reached that of the call. False
            when that takes too long; then keys that differ in readings of no common time count as ``moving``.
        rounds_max: how often differing keys are read.
        values: the other columns, in the order of the sides' ``_values``.
    """
    wait()
    with Suspects(key) as suspects:
        verdict, is_cut = _read_both(table, left, right, suspects)
        rounds, confirmed = 1, 0
        while confirmed < suspects.count and rounds < rounds_max:
            has_moved = wait()
            if not has_moved and not is_cut:
                break
            verdict, is_cut = _read_both(table, left, right, suspects)
            rounds += 1
            confirmed = suspects.confirmed
            if not has_moved:
                break
        listed = tuple(
            Difference(seen.key, _what(seen.in_left, seen.in_right, left, right), _columns(seen.values, values))
            for seen in (suspects.listed(DIFFERENCES_MAX) if confirmed else ())
        )
        return replace(
            verdict, rounds=rounds, differing=confirmed, moving=suspects.count - confirmed, differences=listed
        )


@repeated_on(RequestError, PeerRefusedError, times=_TRIES)  # a side may fold past the common time just then
def _read_both(table: str, left: Side, right: Side, suspects: Suspects) -> tuple[Verdict, bool]:
    """One round: read both sides at once; and whether they were read as of a common time."""
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
            waiting.exception()  # the next attempt asks this side again, so its answer is awaited
            raise
        two, right_digest = waiting.result()
    finally:
        beside.shutdown(wait=False)  # an interrupt closes the conversation, which ends the thread
    verdict = Verdict(
        table,
        Holding(left.name, left_digest.rows, left_digest.content),
        Holding(right.name, right_digest.rows, right_digest.content),
        common if is_cut else 0,
    )
    buckets = [] if verdict.identical else unequal(one.buckets(), two.buckets())
    if buckets or suspects.count:
        suspects.add_round(one.keys(buckets) if buckets else (), two.keys(buckets) if buckets else ())
    return verdict


def _what(in_left: bool, in_right: bool, left: Side, right: Side) -> str:
    return "different" if in_left and in_right else f"only in {left.name if in_left else right.name}"


def _columns(differ: Sequence[bool], values: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, is_other in zip(values, differ, strict=False) if is_other)
