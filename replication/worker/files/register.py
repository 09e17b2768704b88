"""Own durable bytes are registered and claimed like landed ones (rule 3); that moves ``needed``.

Batch ids are noted before the bytes that carry them are registered: a writer that repeats one looks in the ledger
first and then at published bytes that are not registered.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from replication.core.frame import FrameKind, FrameView
from replication.core.routes.freshness import ClosedNotice
from replication.errors import BatchConflictError, FormatError, ReplicationError, StorageError
from replication.ledger.base import BatchPart, Claim, FileKind, Ledger
from replication.worker.files.host_files import HostFiles, Source
from replication.worker.files.reading import MappedFrames

_BYTES_MAX = 256 << 20
_CLAIMS_MAX = 20_000
_log = structlog.get_logger(__name__)


class Registrar:
    """Registers this host's own files. ``run_once`` may be called by several threads; they take turns."""

    def __init__(self, ledger: Ledger, host_files: HostFiles) -> None:
        self._ledger = ledger
        self._host_files = host_files
        self._lock = threading.Lock()
        self._troubled: set[str] = set()

    def run_once(self) -> set[str]:
        """Register everything that is durable when this is called; returns the writers of files that could not be."""
        failed: set[str] = set()
        with self._lock:
            self._host_files.refresh()
            for source in self._host_files.poll():
                if source.row.kind in (FileKind.LANDING, FileKind.BOOTSTRAP):
                    continue
                name = str(source.file)
                try:
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
            found = _find(source, begin)
            if found.claims:
                for (table, batch_id), parts in found.batches.items():
                    try:
                        self._ledger.batches.put(table, batch_id, parts, found.claims[-1].commit)
                    except BatchConflictError as error:  # acked, so it counts; the first content keeps the id
                        _log.error("batch_conflict", file=str(source.file), batch_id=batch_id, error=str(error))
                end = found.claims[-1].end
                divergences = self._ledger.registration.register_own(
                    source.file, begin, end, found.claims, found.notices
                )
                for divergence in divergences:
                    _log.error("own_frame_diverged", file=str(source.file), begin=divergence.claim.begin)
                begin = end
            if found.damage is not None:
                raise found.damage
            if not found.claims:
                return


@dataclass(slots=True)
class _Found:
    """What a claim range of a file holds; ``damage`` ended it early."""

    claims: list[Claim] = field(default_factory=list)
    notices: list[ClosedNotice] = field(default_factory=list)
    batches: dict[tuple[UUID, str], list[BatchPart]] = field(default_factory=dict)
    damage: FormatError | StorageError | None = None


def _find(source: Source, begin: int) -> _Found:
    found = _Found()
    mapped = MappedFrames(source.row.path, begin, source.length)
    try:
        for frame in mapped:
            header = frame.header
            if header.kind is FrameKind.CLOSED:  # one that cannot be read is not claimed
                found.notices.append(ClosedNotice.decode(mapped.payload(frame)))
            found.claims.append(_claim(frame))
            if header.batch_id:
                part = BatchPart(
                    header.group,
                    header.part,
                    header.parts,
                    header.payload_sha256,
                    source.file,
                    header.sequence,
                    frame.end,
                )
                found.batches.setdefault((header.table, header.batch_id), []).append(part)
            if len(found.claims) >= _CLAIMS_MAX or frame.end - begin >= _BYTES_MAX:
                break
    except (FormatError, StorageError) as error:
        found.damage = error
    return found


def _claim(frame: FrameView) -> Claim:
    header = frame.header
    return Claim(header.stream, header.sequence, header.previous, frame.hash, frame.begin, frame.end, header.commit_hi)
