"""What a ledger knows of derived tables: which hook makes each out of which table, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

ANEW = -1


@dataclass(frozen=True, slots=True)
class Derivation:
    """A table that is derived here.

    ``names`` says under which names the hook knows the source's columns, by uuid, so that a rename there changes
    nothing. What the source's replay had committed up to number ``position`` has been through the hook; ``ANEW``: all
    of it is to be compared. ``pending`` is the id of a batch that was begun and may or may not be there; once it is,
    the table is at ``pending_position``, unless its hook was changed since (a new ``generation``). ``upto`` is the
    source's replicated time when ``position`` was reached, ``at`` when that was, ``error`` why it stands since
    ``error_since``. Times are microseconds since 1970, 0 for never.
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
    """Derived tables. Every step is stored before the next one, so that whoever is killed goes on where it was."""

    def define(self, made: Derivation, *, anew: bool = True) -> None:
        """Add a derived table, or give one another hook: its generation grows. If ``anew`` all is compared again."""

    def all(self) -> list[Derivation]:
        """Those whose table was not dropped, by table."""

    def begin(self, was: Derivation, batch_id: str, position: int) -> bool:
        """Note that a batch is about to be written that will bring the table to ``position``.

        False, with nothing changed, when somebody else has gone on from ``was`` meanwhile.
        """

    def settle(self, was: Derivation, position: int, upto: int, at: int, *, keyless: bool = False) -> bool:
        """The table is at ``position``, and nothing is pending. False when somebody else has gone on from ``was``.

        When the hook was changed meanwhile it stays where it is, unless ``keyless``: then nothing is compared again.
        """

    def renew(self, table: UUID, version: str = "", *, anew: bool = True) -> None:
        """Note another version of the hook, when given, and have all of the source compared again, if ``anew``."""

    def trouble(self, table: UUID, error: str, at: int) -> None:
        """Note why the table stands; "" when it goes on."""
