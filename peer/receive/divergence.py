"""Quarantine frames of a second history of a stream. They are landed, but never claimed or applied."""

from __future__ import annotations

from replication import log
from replication.core.frame import Buffer
from replication.files.base import Files, append
from replication.ledger.base import Divergence, Ledger, Quarantined

_log = log.get(__name__)


def quarantine_diverged(
    ledger: Ledger, files: Files, directory: str, divergence: Divergence, frame: Buffer, now: int
) -> None:
    """Copy ``frame`` durably to ``directory`` and record it as quarantined; ``now`` in microseconds since 1970."""
    claim, file = divergence.claim, divergence.file
    files.make_directory(directory)
    path = f"{directory}/{file.slot}-{file.number:012d}-{claim.begin}.frame"
    files.remove(path)
    copy = files.create(path)
    try:
        append(copy, [frame])
        copy.sync()
    finally:
        copy.close()
    files.sync_directory(directory)
    reason = (
        f"divergence: sequence {claim.sequence} of {claim.stream} is claimed with another hash by {divergence.held_by}"
    )
    ledger.replay.quarantine(Quarantined(file, claim.begin, claim.end, claim.stream.table, reason, path, now))
    _log.error("frame_diverged", file=str(file), begin=claim.begin, end=claim.end, stream=str(claim.stream), copy=path)
