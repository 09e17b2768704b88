"""A ledger that was lost is made anew from the tables and the files of frames that are still there.

Each row names the sequence that brought it: those sequences count as applied. Frames on the disk that brought no row
are pending again. A frame whose rows were all replaced by newer versions is applied once more, which changes nothing in
a table with a key. Rules, batch ids and the coverage of frames without rows cannot be found again: define the peers
again, and bootstrap from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from sqlalchemy.engine import make_url

from peer.repair.on_disk import of_known_tables, on_disk, save_whole
from peer.tables.commit_metadata import CommitMetadata
from peer.tables.read import NEWEST, attach_parts
from replication.config import Config
from replication.core.coverage import Ranges
from replication.core.definition.evolution import join
from replication.core.definition.schema import TableSpec
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.roles import first_role
from replication.error_text import counted
from replication.errors import RequestError
from replication.files.base import Files
from replication.files.frames import copy_name
from replication.ledger.base import Quarantined
from replication.ledger.sql.ledger import open_ledger
from replication.ledger.sql.rebuild import RebuildInput, RebuildPlan, move_database, rebuild
from replication.ledger.sql.store.definition_files import DefinitionFiles
from replication.settings import sqlite_url
from replication.tables.base import DUCKDB, Catalog
from replication.tables.layout import landing_name
from replication.wall_clock import now_us

_QUARANTINED_BEFORE = "it was quarantined, or a lost write, before the ledger was rebuilt"
#: Consecutive sequences of a stream as one row: a table may have rows of very many frames.
_SPANS = (
    "select o, w, g, min(s), max(s) + 1, max(c) from (select *, s - dense_rank() over (partition by o, w, g order by s)"
    " as island from ({}) brought(o, w, g, s, c)) each group by o, w, g, island"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a ledger was made from.

    ``unsure`` are tables that only the catalog has: they may have been dropped. ``damaged`` has a line for each file
    that was not taken whole. ``quarantined`` frames, which had been quarantined or were lost writes, are quarantined
    again. ``frames_copied`` is how many others have only their copies left.
    """

    cluster: ClusterId
    former: tuple[ClusterId, ...]
    tables: tuple[str, ...]
    unsure: tuple[str, ...]
    sequences: int
    files: int
    frames: int
    damaged: tuple[str, ...]
    quarantined: int
    frames_copied: int


def rebuild_ledger(config: Config, catalog: Catalog, files: Files) -> Rebuilt:
    """Make the ledger of ``config``, which is not there, under a new incarnation. Nothing of the cluster may run.

    Raises:
        RequestError: there is a ledger, or a table without key has several groups, whose rows do not tell theirs.
        VersionError: a file is of a newer walship.
    """
    path = Path(make_url(config.ledger_url).database or "")
    if there := [file for end in ("", "-wal") if (file := Path(f"{path}{end}")).exists()]:  # SQLite would apply its WAL
        raise RequestError(
            f"there is a ledger at {there[0]}", "Only if it cannot be used: move it away, with its -wal and -shm files"
        )
    part = path.with_name(f"{path.name}.part")
    for left in path.parent.glob(f"{part.name}*"):  # of one that was broken off
        left.unlink()
    kept = DefinitionFiles(path)
    defined = kept.tables()
    specs, dropped = _definitions(catalog.specs(), defined)
    applied = _applied_by(catalog, specs)
    found, damaged, upcoming = on_disk(config, files)
    seen = {each.file.cluster for each in found} | {stream.wal.cluster for stream in applied.sequences}
    former = tuple(sorted(each for each in seen if each.name == config.cluster.name))
    known = {NIL_UUID, *(spec.uuid for spec in (*specs, *dropped))}
    found = of_known_tables(found, known.__contains__, "a table that is not defined any more", damaged)
    cluster = ClusterId(config.cluster.name, uuid4())
    url, host = sqlite_url(part), config.cluster.host
    times = (applied.epoch, applied.newest)
    rebuild(
        url,
        cluster,
        RebuildPlan(former, host, specs, dropped, kept.versions(), applied.sequences, *times, found, upcoming),
        first_role(standby=config.cluster.standby),
    )
    again = _quarantine_again(url, found, applied.sequences, config.data_dir / "quarantine")
    lines = save_whole(config, url, files, damaged, known.__contains__)
    move_database(part, path)
    files.sync_directory(str(path.parent))
    return Rebuilt(
        cluster,
        former,
        tuple(spec.name for spec in specs),
        tuple(spec.name for spec in specs if defined and spec.uuid not in defined),
        sum(ranges.total for ranges in applied.sequences.values()),
        len(found),
        sum(len(each.claims) for each in found),
        lines,
        *again,
    )


