"""Appends that wait together become frames, in their order."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa

from replication.core.definition.alter import add_column
from replication.core.frame import Codec
from replication.writer.merge import FrameMerge
from replication.writer.pending import AppendStep, FewRows, PendingAppend
from tests.tables_made import keyed


def test_rows_of_before_and_after_a_change_of_the_table_are_frames_of_their_own_in_their_order() -> None:
    table = keyed("ops.t")
    newer = add_column(table, "more", pa.int64(), "", uuid4(), 1)
    steps = [
        AppendStep(PendingAppend(), 9, FewRows(spec, [{"k": str(k)}], False), is_last=True)
        for k, spec in enumerate((table, table, newer, table))
    ]
    merged = FrameMerge.frames(steps, Codec.NONE)
    versions = [spec.versions["default"] for spec in (table, newer, table)]
    assert [each.encoded.version for each in merged] == versions
    assert [each.encoded.row_count for each in merged] == [2, 1, 1]
    assert [list(each.appends) for each in merged] == [
        [s.append for s in steps[:2]],
        [steps[2].append],
        [steps[3].append],
    ]
