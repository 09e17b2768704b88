"""Where the frames of a closed file begin."""

from __future__ import annotations

from pathlib import Path

from replication.files.reading import frame_start
from tests.sites import Site, flip, rows, table


def test_frames_are_found_whatever_of_the_end_record_is_damaged(tmp_path: Path) -> None:
    site = Site(tmp_path, "east")
    spec = table()
    site.ledger.tables.create(spec)
    wal = site.wal()
    first, second = (wal.append(spec, rows(n * 10, 10)) for n in range(2))
    wal.finish()
    site.close()
    size = Path(wal.path).stat().st_size
    assert second < size, "there is an end record"
    for at in range(second, size):
        flip(wal, at)
        assert frame_start(wal.path, first - 1, second) == first
        flip(wal, at)
