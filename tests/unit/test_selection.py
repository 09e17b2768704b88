"""Which frames go to a peer."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from replication.core.frame import ZERO_HASH, Codec, FrameView, Kind, SealedHeader
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import Phase, Rule
from replication.worker.selection import Selection, Verdict

EAST, WEST = ClusterId("east", UUID(int=1)), ClusterId("west", UUID(int=2))
WAL, TABLE = FileId(EAST, "h0", 0), UUID(int=7)
RULE = Rule("west", TABLE, "g", "ops.t", 1, {WAL: 3})


def frame(sequence: int, *provenance: ClusterId) -> FrameView:
    header = SealedHeader(
        Kind.DATA, Codec.NONE, TABLE, "g", WAL, sequence, 1, 1, 1, 1, ZERO_HASH, ZERO_HASH, ZERO_HASH, 0
    )
    return FrameView(0, 1, 2, 3, provenance or (EAST,), header, ZERO_HASH)


def test_a_frame_goes_from_the_first_one_owed_and_never_back() -> None:
    selection = Selection.of(WEST, [RULE])
    assert selection.judge(frame(2)) is Verdict.SKIP
    assert selection.judge(frame(3)) is Verdict.SEND
    assert selection.judge(frame(3, EAST, WEST)) is Verdict.SKIP
    assert selection.without(TABLE, "dropped").judge(frame(3)) is Verdict.WITHHOLD


def test_nothing_goes_for_a_table_that_needs_a_bootstrap_until_one_begins() -> None:
    phases = {
        phase: Selection.of(WEST, [replace(RULE, phase=phase)]).judge(frame(3))
        for phase in (Phase.LIVE, Phase.BOOTSTRAPPING, Phase.NEEDS_BOOTSTRAP)
    }
    assert phases == {
        Phase.LIVE: Verdict.SEND,
        Phase.BOOTSTRAPPING: Verdict.SEND,
        Phase.NEEDS_BOOTSTRAP: Verdict.SKIP,
    }
