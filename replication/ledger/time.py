"""Writers, closed time and replicated time in the ledger. The guarantees of ``base`` apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice, Reach, Replicated


@dataclass(frozen=True, slots=True)
class WriterRow:
    """A registered writer and its host; its later commit times are above ``floor``."""

    writer: str
    host: str
    floor: int


@dataclass(frozen=True, slots=True)
class SkewedClock:
    """An origin whose commit times are far ahead of the local clock: the newest one, and when it was seen."""

    origin: ClusterId
    commit: int
    at: int


@dataclass(frozen=True, slots=True)
class Grown:
    """Growth of a WAL or of a file of salvaged copies.

    ``length`` is its registered length, ``last`` the last sequence of each own stream that grew.
    """

    length: int
    last: Mapping[StreamId, int]


class Time(Protocol):
    """Writers, closed time and replicated time."""

    def register_writer(self, writer: str, host: str, pid: int, boot: str, role_epoch: int) -> int:
        """Add a writer. Its commit times must be above the returned time, which covers closed time and ``seen``."""

    def remove_writer(self, writer: str) -> None:
        """Remove a writer whose WALs are closed or recovered; it no longer holds back closed time."""

    def writers(self) -> list[WriterRow]:
        """Registered writers."""

    def raise_closed(self, host: str, floors: Mapping[str, int], now: int) -> int:
        """Raise closed time to the lowest floor of the registered writers; return it.

        Without writers it is raised to ``now`` or ``seen``, whichever is later. It does not advance while any host has
        a CLOSED WAL of a removed writer that is not fully registered. ``floors`` are those of this host's live writers,
        read before their bytes were registered.
        """

    def closed(self) -> int:
        """Closed time."""

    def seen(self) -> int:
        """The newest commit time ever registered here, own or landed; 0 at first. It never decreases.

        A writer's clock stays above it, so that a row that was read can be overwritten.
        """

    def note_ahead(self, clock: SkewedClock) -> None:
        """Store the newest commit time per origin that is far ahead. Delete those at or below ``clock.at``."""

    def ahead(self) -> list[SkewedClock]:
        """The stored origins with commit times far ahead, by name; the clock may have passed some since."""

    def grown(self, after: int, seen: Mapping[FileId, int]) -> dict[FileId, Grown]:
        """Own WALs, and files of salvaged copies, with frames committed after ``after``.

        Reads only files with newer commits, and of those only claims past the registered length in ``seen``.
        """

    def grown_and_retired(self, after: int) -> dict[StreamId, int]:
        """The last sequence of own streams whose retired files may have frames committed after ``after``."""

    def may_note(self, origin: ClusterId, streams: int) -> bool:
        """Whether a notice of another origin may list ``streams`` streams beside those that are kept.

        Kept notices that every table has reached are dropped if need be.
        """

    def announced(self, origin: ClusterId) -> ClosedNotice:
        """What an origin last announced: its newest closed time, and the last sequence of streams not reached by then.

        Its ``t`` is 0 when nothing ever came from it.
        """

    def reached(self, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
        """Whether all required frames of each stream up to a sequence are here, from any route."""

    def forget(self, origin: ClusterId) -> None:
        """Remove an origin that is gone for good, as after a restore. Replicated time no longer waits for it."""

    def replicated(self, table: UUID | None = None, *, every_origin: bool = False) -> dict[ClusterId, Replicated]:
        """Replicated time per origin, of a table or over all tables, and what holds it back.

        A table's origins are this cluster, the sources of its open routes, and the clusters whose frames of it are
        here. With ``every_origin``: every origin ever known, except one that another cluster took over from and that
        may not return: it is no peer, and no third cluster carries it here, or this one took over.
        """

    def landed(self, origin: ClusterId) -> Replicated:
        """Up to when everything of an origin has landed here, of all tables that it feeds; applied or not."""

    def replicated_by_table(self) -> dict[UUID, dict[ClusterId, Replicated]]:
        """``replicated(table)`` of every table that is not dropped."""
