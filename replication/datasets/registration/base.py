"""The protocol of registrars, for walship's own and for plugins.

A plugin is an entry point of the group ``walship.registrars``: a class that is called with the name that the user gave
behind its own, as in ``--register PLUGIN:NAME``, and whose objects are :class:`FileRegistrar`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class RegisteredFile:
    """A file of the target: its path below the root, its size in bytes and its digest."""

    path: str
    size: int
    digest: str


class FileRegistrar(Protocol):
    """Is told of files that are in place and durable, as a step of their publication, until it has taken them."""

    def has(self, key: str, files: tuple[RegisteredFile, ...]) -> bool:
        """Whether the files that came with a key are registered already, or are none to register."""

    def register(self, target: str, key: str, files: tuple[RegisteredFile, ...]) -> None:
        """Register files of the store at ``target``, all or none, with the key of their publication.

        It may be repeated with the same key after a crash. Any exception fails the step, which the next run repeats.
        """


@runtime_checkable
class RefusesNames(Protocol):
    """A registrar that cannot take every name; it is asked before a file is published."""

    def refusal(self, target: str, file: RegisteredFile) -> str:
        """Why a file of the store at ``target`` cannot be registered; empty if it can."""
