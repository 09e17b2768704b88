"""Salvaging a file that was written here and cannot be read (rule 2), by a person's word.

What can still be read of it, before the damage and after, and that a table here or a peer still needs, is copied into
a landing file of its own and goes on from there. The rest is lost for those who do not have it: the ledger says for
whom, and then nobody waits for it any more. What is left of the file is kept beside the quarantined frames.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from uuid import UUID

import structlog

from peer.repair.readable import ReadableFile, find_readable
from peer.repair.salvage import (
    at_hand,
    check_host,
    keep_remains,
    missing_lines,
    replays,
    report_missing,
    settle,
    without_replay,
)
from peer.repair.saved_copy import copied
from replication.config import Config
from replication.coordination.session import Coordination
from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId
from replication.errors import LockedFileError, MissingFileError, RequestError
from replication.files.base import AppendFile, Files
from replication.ledger.base import FileKind, FileRow, Ledger, OwnLoss, Readable
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.writer.wal.durable_length import DurableLength, len_path
from replication.writer.wal.registration import lock_path

_LOCK_S = 1.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SalvagedOwn:
    """What became of the file; ``copies`` is the landing file of what was saved, ``remains`` where the rest lies."""

    loss: OwnLoss
    copies: FileId | None
    remains: str


@dataclass(frozen=True, slots=True)
class _Settled:
    """What can be read of a file, and what it would mean to salvage it, while nothing of that changes."""

    content: ReadableFile
    loss: OwnLoss
    keeps_tables: bool
    path: str


def own_loss(
    config: Config, ledger: Ledger, files: Files, file: FileId, coordination: Coordination | None = None
) -> OwnLoss:
    """What ``salvage_own`` would do now; nothing is salvaged by asking. Raises as it does."""
    with _settled(config, ledger, files, file, coordination) as settled:
        return settled.loss


def salvage_own(
    config: Config, ledger: Ledger, files: Files, file: FileId, coordination: Coordination | None = None
) -> SalvagedOwn:
    """Salvage a file that was written on this host, or on one that is gone; durable when it returns.

    Args:
        config: this host's.
        ledger: of the cluster.
        files: this host's.
        file: a WAL that is CLOSED or whose writer is dead, a copy of such, a control log, or a bootstrap.
        coordination: of the cluster, where it has several hosts: tells whether another one replays, or is gone.

    Raises:
        LockedFileError: the own replay runs, which might be applying some of it right now.
        RequestError: its writer lives, its host is up, or it cannot be salvaged; says why.
        MissingFileError: the ledger does not have it.
    """
    with _settled(config, ledger, files, file, coordination) as settled:
        term, readable = ledger.terms.current(), settled.content.readable
        frames = [settled.content.frames[claim.begin] for claim in settled.loss.wanted]
        keeps = settled.keeps_tables
        copies: FileId | None = None
        if frames:
            with copied(config, ledger, files, None, frames) as made:
                copies = made.row.file
                loss = ledger.salvage.salvage_own(file, term, readable, copies, made.claims, keeps_tables=keeps)
        else:
            loss = ledger.salvage.salvage_own(file, term, readable, keeps_tables=keeps)
        remains = ""
        if loss.row.host == config.cluster.host:
            if loss.row.is_redundant:
                files.remove(settled.path)
            remains = keep_remains(config, files, loss.row, settled.path)
            files.remove(len_path(settled.path))
    _tell(ledger, loss, copies, remains)
    return SalvagedOwn(loss, copies, remains)


def _tell(ledger: Ledger, loss: OwnLoss, copies: FileId | None, remains: str) -> None:
    names = {spec.uuid: spec.name for spec in ledger.tables.all()}
    _log.error(
        "wal_given_up",
        file=str(loss.row.file),
        lost=by_table(loss.lost, names),
        unknown_bytes=loss.untold_bytes,
        copies=str(copies or ""),
        remains=remains,
    )
    report_missing(ledger, loss.lacking)


@contextmanager
def _settled(
    config: Config, ledger: Ledger, files: Files, file: FileId, coordination: Coordination | None
) -> Iterator[_Settled]:
    here = config.cluster.host
    keeps = replays(config, coordination)
    row = ledger.files.get(file)
    if row is None:
        raise MissingFileError(f"the ledger has no file {file}", "It may have been retired; see: walship wal list")
    if row.is_redundant:
        check_host(ledger, file, here, coordination)
        _refuse_growing(files, row, here)
        loss = ledger.salvage.own_loss(file, Readable(row.needed))
        yield _Settled(ReadableFile(Readable(row.needed)), loss, keeps, row.path)
        return
    with (
        without_replay(config.run_dir, coordination),
        _without_writer(config, files, row),
        at_hand(config, row) as left,
    ):
        check_host(ledger, file, here, coordination)
        waiting = {stream.table for stream in ledger.salvage.own_loss(file, Readable(row.needed)).lost}
        found = find_readable(left, _published(left, files)) if row.host == here else ReadableFile(Readable(row.needed))
        _settle(config, ledger, waiting)
        loss = ledger.salvage.own_loss(file, found.readable, keeps_tables=keeps)
        yield _Settled(found, loss, keeps, left.path)


def _refuse_growing(files: Files, row: FileRow, here: str) -> None:
    if row.kind is FileKind.CONTROL and not row.closed and row.host == here and files.exists(row.path):
        raise RequestError(
            f"the worker of this host writes {row.file}, or will close it", "Restart it: walship down, walship up"
        )


def _settle(config: Config, ledger: Ledger, tables: set[UUID]) -> None:
    if tables and config.replay.enabled:
        with closing(IcebergCatalog(configured_catalog(config))) as catalog:
            for table in sorted(tables):
                settle(catalog, ledger, table)


@contextmanager
def _without_writer(config: Config, files: Files, row: FileRow) -> Iterator[None]:
    """While nobody writes an OPEN file of this host, or recovers it."""
    if row.closed or row.host != config.cluster.host or not row.writer:
        yield
        return
    lock: AppendFile | None = None
    with contextlib.suppress(MissingFileError):
        lock = files.open(lock_path(str(config.wal_dir), row.writer))
    try:
        if lock is not None:
            _take(lock, row)
        yield
    finally:
        if lock is not None:
            lock.close()


def _take(lock: AppendFile, row: FileRow) -> None:
    """Take a writer's lock, which the worker has for a moment whenever it tries to recover the file."""
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            lock.lock()
            return
        except LockedFileError:
            if time.monotonic() > deadline:
                raise RequestError(f"{row.file} is still written by {row.writer}", "Close that writer first") from None
        time.sleep(0.02)


