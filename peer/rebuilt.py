"""A ledger that was lost is made anew from the tables and the files of frames that are still there.

What rows tell of the sequences that brought them counts as applied; frames on the disk that brought no row yet are
pending again. Newer versions may have replaced every row that a frame brought: such a frame is taken once more, which
changes nothing in a table with a key. What cannot be told (rules, batch ids, coverage of frames that left no row) comes
back by defining peers again, and from them by a bootstrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from peer.latest import Folded, Merge
from peer.replay.commit import Stamp
from replication.config import Config
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES, Kind, check_payload, read_file_header
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.schema import TableSpec
from replication.errors import CorruptFrameError, FormatError, RequestError
from replication.files.base import Files
from replication.files.frames import frames
from replication.ledger.base import Claim
from replication.ledger.sql_rebuild import Found, rebuild
from replication.tables.base import DUCKDB, Catalog, open_duckdb
from replication.tables.layout import CHANGES, TOMBSTONES, landing_name


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a ledger was made from; ``damaged`` says of files that could not be read to their end where they break."""

    cluster: ClusterId
    former: tuple[ClusterId, ...]
    tables: tuple[str, ...]
    sequences: int
    files: int
    frames: int
    damaged: tuple[str, ...]


def rebuild_ledger(config: Config, catalog: Catalog, files: Files) -> Rebuilt:
    """Make the ledger of ``config``, which is not there, under a new incarnation. Nothing of the cluster may run.

    Raises:
        RequestError: there is a ledger, or a table without key has several groups, whose rows do not tell theirs.
    """
    path = Path(config.ledger_url.removeprefix("sqlite:///"))
    if config.ledger_url.startswith("sqlite:///") and path.exists():
        raise RequestError(f"there is a ledger at {path}", "Move it away first, with its -wal and -shm files")
    specs = catalog.specs()
    applied: dict[StreamId, Ranges] = {}
    epoch = 0
    for spec in specs:
        if not spec.key and len(spec.groups) > 1:
            raise RequestError(
                f"the rows of {spec.name} do not say which group they came with", "Move its Iceberg table away first"
            )
        applied |= _applied(catalog, spec)
        stamps = [Stamp.of(snapshot) for snapshot in catalog.history(landing_name(spec)).snapshots.values()]
        epoch = max([epoch, *(stamp.epoch for stamp in stamps if stamp is not None)])
    found, damaged = _on_disk(config, files)
    known = {each.file.cluster for each in found} | {stream.wal.cluster for stream in applied}
    former = tuple(sorted(each for each in known if each.name == config.cluster.name))
    cluster = ClusterId(config.cluster.name, uuid4())
    rebuild(config.ledger_url, cluster, former, config.cluster.host, specs, applied, epoch, found)
    return Rebuilt(
        cluster,
        former,
        tuple(spec.name for spec in specs),
        sum(ranges.total for ranges in applied.values()),
        len(found),
        sum(len(each.claims) for each in found),
        tuple(damaged),
    )


def _applied(catalog: Catalog, spec: TableSpec) -> dict[StreamId, Ranges]:
    """The sequences of which rows are in a table, per stream."""
    spans: dict[StreamId, list[tuple[int, int]]] = {}
    with open_duckdb() as connection:
        catalog.attach(connection, "table", spec.name)
        query = f'select distinct _origin, _wal, {DUCKDB.text(spec.groups[0].name)} as _group, _seq from "table"'
        if spec.key:
            catalog.attach(connection, "changes", spec.name + CHANGES)
            catalog.attach(connection, "tombstones", spec.name + TOMBSTONES)
            query = Merge(spec, DUCKDB, "changes", DUCKDB.name("table"), "tombstones", Folded()).brought_by()
        for origin, wal, group, sequence in connection.sql(query).fetchall():
            slot, _, number = wal.partition("/")
            stream = StreamId(FileId(ClusterId.parse(origin), slot, int(number)), spec.uuid, group)
            spans.setdefault(stream, []).append((sequence, sequence + 1))
    return {stream: Ranges.union_of(of_stream) for stream, of_stream in spans.items()}


def _on_disk(config: Config, files: Files) -> tuple[list[Found], list[str]]:
    found: list[Found] = []
    damaged: list[str] = []
    for folder in (str(config.wal_dir), str(config.landing_dir)):
        files.make_directory(folder)
        for name in sorted(files.names(folder)):
            if name.endswith(".wal"):
                each = _read(files, f"{folder}/{name}", damaged)
                if each is not None:
                    found.append(each)
    return found, damaged


def _read(files: Files, path: str, damaged: list[str]) -> Found | None:
    """The intact frames of a file; None of bootstraps, which come again, and of what is no file of frames."""
    handle = files.open(path)
    claims: list[Claim] = []
    try:
        file, created = read_file_header(handle.read(0, FILE_HEADER_BYTES))
        try:
            for frame, payload in frames(handle, FILE_HEADER_BYTES, handle.size()):
                check_payload(frame, payload)
                header = frame.header
                if header.kind in (Kind.BOOTSTRAP, Kind.COVERAGE):
                    return None
                place = (frame.begin, frame.end, header.commit_hi)
                claims.append(Claim(header.stream, header.sequence, header.previous, frame.hash, *place))
        except CorruptFrameError as error:
            damaged.append(f"{path}: {error.what}")
    except FormatError as error:
        damaged.append(f"{path}: {error.what}")
        return None
    finally:
        handle.close()
    return Found(file, path, created, tuple(claims))


def damage_lines(rebuilt: Rebuilt) -> Iterator[str]:
    """What a person should look at."""
    for line in rebuilt.damaged:
        yield f"not all of a file could be read, and what follows there is lost unless a peer has it: {line}"
