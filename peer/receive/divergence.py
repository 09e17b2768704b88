"""Quarantine frames of a second history of a stream. They are landed, but never claimed or applied."""

from __future__ import annotations

from collections import Counter

from replication import log
from replication.core.frame import Buffer
from replication.files.base import Files
from replication.files.frames import save_frame
from replication.ledger.base import Divergence, Ledger, Quarantined

_REASON = "divergence:"
_KEPT_MAX = 1000  # frames of one sender that no person has discarded yet
_log = log.get(__name__)


class DivergedFrames:
    """How many frames of second histories are quarantined, by sender: each takes a copy, a row and two syncs.

    The count of this process; once there are many, those in the ledger that are not discarded.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._counts: Counter[str] = Counter()

    def note(self, sender: str) -> None:
        """Count one."""
        self._counts[sender] += 1

    def refusal(self, sender: str) -> str:
        """Why nothing more is taken from a sender until a person has looked; "" while there are few."""
        count = self._counts[sender]
        return f"{count} frames of second histories that {sender} sent are quarantined" if count >= _KEPT_MAX else ""

    @property
    def is_open(self) -> bool:
        """Whether nobody is refused."""
        return all(count < _KEPT_MAX for count in self._counts.values())

    def recount(self) -> None:
        """Read from the ledger what is still quarantined of those who are refused."""
        full = {name for name, count in self._counts.items() if count >= _KEPT_MAX}
        if not full:
            return
        found = Counter[str]()
        for record in self._ledger.replay.quarantined():
            if not record.discarded and record.reason.startswith(_REASON):
                row = self._ledger.files.get(record.file)
                if row is not None and row.source is not None:
                    found[row.source.cluster.name] += 1
        for name in full:
            self._counts[name] = found[name]


def quarantine_diverged(
    ledger: Ledger, files: Files, directory: str, divergence: Divergence, frame: Buffer, now: int
) -> None:
    """Copy ``frame`` durably to ``directory`` and record it as quarantined; ``now`` in microseconds since 1970."""
    claim, file = divergence.claim, divergence.file
    path = save_frame(files, directory, file, claim.begin, frame)
    reason = (
        f"{_REASON} sequence {claim.sequence} of {claim.stream} is claimed with another hash by {divergence.held_by}"
    )
    frame_of_file = Quarantined(file, claim.begin, claim.end, claim.stream.table, reason, path, now)
    ledger.replay.quarantine(frame_of_file, (claim.stream, claim.sequence))
    _log.error("frame_diverged", file=str(file), begin=claim.begin, end=claim.end, stream=str(claim.stream), copy=path)