def _published(row: FileRow, files: Files) -> int:
    """Up to where its bytes were said to be durable, by its counters where they are there."""
    counters = DurableLength.open(row.path, row.boot, files)
    if counters is None:
        return row.needed
    try:
        return row.needed if row.closed else max(row.needed, counters.length)
    finally:
        counters.close()


def told(loss: OwnLoss, names: Mapping[UUID, str]) -> Iterator[str]:
    """What a loss means, line by line, for a person.

    Args:
        loss: of a file.
        names: of the cluster's tables.
    """
    if loss.row.is_redundant:
        is_control = loss.row.kind is FileKind.CONTROL
        again = (
            "later control logs say what it says"
            if is_control
            else "replay writes another bootstrap, if it is required_from"
        )
        yield f"nothing is lost with it: {again}"
        return
    for table, lost in by_table(loss.lost, names).items():
        yield f"{lost} frames of {table} are lost here: they cannot be read, and no table here has applied them"
        for peer, found in loss.at_peers.items():
            there = by_table(found, names).get(table, 0)
            if there:
                yield (
                    f"{there} of these are at {peer}: to get their rows back, have it send the table here with"
                    " enablereplication --bootstrap, or bootstrap if it sends it already"
                )
    yield from missing_lines(loss.lacking, names)
    if not loss.row.closed:
        yield f"it was OPEN: what was written past {loss.row.needed} bytes and cannot be read now is not known"
    for uuid in sorted(loss.doubtful):
        yield f"{names.get(uuid, str(uuid))} has no key, and has applied an unknown part of it: it cannot be salvaged"
    if loss.untold_bytes:
        yield f"{loss.untold_bytes} bytes that cannot be read were not in the ledger yet: of which tables is not known"


def by_table(sequences: Mapping[StreamId, Ranges], names: Mapping[UUID, str]) -> dict[str, int]:
    """How many frames these are, by the name of their table."""
    made: dict[str, int] = {}
    for stream, ranges in sequences.items():
        name = names.get(stream.table, str(stream.table))
        made[name] = made.get(name, 0) + ranges.total
    return made
