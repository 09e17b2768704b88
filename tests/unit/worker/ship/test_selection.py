"""Which frames go to a peer."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from replication.core.frame import ZERO_HASH, Codec, FrameKind, FrameView, SealedHeader
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import Phase, Rule
from replication.worker.ship.selection import FrameDecision, FrameFilter

EAST, WEST = ClusterId("east", UUID(int=1)), ClusterId("west", UUID(int=2))
WAL, TABLE = FileId(EAST, "h0", 0), UUID(int=7)
RULE = Rule("west", TABLE, "g", "ops.t", 1, {WAL: 3})


def frame(sequence: int, *provenance: ClusterId) -> FrameView:
    header = SealedHeader(
        FrameKind.DATA, Codec.NONE, TABLE, "g", WAL, sequence, 1, 1, 1, 1, ZERO_HASH, ZERO_HASH, ZERO_HASH, 0
    )
    return FrameView(0, 1, 2, 3, provenance or (EAST,), header, ZERO_HASH)


def test_a_frame_goes_from_the_first_one_owed_and_never_back() -> None:
    selection = FrameFilter.of(WEST, [RULE])
    assert selection.judge(frame(2)) is FrameDecision.SKIP
    assert selection.judge(frame(3)) is FrameDecision.SEND
    assert selection.judge(frame(3, EAST, WEST)) is FrameDecision.SKIP
    assert selection.without(TABLE, "dropped").judge(frame(3)) is FrameDecision.WITHHOLD


def test_nothing_goes_for_a_table_that_needs_a_bootstrap_until_one_begins() -> None:
    phases = {
        phase: FrameFilter.of(WEST, [replace(RULE, phase=phase)]).judge(frame(3))
        for phase in (Phase.LIVE, Phase.BOOTSTRAPPING, Phase.NEEDS_BOOTSTRAP)
    }
    assert phases == {
        Phase.LIVE: FrameDecision.SEND,
        Phase.BOOTSTRAPPING: FrameDecision.SEND,
        Phase.NEEDS_BOOTSTRAP: FrameDecision.SKIP,
    }