def _quarantine_again(
    url: str, found: Sequence[RebuildInput], applied: Mapping[StreamId, Ranges], folder: Path
) -> tuple[int, int]:
    """Quarantine the frames again whose copies are in ``folder``: quarantined ones, and lost writes.

    A retry applies them; by then peers have told which are lost writes. Returns how many frames, and how many other
    copies there are.
    """
    copies, count = {copy.name for copy in folder.glob("*.frame")}, 0
    with closing(open_ledger(url)) as ledger:
        for each in found if copies else ():
            for claim in each.claims:
                name = copy_name(each.file, claim.begin)
                if name in copies and not applied.get(claim.stream, Ranges()).contains(claim.sequence):
                    place = (each.file, claim.begin, claim.end, claim.stream.table)
                    frame = Quarantined(*place, _QUARANTINED_BEFORE, str(folder / name), now_us())
                    ledger.replay.quarantine(frame, (claim.stream, claim.sequence))
                    count += 1
    return count, len(copies) - count


@dataclass(frozen=True, slots=True)
class _Applied:
    """What tables tell: the sequences of their rows, their newest commit time, and the newest epoch that committed."""

    sequences: Mapping[StreamId, Ranges]
    newest: int
    epoch: int


def _applied_by(catalog: Catalog, specs: Sequence[TableSpec]) -> _Applied:
    sequences: dict[StreamId, Ranges] = {}
    epoch = newest = 0
    for spec in specs:
        if not spec.key and len(spec.groups) > 1:
            raise RequestError(
                f"the rows of {spec.name} do not say which group they came with", "Move its Iceberg table away first"
            )
        if not catalog.has(spec):  # defined, and nothing of it replayed yet
            continue
        of_table, commit = _applied(catalog, spec)
        sequences |= of_table
        newest = max(newest, commit)
        commits = [CommitMetadata.of(snapshot) for snapshot in catalog.history(landing_name(spec)).snapshots.values()]
        epoch = max([epoch, *(commit.epoch for commit in commits if commit is not None)])
    return _Applied(sequences, newest, epoch)


def _definitions(found: Sequence[TableSpec], kept: Mapping[UUID, TableSpec]) -> tuple[list[TableSpec], list[TableSpec]]:
    """The tables to define, and those that were dropped.

    A table is defined as the catalog has it, with all that was defined since; also one that only ``kept`` has. A table
    of the catalog was dropped when nothing is kept of it and another one has its name.
    """
    names = {spec.name.lower() for spec in kept.values()}  # engines do not tell letter case apart
    made: list[TableSpec] = []
    dropped: list[TableSpec] = []
    for spec in found:
        if spec.uuid in kept:
            made.append(join(spec, kept[spec.uuid]))
        else:
            (dropped if spec.name.lower() in names else made).append(spec)
    taken = {spec.name.lower() for spec in made}
    for spec in kept.values():
        if spec.name.lower() not in taken:
            taken.add(spec.name.lower())
            made.append(spec)
    return made, dropped


def _applied(catalog: Catalog, spec: TableSpec) -> tuple[dict[StreamId, Ranges], int]:
    """The sequences that a table has rows of, per stream, and the newest commit time of those rows."""
    spans: dict[StreamId, list[tuple[int, int]]] = {}
    newest = 0
    with catalog.scratch_duckdb() as connection:
        parts = attach_parts(connection, catalog, spec, "every", NEWEST)
        place = f"_origin, _wal, {DUCKDB.text(spec.groups[0].name)} as _group, _seq, max(_commit)"
        by_no_key = f"select {place} from {parts.table} where _seq is not null group by all"  # others came by no WAL
        query = parts.brought_by() if spec.key else by_no_key
        for origin, wal, group, begin, end, commit in connection.sql(_SPANS.format(query)).fetchall():
            slot, _, number = wal.partition("/")
            stream = StreamId(FileId(ClusterId.parse(origin), slot, int(number)), spec.uuid, group)
            spans.setdefault(stream, []).append((begin, end))
            newest = max(newest, commit)
    return {stream: Ranges.union_of(of_stream) for stream, of_stream in spans.items()}, newest


def damage_lines(rebuilt: Rebuilt) -> Iterator[str]:
    """What a person should look at."""
    for name in rebuilt.unsure:
        yield f"only the catalog has table {name}: was it dropped? Then drop it again: walship droptable {name}"
    for line in rebuilt.damaged:
        yield f"a file was not taken whole; what is missing of it is lost unless a peer has it: {line}"
    if rebuilt.quarantined:
        yield (
            f"{counted(rebuilt.quarantined, 'frame')} had been quarantined, or kept as lost writes, and stay in"
            " quarantine: once the peers are defined again, walship quarantine retry"
        )
    if rebuilt.frames_copied:
        yield (
            f"the folder quarantine has copies of {counted(rebuilt.frames_copied, 'frame')} whose files are gone."
            " They are not applied: rows that are missing here come with a bootstrap from a peer that has them"
        )
