"""Two processes that fold a table at once, as replay and ``walship fold`` do, leave what one of them would."""

from __future__ import annotations

from typing import Any

import pytest

from peer.tables import fold as folding
from peer.tables.fold import merge_changes
from replication.errors import CommitConflictError
from tests.fakes.tables import MemoryTables
from tests.tables_made import keyed
from tests.versions import Version, append, shown


def test_a_fold_that_is_overtaken_does_not_move_what_consistent_reads_start_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables, spec, merge = MemoryTables(), keyed("ops.t"), folding._merge_here
    tables.create(spec)

    def commit(at: int) -> None:
        append(tables, spec, [Version("a", "default", 0, None, at, "e:1", at, 0, at)], at)

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(folding, "_merge_here", merge)
        merge_changes(tables, spec, 2)  # replicated time has gone on ...
        commit(3)
        merge_changes(tables, spec, None)  # ... and stands still again
        return merge(*given)

    commit(1)
    merge_changes(tables, spec, 1)
    commit(2)
    monkeypatch.setattr(folding, "_merge_here", overtaken)
    with pytest.raises(CommitConflictError):
        merge_changes(tables, spec, None)
    assert shown(tables, spec, 2) == [{"k": "a", "v": 2}]
    assert shown(tables, spec) == [{"k": "a", "v": 3}]
