"""The cluster's credential in a data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.coordination.access import FILE_NAME, keep_access, read_access


def test_roles_that_start_together_never_read_half_a_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_text
    seen: list[object] = []

    def write_text(file: Path, *text: str, **options: str) -> int:
        seen.append(read_access(tmp_path, "/walship/east"))  # another role reads before it is written
        return written(file, *text, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    made = keep_access(tmp_path, "/walship/east", "east", lambda given: given)
    assert seen == [None] and read_access(tmp_path, "/walship/east") == made
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
