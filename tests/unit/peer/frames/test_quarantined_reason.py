"""What is kept of a frame that cannot be applied."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from peer.frames.decode import FrameRef
from peer.frames.quarantine import Quarantine
from replication.core.definition.foreign import foreign_version
from replication.core.definition.schema import SchemaVersion
from replication.core.ids import ClusterId, FileId
from replication.core.rows.years import check_years
from replication.errors import SchemaError
from replication.ledger.base import Quarantined

EAST = ClusterId("east", UUID(int=1))


def test_of_the_reason_no_more_is_kept_than_a_person_reads_though_a_peer_gave_a_name_of_megabytes(
    tmp_path: Path,
) -> None:
    """Each such frame, of a kilobyte, took that much of the ledger, and of the log."""
    made = SchemaVersion.of(uuid4(), "default", pa.schema([("n\0" * (1 << 20), pa.date32())]))
    version = foreign_version(made.table, made.group, made.hash, made.body)
    with pytest.raises(SchemaError) as caught:
        check_years(pa.record_batch([pa.array([1 << 30], pa.int32()).view(pa.date32())], schema=version.arrow))
    kept: list[Quarantined] = []
    ledger: Any = SimpleNamespace(quarantined=tuple, quarantine=lambda record, at: kept.append(record))
    reader: Any = SimpleNamespace(read=lambda path, spans: [b"the frame"])
    file = FileId(EAST, "h0", 7)
    frame = FrameRef("a.wal", file, 256, 512, made.table, file, "default", 0, made.hash)
    for reason in (caught.value.what, "\0 and \udcff", "quarantined before"):
        Quarantine(tmp_path, ledger).add(frame, reason, reader)
    assert len(caught.value.what) > 1 << 20 and len(kept[0].reason) <= 1000 and kept[0].reason.startswith("column 'n")
    assert [record.reason for record in kept[1:]] == ["\\0 and \\udcff", "quarantined before"]
