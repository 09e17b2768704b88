"""Derived tables in the ledger: the source and hook of each, and its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

ANEW = -1


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derived table.

    ``names`` are the hook's names for the source's columns, by column uuid; a rename in the source does not change
    them. The hook has processed the source's replay commits up to number ``position``; ``ANEW`` means that the whole
    source must be compared. ``pending`` is the id of a batch that was begun and may or may not be written. Once it is
    written, the table is at ``pending_position``, unless the hook was changed since (a new ``generation``). ``upto`` is
    the source's replicated time when ``position`` was reached, ``at`` the time when it was reached. ``error`` is why
    the table has been stuck since ``error_since``. Times are microseconds since 1970, 0 for never.
    """

    table: UUID
    source: UUID
    hook: str
    options: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[UUID, str] = field(default_factory=dict)
    version: str = ""
    generation: int = 0
    position: int = ANEW
    pending: str = ""
    pending_position: int = 0
    upto: int = 0
    at: int = 0
    error: str = ""
    error_since: int = 0


class Derivations(Protocol):
    """Derived tables. Each step is stored before the next one begins, so a killed process resumes at its last step."""

    def define(self, derivation: Derivation, *, anew: bool = True) -> None:
        """Add a derived table or change its hook; the generation grows. ``anew``: compare the whole source again."""

    def all(self) -> list[Derivation]:
        """The derivations whose table was not dropped, by table."""

    def begin(self, was: Derivation, batch_id: str, position: int) -> bool:
        """Record a batch that is about to be written and will bring the table to ``position``.

        False, with nothing changed, when the stored derivation no longer matches ``was``.
        """

    def finish(self, was: Derivation, position: int, upto: int, at: int, *, keyless: bool = False) -> bool:
        """Record that the table is at ``position`` with nothing pending. False when it no longer matches ``was``.

        When the hook was changed since, the position stays as it is, unless ``keyless``: such a table is never
        compared again.
        """

    def renew(self, table: UUID, version: str = "", *, anew: bool = True) -> None:
        """Store the hook's new ``version`` unless it is "". ``anew``: compare the whole source again."""

    def note_error(self, table: UUID, error: str, at: int) -> None:
        """Store why the table is stuck; "" when it is not."""
