"""Commit steps: what an operation does next, as data, and its JSON through a registry of step types."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from replication.errors import VersionError

C = TypeVar("C")
_T = TypeVar("_T", bound="type[CommitStep[Any]]")


class CommitStep(ABC, Generic[C]):
    """One step of an operation: a frozen dataclass whose fields pydantic can write as JSON.

    A step may run again after a crash in its middle. It may also run while an earlier run, which was frozen, goes on.
    Make ``execute`` safe for both: compare and swap, or write under another name and rename. Once a step is done, later
    steps must leave ``verify`` true. ``C`` is the context, what steps work on: a cluster's handle, a file system. Let
    ``execute`` call an executor and ``verify`` a checker in another module, method for method.
    """

    kind: ClassVar[str]
    version: ClassVar[int]

    @abstractmethod
    def verify(self, context: C) -> bool:
        """Whether the step is done: what is there is what it makes (epoch, length, checksum), not only that it is."""

    @abstractmethod
    def execute(self, context: C) -> None:
        """Do the step; its effect is durable on return. ``verify`` is called before and after."""

    @abstractmethod
    def describe(self) -> str:
        """What the step does, in plain words: ``rename a/1.avro to b/1.avro``. Plans and progress show it."""


_known: dict[tuple[str, int], type[CommitStep[Any]]] = {}


def step_type(kind: str, version: int = 1) -> Callable[[_T], _T]:
    """Register a class as ``kind``, such as ``copy.publish``. Raise the version when fields change their meaning.

    A class for an earlier version may stay registered beside it, so that sequences stored before an upgrade still run.
    """

    def register(cls: _T) -> _T:
        assert (kind, version) not in _known, f"two step types are {kind} version {version}"
        cls.kind, cls.version = kind, version
        cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
        _known[kind, version] = cls
        return cls

    return register


def step_to_json(step: CommitStep[Any]) -> str:
    """The step as one line of JSON, with its kind and version."""
    fields = _adapter(type(step)).dump_python(step, mode="json")
    return json.dumps({"kind": step.kind, "version": step.version, **fields}, separators=(",", ":"))


def step_from_json(text: str) -> CommitStep[Any]:
    """The step of ``step_to_json``. Raises VersionError: its kind, version or fields are unknown here."""
    from pydantic import ValidationError

    try:
        fields = json.loads(text)
        kind, version = fields.pop("kind"), fields.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise VersionError(
            f"{text[:100]!r} is not a commit step",
            "Forget it: walship ops list, then walship ops abandon OPERATION --yes",
        ) from None
    step = _known.get((kind, version))
    if step is None:
        versions = ", ".join(str(number) for known, number in sorted(_known) if known == kind)
        here = f"this walship knows version {versions}" if versions else "this walship does not know that kind"
        raise VersionError(
            f"a stored step is of kind {kind!r}, version {version}: {here}",
            "Upgrade walship here to the version that stored it, then run walship ops resume",
        )
    try:
        found: CommitStep[Any] = _adapter(step).validate_python(fields, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise VersionError(
            f"a stored step of kind {kind!r}, version {version}, does not fit: {where}: {first['msg']}",
            "Upgrade walship here to the version that stored it, then run walship ops resume",
        ) from None
    return found


@cache
def _adapter(step: type[CommitStep[Any]]) -> Any:
    from pydantic import TypeAdapter  # deferred: most commands store no steps

    return TypeAdapter(step)
