"""Closed notices as bytes, and replicated time from them."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.clock import Clock, is_far_ahead
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import (
    EVERYTHING,
    FOREIGN_STREAMS_MAX,
    ClosedNotice,
    Replicated,
    RouteCoverage,
    accumulate,
    replicated_time,
)
from replication.errors import FormatError, VersionError

EAST = ClusterId("east", UUID(int=7))
FLIGHTS, WEATHER = UUID(int=1), UUID(int=2)

files = st.builds(FileId, st.just(EAST), st.sampled_from(["h0", "h1"]), st.integers(0, 3))
streams = st.builds(StreamId, files, st.sampled_from([FLIGHTS, WEATHER]), st.sampled_from(["default", "g-1", ""]))
notices = st.builds(
    ClosedNotice,
    st.integers(1, 50),
    st.dictionaries(streams, st.integers(0, 20), max_size=6).map(lambda d: tuple(d.items())),
)
covered = st.dictionaries(streams, st.integers(0, 22).map(lambda n: Ranges.of((0, n))))


def wal(number: int) -> FileId:
    return FileId(EAST, "h0", number)


def stream(number: int = 1, table: UUID = FLIGHTS) -> StreamId:
    return StreamId(wal(number), table, "default")


@given(notices)
def test_a_notice_survives_its_bytes(notice: ClosedNotice) -> None:
    assert ClosedNotice.decode(notice.encode()) == notice


@given(notices, st.data())
def test_a_damaged_notice_is_an_error_never_another_exception(notice: ClosedNotice, data: st.DataObject) -> None:
    raw = notice.encode()
    with pytest.raises(FormatError):
        ClosedNotice.decode(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(VersionError, match="version 9"):
        ClosedNotice.decode(b"\x09" + raw[1:])


@pytest.mark.heavy
@pytest.mark.parametrize("count", [65_535, 65_536])
def test_a_notice_lists_any_number_of_wals_and_many_of_them_take_little_room(count: int) -> None:
    many = ClosedNotice(1, tuple((stream(w), 9) for w in range(count)))
    raw = many.encode()
    assert ClosedNotice.decode(raw) == many
    assert raw[0] == (1 if count == 65_535 else 2)  # older peers read what they can
    if raw[0] == 2:
        assert len(raw) < count * 8
        for cut in (raw[:1], raw[:-1], raw + b"\0"):
            with pytest.raises(FormatError):
                ClosedNotice.decode(cut)


def test_streams_that_shrink_more_than_a_reader_takes_are_not_packed() -> None:
    group = "g" * 63
    many = ClosedNotice(1, tuple((StreamId(wal(0), UUID(int=t), group), 9) for t in range(65_536)))
    assert ClosedNotice.decode(many.encode()) == many


@pytest.mark.parametrize(
    "counts", [(0, 0, 1 << 31), (1 << 30, 0, 0), (0, 1 << 31, 0), (0, 1 << 20, 0), (0, 0, 0), (1, 1, 1 << 20)]
)
def test_a_bomb_takes_no_more_room_than_it_has_bytes(counts: tuple[int, int, int]) -> None:
    bomb = b"\x02" + zlib.compress(struct.pack("<qIII", 1, *counts) + bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(FormatError):
        ClosedNotice.decode(bomb, FOREIGN_STREAMS_MAX)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * len(bomb) + (1 << 20) < 8 << 20


@pytest.mark.parametrize(
    "change",
    [
        lambda notice: ClosedNotice(1 << 62, notice.streams),
        lambda notice: ClosedNotice(-(1 << 62), notice.streams),
        lambda notice: ClosedNotice(1, ((stream(), 1 << 62),)),
        lambda notice: ClosedNotice(1, ((StreamId(wal(1), FLIGHTS, "g'; --"), 1),)),
        lambda notice: ClosedNotice(1, ((StreamId(FileId(EAST, "../h", 1), FLIGHTS, ""), 1),)),
    ],
)
def test_a_notice_says_nothing_that_no_cluster_could_store(change: Callable[[ClosedNotice], ClosedNotice]) -> None:
    with pytest.raises(FormatError):
        ClosedNotice.decode(change(ClosedNotice(1, ())).encode())


def test_a_notice_of_a_thousand_streams_is_compact() -> None:
    many = ClosedNotice(1, tuple((StreamId(wal(w), UUID(int=t), "default"), 9) for w in range(10) for t in range(100)))
    assert len(many.encode()) < 25_000


@given(st.lists(notices, max_size=6), covered, covered)
def test_replicated_time_is_the_largest_notice_with_all_before_it_satisfied(
    seen: list[ClosedNotice], arrived: dict[StreamId, Ranges], applied: dict[StreamId, Ranges]
) -> None:
    applied = {s: r.subtract(r.subtract(arrived.get(s, Ranges()))) for s, r in applied.items()}
    found = replicated_time(seen, lambda _: [EVERYTHING], arrived, applied)

    def satisfied(notice: ClosedNotice) -> bool:
        return all(applied.get(s, Ranges()).contains(0, last + 1) for s, last in notice.streams)

    times = [n.t for n in seen if all(satisfied(m) for m in seen if m.t <= n.t)]
    assert found.t == max(times, default=0)
    assert bool(found.held_by) == (not seen or found.t < max(n.t for n in seen))


@given(st.lists(notices, min_size=2, max_size=5), covered)
def test_thinning_never_moves_replicated_time(seen: list[ClosedNotice], applied: dict[StreamId, Ranges]) -> None:
    seen.sort(key=lambda n: n.t)
    thin = [accumulate(seen[0], seen[1]), *seen[2:]]
    before = replicated_time(seen, lambda _: [EVERYTHING], applied, applied).t
    after = replicated_time(thin, lambda _: [EVERYTHING], applied, applied).t
    assert after in (before, 0) or (after < before and after in [n.t for n in thin])
    if before >= thin[0].t:
        assert after == before


def test_it_says_whether_sequences_are_missing_or_not_applied() -> None:
    notice = ClosedNotice(10, ((stream(), 4),))
    have = {stream(): Ranges.of((0, 5))}
    missing = replicated_time([notice], lambda _: [EVERYTHING], {stream(): Ranges.of((0, 3))}, {})
    assert missing.t == 0 and "not arrived: sequences [3, 5) of WAL east/h0/000000000001" in missing.held_by
    assert "landed but not applied: sequences [2, 5)" in (
        replicated_time([notice], lambda _: [EVERYTHING], have, {stream(): Ranges.of((0, 2))}).held_by
    )
    assert replicated_time([notice], lambda _: [EVERYTHING], have, have) == Replicated(10)


def test_a_stream_a_later_notice_no_longer_lists_is_still_required() -> None:
    seen = [ClosedNotice(10, ((stream(1), 4),)), ClosedNotice(20, ((stream(2), 0),))]
    have = {stream(2): Ranges.of((0, 1))}
    assert replicated_time(seen, lambda _: [EVERYTHING], have, have).t == 0


def test_only_what_an_open_route_owes_less_waived_gaps_is_required() -> None:
    notice = ClosedNotice(10, ((stream(1), 9), (stream(2), 1), (stream(3, WEATHER), 5)))
    route = RouteCoverage({wal(1): 6}, {wal(1): Ranges.of((7, 8))})
    have = {stream(1): Ranges.of((6, 7), (8, 10)), stream(2): Ranges.of((0, 2))}

    def routes(s: StreamId) -> list[RouteCoverage]:
        return [route] if s.table == FLIGHTS else []

    assert replicated_time([notice], routes, have, have) == Replicated(10)
    lower = replicated_time(
        [notice], lambda s: [route, RouteCoverage({wal(1): 3})] if s.table == FLIGHTS else [], have, have
    )
    assert lower.t == 0 and "[3, 6) [7, 8)" in lower.held_by


def test_before_the_first_notice_it_says_so() -> None:
    assert replicated_time([], lambda _: [], {}, {}, "east") == Replicated(0, "no closed frame of east has come yet")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=30))
def test_the_clock_never_repeats_and_stays_above_what_it_saw(events: list[tuple[bool, int]]) -> None:
    clock, given_out, seen = Clock(), -1, -1
    for is_tick, value in events:
        if is_tick:
            clock = clock.tick(value)
            assert clock.last > given_out and clock.last > seen and clock.last >= value
            given_out = clock.last
        else:
            clock = clock.observe(value)
            seen = max(seen, value)


def test_a_clock_dragged_far_ahead_is_noticed() -> None:
    assert is_far_ahead(61_000_001, 1_000_000) and not is_far_ahead(61_000_000, 1_000_000)
