"""Salvaging a landing file that cannot be read (rule 2), by a person's word.

What can still be read of it, or landed elsewhere as a duplicate, is copied into a landing file of its own, where a
table here or a peer needs it; what tables have applied stays applied; the rest is asked for anew from the cluster that
sent it. Should that have let go of what a peer lacks, the peer needs a bootstrap. What is left of the file is kept
beside the quarantined frames.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import structlog

from peer.repair.saved_copy import SENT_AGAIN, copied
from peer.replay.loop import alone
from peer.tables.commit_metadata import CommitMetadata
from replication.config import Config
from replication.coordination.base import keeps_tables
from replication.coordination.paths import Election, MemberKind
from replication.coordination.session import Coordination
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES, FrameView, check_payload
from replication.core.ids import FileId
from replication.errors import CorruptFrameError, FormatError, LockedFileError, MissingFileError, RequestError
from replication.files.base import Files
from replication.files.mapped import ask, scan_mapped
from replication.files.store import store_of
from replication.ledger.base import AtRisk, Claim, FileRow, Ledger, ReplayCheckpoint, Salvaged
from replication.tables.base import Catalog
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import UNSYNCED_TAG, landing_name

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SalvagedLanding:
    """What became of the file; ``copies`` is the landing file of what was saved, ``remains`` where the rest lies."""

    salvaged: Salvaged
    copies: FileId | None
    remains: str


def give_up(
    config: Config, ledger: Ledger, files: Files, file: FileId, coordination: Coordination | None = None
) -> SalvagedLanding:
    """Salvage a landing file of this host, or of one that is gone.

    Args:
        config: this host's.
        ledger: of the cluster.
        files: this host's.
        file: the landing file.
        coordination: of the cluster, where it has several hosts: tells whether another one replays, or is gone.

    Raises:
        LockedFileError: the own replay runs, which might be applying some of it right now.
        RequestError: it is no landing file, still OPEN, of a host that is up, or cannot be salvaged; says why.
        MissingFileError: the ledger does not have it.
    """
    here = config.cluster.host
    keeps = replays(config, coordination)
    with ExitStack() as stack:
        stack.enter_context(without_replay(config.run_dir, coordination))
        check_host(ledger, file, here, coordination)
        row = ledger.salvage.at_risk(file).row
        left = stack.enter_context(at_hand(config, row))
        tables = {stream.table for stream in ledger.salvage.at_risk(file, keeps_tables=keeps).sequences}
        if tables:
            with closing(IcebergCatalog(configured_catalog(config))) as catalog:
                for table in tables:
                    settle(catalog, ledger, table)
        risk = ledger.salvage.at_risk(file, keeps_tables=keeps)
        readable, saved = _found(replace(risk, row=left), here)
        term = ledger.terms.current()
        copies: FileId | None = None
        if saved:
            with copied(config, ledger, files, row.source, saved) as made:
                copies = made.row.file
                salvaged = ledger.salvage.salvage_landing(file, term, readable, copies, made.claims, keeps_tables=keeps)
        else:
            salvaged = ledger.salvage.salvage_landing(file, term, readable, keeps_tables=keeps)
        remains = keep_remains(config, files, row, left.path) if row.host == here else ""
    _log.error(
        "landing_given_up", file=str(file), source=str(row.source), again=str(salvaged.again), copies=str(copies)
    )
    report_missing(ledger, salvaged.lacking)
    return SalvagedLanding(salvaged, copies, remains)


def report_missing(ledger: Ledger, lacking: Mapping[str, Mapping[UUID, int]]) -> None:
    """Log which tables need a bootstrap at which peer now, and for how many frames at most."""
    names = {spec.uuid: spec.name for spec in ledger.tables.all()}
    for peer, tables in lacking.items():
        for table, count in tables.items():
            _log.error("table_needs_bootstrap", peer=peer, table=names.get(table, str(table)), frames=count)


def missing_lines(lacking: Mapping[str, Mapping[UUID, int]], names: Mapping[UUID, str]) -> Iterator[str]:
    """What peers will not get, and what a person does about that."""
    for peer, tables in lacking.items():
        for uuid, count in tables.items():
            table = names.get(uuid, str(uuid))
            lacks = f"{peer} will not get up to {count} frames of {table}, and needs a bootstrap of it"
            yield f"{lacks}: walship bootstrap {peer} -t {table}"


def replays(config: Config, coordination: Coordination | None) -> bool:
    """Whether the cluster has an own replay, so that somebody here waits for frames."""
    return config.replay.enabled if coordination is None else keeps_tables(coordination.hosts())


def settle(catalog: Catalog, ledger: Ledger, table: UUID) -> None:
    """Mark what a table's commits have applied and their replayer died before it could mark.

    Raises:
        RequestError: the table was rolled back, and only replay can tell what it has; or the disk may have lost some.
    """
    spec = ledger.tables.by_uuid(table)
    if spec is None or not catalog.has(spec):
        return
    mark = ledger.replay.checkpoint(table)
    marked = mark.commit if mark is not None else 0
    history = catalog.history(landing_name(spec))
    if UNSYNCED_TAG in history.tags:
        raise RequestError(
            f"the disk failed when it was to hold {spec.name}, so what it has applied is not known",
            "Run walship replay first: it says what to do",
        )
    stamps = [(snapshot, stamp) for snapshot in history.chain() if (stamp := CommitMetadata.of(snapshot)) is not None]
    if stamps and max(stamp.number for _, stamp in stamps) < marked:
        raise RequestError(
            f"{spec.name} was rolled back, so what it has applied is not known", "Run walship replay first"
        )
    for snapshot, stamp in reversed(stamps):
        if stamp.number > marked:
            positions = {of: end for of, (_, end) in stamp.applied.items()}
            ledger.replay.checkpoint_applied(ReplayCheckpoint(table, stamp.epoch, stamp.number, snapshot.id, positions))


def check_host(ledger: Ledger, file: FileId, here: str, coordination: Coordination | None) -> None:
    """Whose file it is: this host's, or one's that is gone, whose OPEN file is then CLOSED as it is registered."""
    row = ledger.files.get(file)
    if row is None or row.host == here:
        return
    kinds = (MemberKind.WORKERS, MemberKind.RECEIVERS)
    if coordination is None or any(member.name == row.host for kind in kinds for member in coordination.members(kind)):
        raise RequestError(f"{file} lies on host {row.host}, which is up", "Salvage it there")
    if row.source is not None and not row.closed:
        ledger.files.close(file, row.length)


@contextmanager
def without_replay(run_dir: Path, coordination: Coordination | None) -> Iterator[None]:
    """While the own replay runs nowhere; LockedFileError when it does."""
    replays = None if coordination is None else coordination.leader(Election.REPLAYERS)
    if replays is not None:
        raise LockedFileError(
            f"Replay is running on host {replays}, and might be applying some of the file right now",
            "Stop the replay role on every host, salvage the file, and start them again",
        )
    try:
        with alone(run_dir):
            yield
    except LockedFileError:
        raise LockedFileError(
            "The own replay is running, and might be applying some of the file right now",
            "Stop the cluster on this host (walship down), salvage the file, and start it again",
        ) from None


def _found(risk: AtRisk, here: str) -> tuple[list[Claim], list[tuple[FrameView, memoryview]]]:
    """Frames of the file that can be read, less those that are needed and not copied; and those to be copied.

    These are the ones that a table here or a peer needs, in the file, and then those that are in any other file here.
    """
    readable: list[Claim] = []
    saved: list[tuple[FrameView, memoryview]] = []
    rest = dict(risk.sequences)
    places = [(risk.row, FILE_HEADER_BYTES, risk.row.length), *risk.duplicates]
    for row, begin, end in places:
        if row.host != here:  # another file may have that path here
            continue
        for frame, content in _readable(row.path, begin, end):
            header = frame.header
            is_own = row.file == risk.row.file
            is_applied = is_own and frame.end <= risk.applied.get(header.table, 0)
            waits = not is_applied and rest.get(header.stream, Ranges()).contains(header.sequence)
            lacked = is_own and risk.lacked.get((header.table, header.group), Ranges()).within(frame.begin, frame.end)
            if header.kind in SENT_AGAIN or (waits or lacked) and not is_whole(frame, content):
                continue
            if is_own:
                readable.append(claim_of(frame))
            if waits or lacked:
                saved.append((frame, content))
            if waits:
                rest[header.stream] = rest[header.stream].subtract(Ranges.of((header.sequence, header.sequence + 1)))
    return readable, saved


def is_whole(frame: FrameView, content: memoryview) -> bool:
    """Whether a frame's payload, at the end of its bytes, is what its header promises."""
    try:
        check_payload(frame, content[frame.payload_begin - frame.begin :])
    except CorruptFrameError:
        return False
    return True


