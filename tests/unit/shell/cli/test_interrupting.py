"""Killing what a command has started, however it forks meanwhile."""

from __future__ import annotations

from signal import SIGKILL, SIGSTOP

import pytest

from shell.cli import interrupting


def test_nobody_is_killed_while_one_that_was_told_to_stop_may_still_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose parent was killed is nobody's descendant: it would be left."""
    bash, sleep = 7, 8
    looks = [
        {bash: False},
        {bash: False},  # it forks
        {bash: True, sleep: False},
        {bash: True, sleep: True},
        {bash: True, sleep: True},
        {},
    ]
    sent = []
    monkeypatch.setattr(interrupting, "_descendants", lambda: looks.pop(0))
    monkeypatch.setattr(interrupting, "_signal", lambda pids, number: sent.append((sorted(pids), number)))
    interrupting.end_children()
    assert sent == [
        ([bash], SIGSTOP),
        ([bash], SIGSTOP),
        ([bash, sleep], SIGSTOP),
        ([sleep], SIGSTOP),
        ([bash, sleep], SIGKILL),
    ]
