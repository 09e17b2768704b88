"""What ``status`` says of replay's work."""

from __future__ import annotations

from peer.status.replay_report import ReplayReport
from shell.status.page import work_text


def test_the_work_of_a_newer_walship_on_another_host_is_shown() -> None:
    report = ReplayReport(since=1.0, at=2.0, rounds=3, work={"driver_batches": 7, "counted_later": 1})
    assert "3 rounds" in work_text(report) and "7 batches" in work_text(report)
