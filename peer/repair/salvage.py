"""Salvaging a lost or damaged file (rule 2), by a person's word.

Salvage looks for what can be read, before the damage and after. What a table here or a peer still needs is copied into
a landing file of its own, and goes on from there. What tables have applied stays applied. The rest of a landing file is
asked for again from the cluster that sent it. The rest of a file that was written here is lost for clusters that do not
have it. The ledger records for which, and nobody waits for it any more. What is left of the file is kept beside the
quarantined frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from uuid import UUID

from peer.repair.damaged import available, link_damaged, remove_original
from peer.repair.guards import check_growing, check_host, without_replay, without_writer
from peer.repair.readable import ReadableFile, find_elsewhere, find_readable
from peer.repair.saved_copy import copied
from peer.repair.unrecorded import unrecorded
from replication.config import Config
from replication.coordination.base import keeps_tables
from replication.coordination.session import Coordination
from replication.core.ids import FileId
from replication.errors import MissingFileError
from replication.files.base import Files
from replication.ledger.base import FileRow, Ledger, Readable, SalvagePlan
from replication.writer.wal.durable_length import DurableLength


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was done; ``copies`` is the landing file of what was saved, ``damaged`` where the rest lies."""

    plan: SalvagePlan
    copies: FileId | None
    damaged: str


@dataclass(frozen=True, slots=True)
class SalvageSite:
    """The host where a file is salvaged.

    ``coordination`` tells whether another host replays, or is gone; None where the cluster has one host.
    """

    config: Config
    ledger: Ledger
    files: Files
    coordination: Coordination | None = None

    @property
    def keeps_tables(self) -> bool:
        """Whether the cluster has an own replay, so that somebody here waits for frames."""
        if self.coordination is None:
            return self.config.replay.enabled
        return keeps_tables(self.coordination.hosts())


def plan_salvage(site: SalvageSite, file: FileId) -> SalvagePlan:
    """What ``salvage`` would do now. Changes nothing, and may be asked while replay runs.

    Raises:
        RequestError: its writer lives, its host is up, or what tables have applied of it is not known.
        MissingFileError: the ledger does not have it.
    """
    row = _row(site, file)
    with _untouched(site, row), available(site.config, row) as left:
        applied = {
            checkpoint.table: checkpoint.positions[file]
            for checkpoint in unrecorded(site.config, site.ledger, _waiting_tables(site, row))
            if file in checkpoint.positions
        }
        content = _find(site, left)
        return site.ledger.salvage.plan(file, content.readable, keeps_tables=site.keeps_tables, applied=applied)


def salvage(site: SalvageSite, file: FileId) -> Salvaged:
    """Salvage a file of this host, or of one that is gone; durable when it returns. Killed, it is simply run again.

    The file is CLOSED, or an OPEN one whose writer is dead or whose host is gone.

    Raises:
        LockedFileError: the own replay runs, which might be applying some of it right now.
        RequestError: its writer lives, its host is up, or it cannot be salvaged; says why.
        MissingFileError: the ledger does not have it.
    """
    row, config, ledger = _row(site, file), site.config, site.ledger
    with ExitStack() as stack:
        if not row.is_redundant:
            stack.enter_context(without_replay(config.run_dir, site.coordination))
        stack.enter_context(_untouched(site, row))
        left = stack.enter_context(available(config, row))
        for checkpoint in unrecorded(config, ledger, _waiting_tables(site, row)):
            ledger.replay.checkpoint_applied(checkpoint)
        if row.source is not None and not row.closed:  # of a host that is gone
            ledger.files.close(file, row.length)
        content, keeps, term = _find(site, left), site.keeps_tables, ledger.terms.current()
        plan = ledger.salvage.plan(file, content.readable, keeps_tables=keeps)
        own = left.host == config.cluster.host
        damaged = link_damaged(config, site.files, row, left.path) if own else ""
        frames = [content.frames[claim] for claim in (*plan.wanted, *plan.elsewhere)]
        with copied(config, ledger, site.files, row.source, frames) if frames else nullcontext() as made:
            copies, claims = (made.row.file, made.claims) if made is not None else (None, ())
            plan = ledger.salvage.carry_out(file, term, content.readable, copies, claims, keeps_tables=keeps)
        if own:
            remove_original(site.files, row, left.path)
    return Salvaged(plan, copies, damaged)


def _row(site: SalvageSite, file: FileId) -> FileRow:
    row = site.ledger.files.get(file)
    if row is None:
        raise MissingFileError(f"the ledger has no file {file}", "It may have been retired; see: walship wal list")
    return row


@contextmanager
def _untouched(site: SalvageSite, row: FileRow) -> Iterator[None]:
    """While nobody writes the file."""
    check_host(row, site.config.cluster.host, site.coordination)
    if row.is_redundant:
        check_growing(site.files, row, site.config.cluster.host)
        yield
        return
    with without_writer(site.config, site.files, row):
        yield


def _waiting_tables(site: SalvageSite, row: FileRow) -> set[UUID]:
    """The tables that have not applied all of the file, as far as the ledger knows."""
    nothing = Readable(row.needed)
    lost = site.ledger.salvage.plan(row.file, nothing, keeps_tables=site.keeps_tables).lost
    return {stream.table for stream in lost}


def _find(site: SalvageSite, row: FileRow) -> ReadableFile:
    """What can be read of the file, and what of the rest landed as duplicates in other files of this host."""
    here, records = site.config.cluster.host, site.ledger.salvage
    if row.is_redundant:
        return ReadableFile(Readable(row.needed))
    found = ReadableFile(Readable(row.needed))
    if row.host == here:
        found = find_readable(row, _published(row, site.files))
    lost = records.plan(row.file, found.readable, keeps_tables=site.keeps_tables).lost
    places = [place for place in records.duplicates(row.file, lost) if place[0].host == here]
    elsewhere = find_elsewhere(places, lost)
    return ReadableFile(replace(found.readable, elsewhere=tuple(elsewhere)), {**found.frames, **elsewhere})


def _published(row: FileRow, files: Files) -> int:
    """Up to where its bytes were said to be durable, by its counters where they are there."""
    counters = DurableLength.open(row.path, row.boot, files)
    if counters is None:
        return row.needed
    with closing(counters):
        return row.needed if row.closed else max(row.needed, counters.length)
