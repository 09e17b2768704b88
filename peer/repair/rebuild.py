"""A ledger that was lost is made anew from the tables and the files of frames that are still there.

What rows tell of the sequences that brought them counts as applied; frames on the disk that brought no row yet are
pending again. Newer versions may have replaced every row that a frame brought: such a frame is taken once more, which
changes nothing in a table with a key. What cannot be told (rules, batch ids, coverage of frames that left no row) comes
back by defining peers again, and from them by a bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePath
from uuid import UUID, uuid4

from sqlalchemy.engine import make_url

from peer.repair.readable import claim_of, find_readable
from peer.repair.remains import keep_remains
from peer.repair.saved_copy import SENT_AGAIN, copied
from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import Folded, MergeQuery
from replication.config import Config
from replication.core.coverage import Ranges
from replication.core.definition.evolution import join
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES, check_payload, read_file_header
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.errors import CorruptFrameError, RequestError
from replication.files.base import Files
from replication.files.frames import frames
from replication.ledger.base import Claim, FileKind, FileRow
from replication.ledger.sql.ledger import open_ledger
from replication.ledger.sql.rebuild import RebuildInput, RebuildPlan, move_database, rebuild
from replication.ledger.sql.store.definition_files import DefinitionFiles
from replication.settings import sqlite_url
from replication.tables.base import DUCKDB, Catalog, open_duckdb
from replication.tables.layout import CHANGES, TOMBSTONES, landing_name


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a ledger was made from.

    ``unsure`` are those of its tables that may have been dropped: the catalog has them, and nothing else. ``damaged``
    says what became of each file that not all was taken of.
    """

    cluster: ClusterId
    former: tuple[ClusterId, ...]
    tables: tuple[str, ...]
    unsure: tuple[str, ...]
    sequences: int
    files: int
    frames: int
    damaged: tuple[str, ...]


def rebuild_ledger(config: Config, catalog: Catalog, files: Files) -> Rebuilt:
    """Make the ledger of ``config``, which is not there, under a new incarnation. Nothing of the cluster may run.

    Raises:
        RequestError: there is a ledger, or a table without key has several groups, whose rows do not tell theirs.
        VersionError: a file is of a newer walship.
    """
    path = Path(make_url(config.ledger_url).database or "")
    if path.exists():
        raise RequestError(f"there is a ledger at {path}", "Move it away first, with its -wal and -shm files")
    part = path.with_name(f"{path.name}.part")
    for left in path.parent.glob(f"{part.name}*"):  # of one that was broken off
        left.unlink()
    kept = DefinitionFiles(path)
    defined = kept.tables()
    specs, dropped = _definitions(catalog.specs(), defined)
    applied: dict[StreamId, Ranges] = {}
    epoch = newest = 0
    for spec in specs:
        if not spec.key and len(spec.groups) > 1:
            raise RequestError(
                f"the rows of {spec.name} do not say which group they came with", "Move its Iceberg table away first"
            )
        if not catalog.has(spec):  # it was made, and nothing of it replayed yet
            continue
        of_table, commit = _applied(catalog, spec)
        applied |= of_table
        newest = max(newest, commit)
        stamps = [CommitMetadata.of(snapshot) for snapshot in catalog.history(landing_name(spec)).snapshots.values()]
        epoch = max([epoch, *(stamp.epoch for stamp in stamps if stamp is not None)])
    found, damaged, upcoming = on_disk(config, files)
    heard = {each.file.cluster for each in found} | {stream.wal.cluster for stream in applied}
    former = tuple(sorted(each for each in heard if each.name == config.cluster.name))
    known = {NIL_UUID, *(spec.uuid for spec in (*specs, *dropped))}
    found = of_known_tables(found, known.__contains__, "a table that is not defined any more", damaged)
    cluster = ClusterId(config.cluster.name, uuid4())
    url, host = sqlite_url(part), config.cluster.host
    plan = RebuildPlan(former, host, specs, dropped, kept.versions(), applied, epoch, newest, found, upcoming)
    rebuild(url, cluster, plan)
    told = save_whole(config, url, files, damaged, known.__contains__)
    move_database(part, path)
    files.sync_directory(str(path.parent))
    return Rebuilt(
        cluster,
        former,
        tuple(spec.name for spec in specs),
        tuple(spec.name for spec in specs if defined and spec.uuid not in defined),
        sum(ranges.total for ranges in applied.values()),
        len(found),
        sum(len(each.claims) for each in found),
        told,
    )


