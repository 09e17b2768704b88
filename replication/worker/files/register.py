"""Registers and claims own durable bytes, like landed ones (rule 3). That raises ``needed``.

Batch ids are recorded before their bytes are registered. A writer looks up a repeated batch id in the ledger first,
then in published bytes that are not registered.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from uuid import UUID

from replication import log
from replication.core.frame import FrameKind
from replication.core.ids import NIL_UUID
from replication.core.routes.freshness import ClosedNotice
from replication.errors import BatchConflictError, CorruptFrameError, FormatError, ReplicationError, StorageError
from replication.files.reading import MappedFrames
from replication.ledger.base import BatchPart, Claim, FileKind, Ledger
from replication.worker.files.host_files import HostFiles, Source

_BYTES_MAX = 256 << 20
_CLAIMS_MAX = 20_000
_log = log.get(__name__)


class Registrar:
    """Registers this host's own files. Several threads may call ``run_once``; a lock serializes them.

    ``registered`` counts the frames so far, and ``registered_rows`` those that are not control frames.
    """

    def __init__(self, ledger: Ledger, host_files: HostFiles) -> None:
        self._ledger = ledger
        self._host_files = host_files
        self._lock = threading.Lock()
        self._troubled: set[str] = set()
        self.registered = self.registered_rows = 0

    def run_once(self) -> set[str]:
        """Register all bytes that are durable at the call; return the writers of files that could not be registered."""
        failed: set[str] = set()
        with self._lock:
            self._host_files.refresh()
            for source in self._host_files.poll():
                if source.row.kind in (FileKind.LANDING, FileKind.BOOTSTRAP):
                    continue
                name = str(source.file)
                try:
                    self._host_files.check(source.file)
                    self._register(source)
                    self._troubled.discard(name)
                except ReplicationError as error:
                    if name not in self._troubled:
                        _log.error("register_failed", file=name, error=str(error))
                    self._troubled.add(name)
                    failed.add(source.row.writer)
        return failed

    def _register(self, source: Source) -> None:
        begin = source.row.length
        while begin < source.length:
            scanned = _scan(source, begin)
            if scanned.claims:
                for (table, batch_id), parts in scanned.batches.items():
                    try:
                        self._ledger.batches.put(table, batch_id, parts, scanned.claims[-1].commit)
                    except BatchConflictError as error:  # both are acked and kept; the id stays with the first content
                        _log.error("batch_conflict", file=str(source.file), batch_id=batch_id, error=str(error))
                end = scanned.claims[-1].end
                divergences = self._ledger.registration.register_own(
                    source.file, begin, end, scanned.claims, scanned.notices
                )
                self.registered += len(scanned.claims)
                self.registered_rows += sum(claim.stream.table != NIL_UUID for claim in scanned.claims)
                for divergence in divergences:
                    _log.error("own_frame_diverged", file=str(source.file), begin=divergence.claim.begin)
                begin = end
            if scanned.damage is not None:
                raise scanned.damage
            if not scanned.claims:  # a wrong length makes a frame look unfinished
                raise CorruptFrameError(f"{source.row.path}: no whole frame at offset {begin}")


@dataclass(slots=True)
class _Scanned:
    """What a range of a file holds, up to ``damage`` if there is any."""

    claims: list[Claim] = field(default_factory=list)
    notices: list[ClosedNotice] = field(default_factory=list)
    batches: dict[tuple[UUID, str], list[BatchPart]] = field(default_factory=dict)
    damage: FormatError | StorageError | None = None


def _scan(source: Source, begin: int) -> _Scanned:
    scanned = _Scanned()
    mapped = MappedFrames(source.row.path, begin, source.length)
    try:
        for frame in mapped:
            header = frame.header
            if header.kind is FrameKind.CLOSED:  # decoded first: an unreadable notice is not claimed
                scanned.notices.append(ClosedNotice.decode(mapped.payload(frame)))
            scanned.claims.append(Claim.of(frame, frame.begin, frame.end))
            if header.batch_id:
                part = BatchPart.of(header, frame.end)
                scanned.batches.setdefault((header.table, header.batch_id), []).append(part)
            if len(scanned.claims) >= _CLAIMS_MAX or frame.end - begin >= _BYTES_MAX:
                break
    except (FormatError, StorageError) as error:
        scanned.damage = error
    return scanned
