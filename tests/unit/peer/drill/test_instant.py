"""What a drill forks: the latest time that all tables have, and snapshots from which each can be read as of it."""

from __future__ import annotations

import pytest

from peer.drill.instant import Histories, TableTime, choose_instant, pin, table_time
from peer.tables.latest import Folded
from peer.tables.read import Pinned
from replication.core.definition.alter import set_properties
from replication.errors import RequestError
from replication.tables.base import History, Snapshot
from tests.tables_made import keyed

SPEC = keyed("ops.t")


def history(*snapshots: tuple[str, dict[str, str]]) -> History:
    """A chain of snapshots 1, 2, …, one a second, each with its operation and summary."""
    made = {
        number: Snapshot(number, number - 1 or None, operation, summary, number * 1_000_000)
        for number, (operation, summary) in enumerate(snapshots, 1)
    }
    return History(len(snapshots) or None, made)


def folds(*uptos: int) -> list[tuple[str, dict[str, str]]]:
    return [("overwrite", Folded(upto, upto, upto, upto).to_summary()) for upto in uptos]


def test_all_tables_are_forked_at_the_time_that_the_slowest_has() -> None:
    chosen = choose_instant({"a": TableTime(50, "", 10), "b": TableTime(40, "", 40), "c": TableTime(90)})
    assert (chosen.time, chosen.left_out) == (40, {})


def test_a_table_too_far_behind_the_folds_of_others_is_left_out() -> None:
    stuck = TableTime(1_000_000, "quarantined frame", 0)
    chosen = choose_instant({"stuck": stuck, "a": TableTime(9_000_000, "", 8_000_000), "b": TableTime(8_500_000)})
    assert chosen.time == 8_500_000
    assert chosen.left_out == {
        "stuck": "it is 7 s behind what other tables are folded up to, held by quarantined frame"
    }


def test_tables_of_which_nothing_is_known_are_left_out() -> None:
    chosen = choose_instant({"a": TableTime(5), "new": TableTime(0, "no closed frame"), "old": TableTime(5, "", None)})
    assert chosen.time == 5 and set(chosen.left_out) == {"new", "old"}
    with pytest.raises(RequestError, match="no table can be forked: new: no closed frame"):
        choose_instant({"new": TableTime(0, "no closed frame")})
    with pytest.raises(RequestError, match="there are no tables"):
        choose_instant({})


def test_a_tables_time_is_that_of_its_slowest_origin() -> None:
    assert table_time({"x": (9, ""), "y": (3, "a gap")}, SPEC, history(*folds(2))) == TableTime(3, "a gap", 2)
    assert table_time({}, SPEC, None) == TableTime(0, "", 0)


def test_a_table_without_a_key_cannot_be_forked_before_rows_expired_that_are_removed() -> None:
    log, at, minute = keyed("ops.log", key=()), {"x": (7_200_000_000, "")}, 60_000_000
    aged = set_properties(log, {"max_age_s": "3600"}, 1)
    assert table_time(at, log, history(("append", {}))).earliest == table_time(at, aged, None).earliest == 0
    made = table_time(at, aged, history(("append", {})))
    assert made == TableTime(7_200_000_000, "", 7_200_000_000 - minute)
    behind = TableTime(7_200_000_000 - 3 * minute, "quarantined frame")
    chosen = choose_instant({"ops.log": made, "behind": behind})
    assert chosen.time == 7_200_000_000 and set(chosen.left_out) == {"behind"}


def test_the_newest_snapshots_are_forked_when_the_last_fold_is_not_past_the_time() -> None:
    found = Histories(history(*folds(5, 8)), history(("append", {})), history())
    assert pin(SPEC, found, 8) == Pinned(1, 2, None, Folded(8, 8, 8, 8))
    assert pin(SPEC, None, 8) == Pinned(None, None, None)
    assert pin(keyed("ops.log", key=()), Histories(history(("append", {}))), 8) == Pinned(None, 1, None)


def test_a_fold_past_the_time_is_undone_by_forking_the_one_before_it() -> None:
    table = history(*folds(5), ("replace", {}), *folds(9))  # folds at 1 s and 3 s
    changes = history(("append", {}), ("append", {}), ("append", {}))
    tombstones = history(("append", {}), ("append", {}))
    assert pin(SPEC, Histories(table, changes, tombstones), 7) == Pinned(3, 1, 1, Folded(5, 5, 5, 5))


def test_changes_that_were_trimmed_after_that_fold_are_still_there_in_the_fork() -> None:
    table = history(*folds(5), *folds(9))
    trimmed = ("delete", {"deleted-data-files": "1"})
    changes = history(("append", {}), ("append", {}), trimmed, ("append", {}))  # trimmed at 3 s, after the second fold
    assert pin(SPEC, Histories(table, changes, history()), 7) == Pinned(2, 1, None, Folded(5, 5, 5, 5))
    compacted = history(("append", {}), ("append", {}), ("replace", {"deleted-data-files": "9"}))
    assert pin(SPEC, Histories(table, compacted, history()), 7) == Pinned(3, 1, None, Folded(5, 5, 5, 5))


def test_before_the_first_fold_everything_is_in_the_changes() -> None:
    table, changes = history(*folds(9)), history(("append", {}))
    assert pin(SPEC, Histories(table, changes, history(("append", {}))), 7) == Pinned(1, None, None)


def test_a_time_whose_snapshots_have_expired_cannot_be_forked() -> None:
    whole = history(*folds(5, 9))
    assert whole.current is not None
    expired = History(whole.current, {whole.current: whole.snapshots[whole.current]})
    assert pin(SPEC, Histories(expired, history(), history()), 7) is None
