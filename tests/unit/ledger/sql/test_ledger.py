"""The parts of a ledger are made when they are first used, and then once."""

from __future__ import annotations

import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from replication.ledger.sql import ledger

THREADS = 4


def without_lock(self: Any, instance: Any, owner: object = None) -> Any:
    """As ``cached_property`` is since Python 3.12."""
    if self.attrname not in vars(instance):
        vars(instance)[self.attrname] = self.func(instance)
    return vars(instance)[self.attrname]


def test_threads_that_ask_first_get_the_same_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functools.cached_property, "__get__", without_lock)
    together, two_are_in = threading.Barrier(THREADS), threading.Barrier(2)
    made: list[object] = []

    class Parts:
        @ledger._Once
        def part(self) -> object:
            with contextlib.suppress(threading.BrokenBarrierError):
                two_are_in.wait(0.2)  # for a second thread, if one can come in
            made.append(object())
            return made[-1]

    parts = Parts()

    def ask(_: int) -> object:
        together.wait(20)
        return parts.part

    with ThreadPoolExecutor(THREADS) as threads:
        assert len(set(threads.map(ask, range(THREADS)))) == 1
    assert len(made) == 1
