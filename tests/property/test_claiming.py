"""Claims: by whatever routes and in whatever order frames come, each counts once and applied is never overstated."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import UNKNOWN_HASH, Ranges
from replication.ledger.base import Claim
from replication.ledger.decisions import claiming
from replication.ledger.decisions.claiming import Held, Run, judge
from tests.budget import examples
from tests.contract.ledger_stores import FRAME, HEADER, WEST, Route, applied, claims, stream, table, wal
from tests.fakes.ledger import MemoryLedger

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
S, W = stream(FLIGHTS, wal()), stream(WEATHER, wal())
LAST = 14
groups = st.lists(st.tuples(st.integers(0, LAST), st.integers(1, 5)), min_size=1, max_size=12)


def as_held(key: int, run: Run, divergent: bool = False) -> Held:
    return Held(key, 1, run.seq_begin, run.seq_end, run.previous, run.last, divergent)


@given(groups)
def test_every_sequence_is_claimed_exactly_once(seen: list[tuple[int, int]]) -> None:
    keys = count(1)
    held: list[Held] = []
    wanted: set[int] = set()
    for begin, size in seen:
        verdict = judge(claims(S, begin, begin + size, 0), held)
        assert not verdict.divergent and not verdict.contradicted
        new = {n for run in verdict.claimed for n in range(run.seq_begin, run.seq_end)}
        again = {n for run in verdict.duplicate for n in range(run.seq_begin, run.seq_end)}
        assert new == set(range(begin, begin + size)) - wanted and again == set(range(begin, begin + size)) & wanted
        wanted |= new
        held += [as_held(next(keys), run) for run in verdict.claimed]
    assert {n for h in held for n in range(h.begin, h.end)} == wanted


@given(groups, st.lists(st.tuples(st.integers(0, LAST), st.integers(1, 5)), max_size=4))
def test_sequences_of_unknown_hashes_contradict_nothing(
    seen: list[tuple[int, int]], told: list[tuple[int, int]]
) -> None:
    """After a ledger was lost: what rows tell counts as claimed, and frames that come are duplicates or new."""
    here = Ranges.union_of((begin, begin + size) for begin, size in told)
    held = [Held(0, None, begin, end, UNKNOWN_HASH, UNKNOWN_HASH) for begin, end in here]
    for begin, size in seen:
        verdict = judge(claims(S, begin, begin + size, 0), held)
        assert not verdict.divergent and not verdict.contradicted
        new = Ranges.union_of((run.seq_begin, run.seq_end) for run in verdict.claimed)
        assert new == Ranges.of((begin, begin + size)).subtract(here)
        here = here.union(new)
        held += [as_held(1, run) for run in verdict.claimed]


@given(groups, st.integers(1, LAST))
def test_two_histories_never_mix_in_what_is_claimed(seen: list[tuple[int, int]], fork: int) -> None:
    """True frames and, from ``fork`` on, false ones arrive in turns; a joined run is of one history only."""
    held: list[Held] = []
    for turn, (begin, size) in enumerate(seen):
        history = "false" if turn % 2 and begin >= fork else ""
        verdict = judge(claims(S, begin, begin + size, 0, history), held)
        held += [as_held(1, run) for run in verdict.claimed] + [as_held(1, run, True) for run in verdict.divergent]
    kept = sorted((h for h in held if not h.divergent), key=lambda h: h.begin)
    for one, two in zip(kept, kept[1:], strict=False):
        assert one.end <= two.begin
        if one.end == two.begin:
            assert one.last == two.previous


frames = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3), st.integers(1, 3)), max_size=14)


def in_file_order(seen: list[tuple[int, int, int]], size: int = FRAME) -> list[Claim]:
    """Frames of any sequence and any hashes, one after the other in a file."""
    return [
        Claim(S, n, bytes([previous]) * 32, bytes([last]) * 32, at * size, (at + 1) * size, 0)
        for at, (n, previous, last) in enumerate(seen)
    ]


@given(frames)
def test_in_whatever_order_frames_of_one_message_come_none_is_claimed_twice(seen: list[tuple[int, int, int]]) -> None:
    runs = sorted(judge(in_file_order(seen), []).claimed, key=lambda run: run.seq_begin)
    for one, two in zip(runs, runs[1:], strict=False):
        assert one.seq_end <= two.seq_begin
        assert one.seq_end < two.seq_begin or one.last == two.previous


@given(frames)
def test_only_runs_beside_a_frame_decide_about_it(seen: list[tuple[int, int, int]]) -> None:
    """As if every run of the message were looked at."""
    found = judge(in_file_order(seen), [])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(claiming, "_near", lambda claim, claimed, runs: list(claimed))
        assert judge(in_file_order(seen), []) == found


def test_frames_with_gaps_are_compared_with_their_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    count, compared = 20_000, [0]
    real = claiming._contradicts

    def counted(claim: Claim, held: Held) -> bool:
        compared[0] += 1
        assert compared[0] <= 6 * count
        return real(claim, held)

    monkeypatch.setattr(claiming, "_contradicts", counted)
    decision = judge(in_file_order([(2 * n, 1, 1) for n in range(count)]), [])
    assert len(decision.claimed) == count


@examples(40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("land"), st.integers(0, 1), st.integers(0, LAST), st.integers(1, 4), st.integers(0, 2)),
            st.tuples(st.just("apply"), st.integers(0, 1), st.integers(0, 100), st.just(0), st.integers(0, 1)),
        ),
        max_size=25,
    )
)
def test_the_ledger_never_says_applied_before_every_table_is(steps: list[tuple[str, int, int, int, int]]) -> None:
    ledger = MemoryLedger(WEST)
    tables = (FLIGHTS, WEATHER)
    for spec in tables:
        ledger.tables.create(spec)
    routes = [Route(ledger, source=wal(number)) for number in range(2)]
    # per route: a frame's end; of the one that was first of its sequence: table, route, end, and that of its
    # registration
    frames: list[list[tuple[int, int, int, int, int]]] = [[], []]
    marks = [[HEADER, HEADER], [HEADER, HEADER]]  # per route and table
    seen: dict[tuple[int, int], tuple[int, int, int]] = {}
    for number, (step, at, value, size, which) in enumerate(steps):
        route = routes[at]
        if step == "land":
            both = (0, 1) if which == 2 else (which,)
            upto = route.at + FRAME * size * len(both)
            for of in both:
                for n in range(value, value + size):
                    end = HEADER + FRAME * (len(frames[at]) + 1)
                    frames[at].append((end, of, *seen.setdefault((of, n), (at, end, upto))))
            route.land(*(claims((S, W)[of], value, value + size, 0) for of in both))
        else:
            offset = HEADER + (route.at - HEADER) // FRAME * value // 100 * FRAME
            marks[at][which] = max(marks[at][which], offset)
            applied(ledger, tables[which], {route.file: offset}, number)
        for index, of_route in enumerate(routes):
            waiting = [end for end, of, by, claimed, _ in frames[index] if claimed > marks[by][of]]
            true_prefix = min(waiting) - FRAME if waiting else of_route.at
            row = ledger.files.get(of_route.file)
            assert row is not None and row.length == of_route.at
            assert row.applied <= true_prefix
            if all(registered <= marks[by][of] for _, of, by, _, registered in frames[index]):
                assert row.applied == row.length
            assert ledger.landing.applied_prefix([of_route.source])[of_route.source] <= row.applied
    found = ledger.landing.coverage()
    for of, key in ((0, S), (1, W)):
        assert found.get(key, Ranges()) == Ranges.of(*((n, n + 1) for o, n in seen if o == of))
    duplicates = sum(p.duplicates.total for p in ledger.replay.pending())
    assert duplicates % FRAME == 0
    ledger.close()


def test_a_fresh_ledger_has_nothing() -> None:
    ledger = MemoryLedger(WEST)
    assert ledger.landing.coverage(UUID(int=1)) == {} and ledger.replay.pending() == []
    ledger.close()
