"""Stores of commit sequences to hold to the contract, steps that count their effects, and crashes between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replication.commit.leases import Leases
from replication.commit.step import CommitStep, step_type
from replication.files.owner import owner_name
from replication.ledger.commit_steps import CommitStepStore


class Crash(BaseException):
    """The process ends here."""


@dataclass
class World:
    """What steps change.

    Attributes:
        at: called at every point where a process may be killed.
    """

    values: dict[str, str] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)
    at: Callable[[str], None] = lambda point: None


@step_type("test.put")
@dataclass(frozen=True)
class Put(CommitStep[World]):
    key: str
    value: str

    def verify(self, context: World) -> bool:
        context.at("verify")
        return context.values.get(self.key) == self.value

    def execute(self, context: World) -> None:
        if self.key in context.failing:
            raise OSError(f"{self.key} cannot be put")
        context.at("before")
        context.values[self.key] = "half of it"
        context.at("middle")
        context.values[self.key] = self.value
        context.effects[self.key] += 1
        context.at("after")

    def describe(self) -> str:
        return f"put {self.value} at {self.key}"


class CrashingSteps:
    """A store at whose every call, before and after it takes effect, the process may end."""

    def __init__(self, real: CommitStepStore, at: Callable[[str], None]) -> None:
        self._real, self._at = real, at

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._real, name)

        def call(*args: Any, **named: Any) -> Any:
            self._at(f"before {name}")
            answer = real(*args, **named)
            self._at(f"after {name}")
            return answer

        return call


class CrashAt:
    """Ends the process at its n-th point; nothing works afterwards."""

    def __init__(self, n: int) -> None:
        self.left = n

    @property
    def crashed(self) -> bool:
        return self.left < 0

    def __call__(self, point: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash(point)


def of_a_dead_process(leases: Leases) -> Leases:
    """The same, as of a process that will be seen to have ended."""
    parts = owner_name().split("/")
    parts[3] = "0.00"
    leases.owner = "/".join(parts)
    return leases
