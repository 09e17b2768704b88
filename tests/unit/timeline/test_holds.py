"""Holds of a timeline's files, as other versions and stores leave them."""

from __future__ import annotations

import json
from pathlib import Path

from replication.timeline.holds import TimelineHolds


def test_a_hold_of_a_newer_version_counts_and_what_is_no_hold_does_not(tmp_path: Path) -> None:
    holds = TimelineHolds(f"file://{tmp_path}")
    taken = holds.take("lake", 7, 60)
    (file,) = tmp_path.rglob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "note": "of a newer version"}))
    for name, content in (("torn", '{"id": "t'), ("list", "[]"), ("part", '{"id": "p"}')):
        file.with_name(f"{name}.json").write_text(content)
    assert holds.of("lake") == [taken]
