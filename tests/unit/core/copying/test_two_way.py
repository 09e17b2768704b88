"""What a two-way sync decides for one path."""

from __future__ import annotations

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import RelativePath
from replication.core.copying.two_way import Agreed, SideState, SyncAction, conflict_path, sync_action

OLD, NEW, OTHER = SideState(1, 1), SideState(2, 2), SideState(3, 3)


@pytest.mark.parametrize(
    ("first", "second", "agreed", "action"),
    [
        (OLD, OLD, True, SyncAction.NOTHING),
        (NEW, OLD, True, SyncAction.TO_SECOND),
        (OLD, NEW, True, SyncAction.TO_FIRST),
        (NEW, None, False, SyncAction.TO_SECOND),
        (None, NEW, False, SyncAction.TO_FIRST),
        (None, OLD, True, SyncAction.REMOVE_SECOND),
        (OLD, None, True, SyncAction.REMOVE_FIRST),
        (None, NEW, True, SyncAction.TO_FIRST),
        (NEW, None, True, SyncAction.TO_SECOND),
        (NEW, OTHER, True, SyncAction.COMPARE),
        (NEW, OTHER, False, SyncAction.COMPARE),
        (None, None, True, SyncAction.NOTHING),
    ],
)
def test_a_change_is_copied_a_removal_follows_and_a_change_wins_over_a_removal(
    first: SideState | None, second: SideState | None, agreed: bool, action: SyncAction
) -> None:
    assert sync_action(first, second, Agreed(OLD, OLD) if agreed else None) is action


def test_the_older_version_of_a_conflict_keeps_its_extension() -> None:
    def kept(name: str, number: int = 0, time_s: int = 1_700_000_000) -> str:
        return conflict_path(FileAttributes(RelativePath(name), 1, time_s * 10**9), "first", number)

    assert kept("a/b.csv") == "a/b.conflict-first-20231114T221320Z.csv"
    assert kept(".profile", 2) == ".profile.conflict-first-20231114T221320Z-2"
    assert kept("x", time_s=10**12) == "x.conflict-first-99991231T235959Z"
    assert kept("x", time_s=-(10**12)) == "x.conflict-first-00010101T000000Z"
    for name in ("n" * 255, "n" * 251 + ".csv", "n." + "x" * 253, "é" * 123 + ".parquet"):
        assert len(kept(f"a/{name}").encode()) <= 2 + 255 and kept(name) != kept(name, 1)
    assert kept("é" * 125 + ".csv").endswith("é.conflict-first-20231114T221320Z.csv")
