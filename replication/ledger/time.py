"""What a ledger knows of writers, closed time and replicated time. Part of ``base``, whose rules hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice, Reach, Replicated


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """A writer's entry: its commit times must stay above ``closed``."""

    writer: str
    closed: int
    role_epoch: int


@dataclass(frozen=True, slots=True)
class WriterRow:
    """A registered writer: its host and the watermark that later commits are above ``floor``."""

    writer: str
    host: str
    pid: int
    boot: str
    floor: int


@dataclass(frozen=True, slots=True)
class AheadClock:
    """An origin whose commit times are far ahead of the clock here: the furthest one, and when it was seen."""

    origin: ClusterId
    commit: int
    at: int


@dataclass(frozen=True, slots=True)
class Grown:
    """A WAL that grew, or copies from one: its registered length, and the last sequence of each own stream that did."""

    length: int
    last: Mapping[StreamId, int]


class Time(Protocol):
    """Writers, closed time and replicated time."""

    def register_writer(self, writer: str, host: str, pid: int, boot: str, role_epoch: int) -> WriterEntry:
        """Add a writer; its commits must be above the returned time: closed time, and every commit time seen."""

    def remove_writer(self, writer: str) -> None:
        """Its WALs are closed or recovered; it no longer holds closed time."""

    def writers(self) -> list[WriterRow]:
        """Registered writers."""

    def raise_closed(self, host: str, floors: Mapping[str, int], now: int) -> int:
        """Raise closed time to the minimum over registered writers' floors; return it.

        When there are no writers: to ``now``, or to the newest commit time seen when that is ahead of it. While a WAL
        whose writer is gone is not registered to its end, on whatever host, closed time stays where it is.
        ``floors`` are those of this host's live writers, read before their bytes were registered.
        """

    def closed(self) -> int:
        """Closed time."""

    def seen(self) -> int:
        """The newest commit time of anything that was ever registered here, own or landed; 0 at first.

        It never goes back. A writer's clock stays above it, so that who has read a row can overwrite it.
        """

    def note_ahead(self, clock: AheadClock) -> None:
        """Keep that an origin's commit times are far ahead; of several the furthest. Forgets those that time caught up.

        Caught up are commit times at or below ``clock.at``.
        """

    def ahead(self) -> list[AheadClock]:
        """Origins whose commit times were found far ahead, by name; time may have caught up with some since."""

    def grown(self, after: int, seen: Mapping[FileId, int]) -> dict[FileId, Grown]:
        """Own WALs, and copies from such, with frames committed after ``after``: how far they got past what was seen.

        Costs what changed: files with newer commits, and of those the claims past the registered length in ``seen``.
        """

    def note_closed(self, origin: ClusterId, notice: ClosedNotice) -> None:
        """Keep a closed frame's notice until it is satisfied."""

    def reached(self, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
        """Whether everything that is required of each stream up to a sequence is here, by whatever route it came."""

    def forget(self, origin: ClusterId) -> None:
        """An origin is gone for good, as after a restore: it holds replicated time no more, nor do routes from it."""

    def replicated(self, table: UUID | None = None, *, every_origin: bool = False) -> dict[ClusterId, Replicated]:
        """Replicated time per origin for a table, or over all tables, and what holds it.

        A table's origins are this cluster, the sources of its open routes, and clusters whose frames of it are here;
        with ``every_origin`` all that were ever known.
        """