def claim_of(frame: FrameView) -> Claim:
    """A frame with its place."""
    header = frame.header
    return Claim(header.stream, header.sequence, header.previous, frame.hash, frame.begin, frame.end, header.commit_hi)


def _readable(path: str, begin: int, end: int) -> Iterator[tuple[FrameView, memoryview]]:
    """Frames of ``[begin, end)`` with their bytes, up to the first whose header cannot be read.

    Those whose payload the disk does not give are left out.
    """
    try:
        with open(path, "rb") as source:
            mapped = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped with its last view
    except (OSError, ValueError):  # gone, or empty
        return
    view = memoryview(mapped)
    with suppress(FormatError, OSError):
        for frame in scan_mapped(mapped, begin, min(end, len(view))):
            try:
                ask(mapped, frame.payload_begin, frame.end)
            except OSError:
                continue
            yield frame, view[frame.begin : frame.end]


@contextmanager
def at_hand(config: Config, row: FileRow) -> Iterator[FileRow]:
    """A file with the path at which what is left of it can be read: of one in the store that of a copy for the while.

    Raises:
        StorageError: the store does not answer, so what it has is not known.
    """
    if not row.is_stored or row.host != config.cluster.host:
        yield row
        return
    copy = config.run_dir / f"salvage-{os.getpid()}.wal"
    try:
        with suppress(MissingFileError):
            store_of(row.path).get(row.path, str(copy))
        yield replace(row, path=str(copy))
    finally:
        copy.unlink(missing_ok=True)


def keep_remains(config: Config, files: Files, row: FileRow, path: str) -> str:
    """Move what is left of a file, durably, to where quarantined frames are; where it lies then, "" when it is gone.

    Args:
        config: the host's.
        files: the host's.
        row: the file; its object goes, where it is in a store.
        path: where it is at hand.
    """
    kept = ""
    if files.exists(path):
        directory = str(config.data_dir / "quarantine")
        files.make_directory(directory)
        kept = f"{directory}/{row.file.slot}-{row.file.number:012d}.wal"
        files.rename(path, kept)
        files.sync_directory(directory)
        files.sync_directory(str(Path(path).parent))
    if row.is_stored:
        store_of(row.path).remove(row.path)
    return kept