def _definitions(found: Sequence[TableSpec], kept: Mapping[UUID, TableSpec]) -> tuple[list[TableSpec], list[TableSpec]]:
    """The tables as the catalog has them, with all that was defined since, and those that it has not got yet.

    Also those of the catalog that were dropped: nothing is ``kept`` of them, and another table has the name.
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
    """The sequences of which rows are in a table, per stream, and the newest commit time among those rows."""
    spans: dict[StreamId, list[tuple[int, int]]] = {}
    newest = 0
    with open_duckdb() as connection:
        catalog.attach(connection, "table", spec.name)
        place = f"_origin, _wal, {DUCKDB.text(spec.groups[0].name)} as _group, _seq, max(_commit)"
        query = f'select {place} from "table" group by all'
        if spec.key:
            catalog.attach(connection, "changes", spec.name + CHANGES)
            catalog.attach(connection, "tombstones", spec.name + TOMBSTONES)
            query = MergeQuery(spec, DUCKDB, "changes", DUCKDB.name("table"), "tombstones", Folded()).brought_by()
        for origin, wal, group, sequence, commit in connection.sql(query).fetchall():
            slot, _, number = wal.partition("/")
            stream = StreamId(FileId(ClusterId.parse(origin), slot, int(number)), spec.uuid, group)
            spans.setdefault(stream, []).append((sequence, sequence + 1))
            newest = max(newest, commit)
    return {stream: Ranges.union_of(of_stream) for stream, of_stream in spans.items()}, newest


def on_disk(config: Config, files: Files, since: int | None = None) -> tuple[list[RebuildInput], dict[str, str], int]:
    """Files of frames, those that are damaged with what is wrong, and the first number above all of this host's.

    Args:
        config: this host's.
        files: this host's.
        since: only files with this number or a higher one; None for all.
    """
    found: list[RebuildInput] = []
    damaged: dict[str, str] = {}
    numbers = [-1]
    for folder in (str(config.wal_dir), str(config.landing_dir)):
        files.make_directory(folder)
        for name in sorted(files.names(folder)):
            stem, dot, suffix = name.partition(".")
            if suffix != "wal":
                continue
            path = f"{folder}/{name}"
            if stem.isdigit():
                numbers.append(int(stem))
            if since is not None and numbers[-1] < since:
                continue
            try:
                each = _read(files, path)
            except CorruptFrameError as error:
                damaged[path] = error.what
                continue
            if each is not None:
                found.append(each)
    return found, damaged, max(numbers) + 1


def of_known_tables(
    found: Sequence[RebuildInput], is_known: Callable[[UUID], bool], unknown: str, problems: dict[str, str]
) -> list[RebuildInput]:
    """Files without frames of tables that the ledger is not to know; the others join ``problems``, with what is wrong.

    Nobody would replay those frames, and they would count as applied. ``unknown`` is what such a table is called.
    """
    known = []
    for each in found:
        if all(is_known(table) for table in {claim.stream.table for claim in each.claims}):
            known.append(each)
        else:
            problems[each.path] = f"it has frames of {unknown}"
    return known


def _read(files: Files, path: str) -> RebuildInput | None:
    """The frames of a file; None of bootstraps, which come again.

    Raises:
        CorruptFrameError: not all of it is intact.
    """
    handle = files.open(path)
    claims: list[Claim] = []
    try:
        file, created = read_file_header(handle.read(0, FILE_HEADER_BYTES))
        for frame, payload in frames(handle, FILE_HEADER_BYTES, handle.size()):
            check_payload(frame, payload)
            if frame.header.kind in SENT_AGAIN:
                return None
            claims.append(claim_of(frame))
    finally:
        handle.close()
    return RebuildInput(file, path, created, tuple(claims))


def save_whole(
    config: Config, url: str, files: Files, damaged: Mapping[str, str], wanted: Callable[[UUID], bool] = lambda _: True
) -> tuple[str, ...]:
    """Copy what can be read of damaged files, before the damage and after it, and keep them beside the quarantine.

    Only frames of tables that are ``wanted``. Returns a line for each.
    """
    told: list[str] = []
    host, nobody = config.cluster.host, ClusterId(config.cluster.name, NIL_UUID)
    with closing(open_ledger(url)) as ledger:
        for path, what in damaged.items():
            stem = PurePath(path).stem
            named = FileId(nobody, host, int(stem) if stem.isdigit() else 0)
            row = FileRow(named, FileKind.LANDING, host, path, False, 0, "", "", 0, 0, 0)
            readable = find_readable(row, 0).frames.values()
            whole = [each for each in readable if wanted(each[0].header.table)]
            if whole:
                with copied(config, ledger, files, None, whole) as made:
                    end = made.claims[-1].end
                    ledger.registration.register_own(made.row.file, FILE_HEADER_BYTES, end, made.claims)
                    ledger.files.close(made.row.file, end)
            kept = keep_remains(config, files, row, path)
            told.append(f"{what}: {path} ({len(whole)} of {len(readable)} frames saved; the file is {kept} now)")
    return tuple(told)


def damage_lines(rebuilt: Rebuilt) -> Iterator[str]:
    """What a person should look at."""
    for name in rebuilt.unsure:
        yield f"only the catalog has table {name}: was it dropped? Then drop it again: walship droptable {name}"
    for line in rebuilt.damaged:
        yield f"not all of a file could be taken, and what is missing of it is lost unless a peer has it: {line}"
