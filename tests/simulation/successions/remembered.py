"""Reads of a simulated ledger are remembered until something is written, which makes schedules several times faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from tests.fakes import ledger as fakes
from tests.fakes.ledger import MemoryLedger

#: Calls that change nothing.
_READS = {
    "rules": {"all", "to", "peers", "unsent"},
    "landing": {"routes", "declared"},
    "successions": {"known", "address", "lease", "contradictions", "highest_epoch"},
    "terms": {"role", "recognise", "current"},
    "tables": {"all"},
    "grants": {"of"},
    "files": {"all"},
    "steps": {"sequences"},
    "time": {"writers"},
}
#: What the calls of a part change of these; of all of them, where it is not named.
_WRITES = {
    "landing": ("landing",),
    "terms": ("terms",),
    "time": ("time",),
    "steps": ("steps",),
    "successions": ("successions",),
    "files": ("files", "time"),
    "registration": ("files", "time"),
    "replay": (),
    "drills": (),
    "bootstraps": (),
    "sending": (),
}
#: Calls that change nothing, and whose answers are not remembered.
_ASKED = {
    "landing.coverage",
    "rules.not_returned",
    "sending.held",
    "replay.pending",
    "time.announced",
    "files.at_peer",
    "files.progress",
}
#: Calls that do nothing when they are repeated, and the only read that they change.
_REPEATED = {"successions.keep_address": "address", "successions.keep_lease": "lease"}


class Answers:
    """What a ledger answered since it was last changed.

    Attributes:
        read: answers, by part and call.
        first: answers before anything was written, which are good for the next schedule, too.
        done: calls that would do nothing.
        epochs: the highest role epoch of each cluster, of which a lower one changes nothing.
        is_first: nothing was written yet.
    """

    def __init__(self) -> None:
        self.first: dict[str, dict[Any, Any]] = {part: {} for part in _READS}
        self.begin()

    def begin(self) -> None:
        """The ledger is as it was at first."""
        self.read = {part: dict(known) for part, known in self.first.items()}
        self.done: set[Any] = set()
        self.epochs: dict[Any, int] = {}
        self.is_first = True

    def changed(self, part: str, only: str = "") -> None:
        """A call of a part has written, of which ``only`` one read depends."""
        self.is_first = False
        if only:
            self.read[part] = {key: answer for key, answer in self.read[part].items() if key[0] != only}
            return
        for each in _WRITES.get(part, _READS):
            self.read[each].clear()
        if part == "successions":
            self.epochs.clear()


_answers: WeakKeyDictionary[MemoryLedger, Answers] = WeakKeyDictionary()


def _known(ledger: MemoryLedger) -> Answers:
    if ledger not in _answers:
        _answers[ledger] = Answers()
    return _answers[ledger]


def forget(ledger: MemoryLedger) -> None:
    """The ledger's content is as it was at first."""
    _known(ledger).begin()


def patch(patched: pytest.MonkeyPatch) -> None:
    """Ledgers remember."""
    patched.setattr(fakes._Part, "__getattr__", _remembering)


def _remembering(part: Any, method: str) -> Callable[..., Any]:
    ledger, call = part._ledger, f"{part._name}.{method}"
    answer = partial(_answer, _known(ledger), part._name, method, getattr(part._real, method))

    def answering(*args: Any, **named: Any) -> Any:
        if ledger.fault is not None:
            ledger.fault(call)
        found = answer(*args, **named)
        if ledger.fault_after is not None:
            ledger.fault_after(call)
        return found

    return answering


def _answer(known: Answers, part: str, method: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
    key = method, args
    if method in _READS.get(part, ()) and not named:
        if key not in known.read[part]:
            known.read[part][key] = real(*args)
            if known.is_first:
                known.first[part][key] = known.read[part][key]
        answer = known.read[part][key]
        return list(answer) if isinstance(answer, list) else answer
    if f"{part}.{method}" in _ASKED:
        return real(*args, **named)
    if method == "keep_epoch":
        source, epoch = args
        if known.epochs.get(source, -1) < epoch:
            known.epochs[source] = real(*args)
            known.read["successions"].pop(("highest_epoch", ()), None)
            known.is_first = False
        return known.epochs[source]
    only = _REPEATED.get(f"{part}.{method}", "")
    if only and key in known.done:
        return None
    try:
        answer = real(*args, **named)
    finally:
        known.changed(part, only)
    if only:
        known.done.add(key)
    return answer
