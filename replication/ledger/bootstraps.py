"""What a ledger does for bootstraps, sent and received. Part of ``base``, whose rules hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.bootstrap import Coverage, Forgotten
from replication.ledger.files import FileRow


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A table that is being bootstrapped at a peer, by the rules of ``generation`` and older ones.

    ``file`` holds what is sent for it, None before that is written. ``waits_for`` says what has to happen before it can
    be written, "" when nothing has to.
    """

    peer: str
    table: UUID
    groups: tuple[str, ...]
    generation: int
    file: FileRow | None = None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A table's bootstrap that came from ``source`` and goes on to ``peer``."""

    peer: str
    table: UUID
    source: ClusterId


class Bootstraps(Protocol):
    """Tables that are bootstrapped at peers, and bootstraps received."""

    def wanted(self) -> list[Bootstrap]:
        """Every (peer, table) with rules that are BOOTSTRAPPING."""

    def coverage(self, table: UUID, groups: Sequence[str]) -> list[Coverage]:
        """What the table has applied here, per group, in one snapshot; a table read after this has at least that."""

    def covered(self, wanted: Bootstrap) -> tuple[list[Coverage], int]:
        """The ``coverage`` that a file for ``wanted`` may say it has, and the replay commit that a table needs for it.

        That is the newest one marked, by its number; 0 when there is none. Both are of one snapshot.

        Raises:
            RequestError: the table lacks something from before the rules' begin by now, as ``wanted.waits_for`` tells.
        """

    def begin_file(self, wanted: Bootstrap, host: str, directory: str, boot: str) -> FileRow:
        """An OPEN file for ``wanted``, in place of an earlier one, which is released.

        Raises:
            RequestError: the rules have begun anew, or ended, meanwhile.
        """

    def finish_file(self, file: FileId, length: int) -> None:
        """It is durable and CLOSED at ``length``, and goes to its peer.

        Raises:
            MissingFileError: it was released meanwhile.
        """

    def is_applied(self, file: FileId) -> bool:
        """Whether the peer has reported all of a finished file applied."""

    def passed_on(self) -> frozenset[PassedOn]:
        """Bootstraps received and applied here that go on to peers, as long as those have not applied them."""

    def adopt(self, file: FileId, begin: int, end: int, coverage: Coverage) -> Mapping[StreamId, Ranges]:
        """Claim what ``coverage`` names and nobody has claimed, as lying in ``[begin, end)`` of a received bootstrap.

        From then on frames that bring these sequences are duplicates; replay of the bootstrap applies them.

        Returns:
            What is claimed there, by this call and earlier ones: the rows to take.

        Raises:
            DivergenceError: the hashes contradict what is claimed already. Nothing was changed.
        """

    def forget(self, table: UUID, forgotten: Forgotten) -> None:
        """Remember, before they are removed, of which timestamps deletes and rows of a table are missing from now on.

        Of the source of a bootstrap, before that is taken, too: what it lacks is lacking here.
        """

    def forgotten(self, table: UUID) -> Forgotten:
        """All that was ever said to ``forget``, joined."""
