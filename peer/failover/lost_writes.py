"""Lost writes: rows that a cluster acked before another one took over from it, and that came too late to count.

They are kept as frames, beside the quarantined ones. A person merges or discards them, and may export them first.
Merged ones count after all: as the versions that they are, or written again if a failover had taken them back. For
discarded ones this cluster's rows are written again, for clusters that had applied them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pyarrow as pa

from peer.client.cluster import Cluster
from peer.failover.landed import has_timestamps, in_batches
from peer.failover.restate import LostRows, rows_again, rows_in_place
from peer.failover.take_back import restated_at
from peer.polling import polls
from peer.repair.quarantine_actions import discard as discard_frame
from peer.repair.quarantine_actions import name_of, retry, saved_frame
from replication.core.definition.schema import TS, TableSpec
from replication.core.frame import FrameView, SealedHeader
from replication.core.roles import Role
from replication.core.rows.batch import LogBatch, decode_payload
from replication.core.succession import Succession, Successions, cut_of
from replication.error_text import counted
from replication.errors import (
    BatchConflictError,
    CorruptFrameError,
    MissingFileError,
    ReplicationError,
    RequestError,
    WaitTimeoutError,
)
from replication.files.local import LocalFiles
from replication.ledger.base import BatchPart, Quarantined
from replication.wall_clock import now_us

_POLL_S = 0.1
#: The frames of a file that are merged in one transaction, and their bytes.
_FRAMES_MAX = 200
_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class LostWrite:
    """One kept frame: its place, what it would have changed, and what became of it ("kept" or "discarded").

    ``unreadable`` is why its copy cannot be read here, "" when it can; then ``rows`` is 0.
    """

    frame: str
    table: str
    rows: int
    committed: int
    succession: str
    state: str
    copy: str
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class _Kept:
    record: Quarantined
    view: FrameView

    @property
    def commit(self) -> int:
        """Its commit time."""
        return self.view.header.commit_hi


def lost_writes(cluster: Cluster, table: str = "") -> list[LostWrite]:
    """All lost writes that this cluster keeps, of one table or all, oldest first."""
    names = {spec.uuid: spec.name for spec in cluster.tables()}
    listed = []
    for record in _records(cluster, table):
        rows, committed, unreadable = 0, record.at, ""
        try:
            header = _read(record).view.header
            rows, committed = header.row_count, header.commit_hi
        except (CorruptFrameError, MissingFileError) as error:
            unreadable = error.what
        state = "discarded" if record.discarded else "kept"
        name = names.get(record.table, str(record.table))
        found = (name_of(record), name, rows, committed, record.succession, state, record.copy, unreadable)
        listed.append(LostWrite(*found))
    return sorted(listed, key=lambda each: each.committed)


def undecided(cluster: Cluster, table: str = "") -> tuple[int, int, str]:
    """How many frames of lost writes nobody has decided on, their rows, and both as a text."""
    writes = [each for each in lost_writes(cluster, table) if each.state == "kept"]
    rows, unread = sum(each.rows for each in writes), [each for each in writes if each.unreadable]
    text = f"{counted(len(writes), 'frame')} of lost writes with {counted(rows, 'row')}"
    if unread:
        text += f" and those of {counted(len(unread), 'frame')} that cannot be read here ({unread[0].unreadable})"
    return len(writes), rows, text


def still_undecided(cluster: Cluster, table: str) -> str:
    """What to say after a decision of the lost writes that are still kept; "" without any."""
    frames, _, text = undecided(cluster, table)
    remedy = "or, if a copy is damaged or gone for good: walship lostwrites discard --leave-applied"
    return f"; still kept: {text}; decide on them on the host that has them, {remedy}" if frames else ""


def rows_of(cluster: Cluster, table: str) -> Iterator[pa.RecordBatch]:
    """The rows of a table's lost writes, with ``_op`` (0: upsert, else delete), ``_commit`` and ``_group``.

    ``_commit`` is in microseconds since 1970. Frames whose copies cannot be read here are left out.

    Raises:
        UnknownTableError: there is no such table.
    """
    for kept in _readable(_records(cluster, cluster.table(table).name))[0]:
        batch = _decoded(cluster, kept).batch
        shown = {name: batch.column(name) for name in batch.schema.names if name != TS}
        count = pa.repeat(pa.scalar(kept.view.header.commit_hi), batch.num_rows)
        group = pa.repeat(pa.scalar(kept.view.header.group), batch.num_rows)
        yield pa.RecordBatch.from_pydict({**shown, "_commit": count, "_group": group})


def merge(cluster: Cluster, table: str = "") -> int:
    """Have lost writes applied as the versions that they are; newer rows win over them. Returns how many frames.

    First the successions' cuts grow in the ledger, so that the frames count here and at every peer that learns of it.
    Those that a failover took back are written again, above the rows that stand in their place. Discarded ones stay so,
    and those whose copies cannot be read here stay kept.

    Raises:
        RequestError: some that were taken back cannot be written again here, or some of a table without a key are of
            batches that were repeated since; all others are merged.
    """
    merged, refusals = 0, []
    groups: dict[tuple[UUID, str], list[Quarantined]] = {}
    for record in _records(cluster, table):
        groups.setdefault((record.table, record.succession), []).append(record)
    for (uuid, name), records in groups.items():
        if any(not record.discarded for record in records):
            count, refusal = _merge(cluster, uuid, _succession(cluster, name), records)
            merged += count
            refusals += [refusal] if refusal else []
    if refusals:
        what, hint = refusals[0]
        raise RequestError(f"{what}; {counted(merged, 'frame')} merged", hint)
    return merged


def _merge(
    cluster: Cluster, table: UUID, succession: Succession, records: Sequence[Quarantined]
) -> tuple[int, tuple[str, str] | None]:
    """Merge a table's lost writes of one succession. What other successions took back was undone at other times.

    Returns how many were merged, and why those that were taken back were not, or None.
    """
    released = cluster.ledger.replay.released(table, str(succession))
    restated = restated_at([*records, *released])
    found, unread = _readable(record for record in records if not record.discarded)
    before, also_unread = _readable(released)
    every = _unless_repeated(cluster, table, found)
    undone = [kept for kept in every if kept.commit < restated]
    rest = [kept for kept in every if kept.commit >= restated]
    refusal = (
        _why_not_again(cluster, [*unread, *also_unread])
        if undone
        else _why_not_twice(cluster, table, len(found) - len(every))
    )
    again = [] if refusal else undone
    if again or rest:
        headers = [kept.view.header for kept in (*again, *rest)]
        cut = cut_of((header.stream, header.sequence) for header in headers)
        cluster.ledger.successions.record(replace(succession, cut=cut))
        _remember_batches(cluster, headers)
    if again:
        _write_again(cluster, table, again, before, restated)
    for kept in again:
        cluster.ledger.replay.release(kept.record.file, kept.record.begin)
    by_file = sorted((kept.record for kept in rest), key=lambda each: (each.file, each.begin))
    for _, of_file in groupby(by_file, key=lambda each: each.file):
        for batch in in_batches(of_file, lambda each: each.end - each.begin, _BYTES_MAX, _FRAMES_MAX):
            retry(cluster.config, cluster.ledger, LocalFiles(), *batch)
    return len(again) + len(rest), refusal


def _unless_repeated(cluster: Cluster, table: UUID, every: list[_Kept]) -> list[_Kept]:
    """Those that can be merged: in a table without a key, a batch that was repeated since would be there twice."""
    if all(spec.key for spec in cluster.tables() if spec.uuid == table):
        return every
    return [kept for kept in every if not _is_repeated(cluster, kept.view.header)]


def _is_repeated(cluster: Cluster, header: SealedHeader) -> bool:
    parts = cluster.ledger.batches.parts(header.table, header.batch_id) if header.batch_id else []
    here = [part for part in parts if (part.group, part.part) == (header.group, header.part)]
    return any((part.wal, part.sequence) != (header.wal, header.sequence) for part in here)


def _remember_batches(cluster: Cluster, headers: Iterable[SealedHeader]) -> None:
    """Have the batches of merged frames be known, so that who repeats one adds only what is missing."""
    for header in headers:
        if header.batch_id:
            with suppress(BatchConflictError):  # status shows it
                cluster.ledger.batches.put(header.table, header.batch_id, [BatchPart.of(header)], header.commit_hi)


def _why_not_again(cluster: Cluster, unread: Sequence[str]) -> tuple[str, str] | None:
    """Why rows that were taken back cannot be written again here, and what to do; None when they can."""
    if cluster.coordination.role().state.role is not Role.ACTIVE:
        return (
            f"the failover to {cluster.name} took rows back, which only the ACTIVE cluster can write again",
            f"First, on the ACTIVE cluster: walship switchover {cluster.name}",
        )
    if unread:  # of one key's rows the last one is to win
        return (
            "rows that a failover took back are written again all together, and"
            f" {counted(len(unread), 'frame')} cannot be read here: {unread[0]}",
            "Merge first on the host that has them. If that is refused, too, copy the files here, to the same paths",
        )
    return None


def _why_not_twice(cluster: Cluster, table: UUID, frames: int) -> tuple[str, str] | None:
    """Why ``frames`` of a table without a key are not merged, and what to do; None without any."""
    if not frames:
        return None
    name = next((spec.name for spec in cluster.tables() if spec.uuid == table), str(table))
    return (
        f"batches of {counted(frames, 'frame')} of lost writes of {name}, which has no key, were repeated since, so"
        " their rows would be there twice",
        f"walship lostwrites discard -t {name} --leave-applied gives them up, with all others that are still kept of"
        f" {name}; save what is wanted of it first: walship lostwrites export {name} FILE",
    )


def _write_again(
    cluster: Cluster, table: UUID, undone: Sequence[_Kept], before: Sequence[_Kept], restated: int
) -> None:
    spec = next((spec for spec in cluster.tables() if spec.uuid == table), None)
    if spec is None:
        return
    with TemporaryDirectory(prefix="walship-lost-") as scratch:

        def of_group(group: str) -> Iterator[LogBatch]:
            lost, earlier = ([kept for kept in each if kept.view.header.group == group] for each in (undone, before))
            lost.sort(key=lambda kept: kept.commit)
            again, decoded = partial(map, partial(_decoded, cluster), lost), map(partial(_decoded, cluster), earlier)
            return rows_again(cluster.reader.catalog, spec, group, again, decoded, restated, Path(scratch))

        logs = chain.from_iterable(map(of_group, dict.fromkeys(kept.view.header.group for kept in undone)))
        if (first := next(logs, None)) is not None:
            cluster.restate(chain([first], logs), restated + 1)


def discard(cluster: Cluster, table: str = "", timeout_s: float = 60.0, *, leave_applied: bool = False) -> int:
    """Give lost writes up for good. Their copies stay. Returns how many frames.

    Clusters that had applied them get the ACTIVE cluster's rows again, under a commit time just above theirs. Those
    whose copies cannot be read here stay kept. A STANDBY discards all and writes nothing: what it keeps, it has not
    applied, and neither has the cluster that took over.

    With ``leave_applied`` also those that writing rows cannot undo: clusters that had applied them keep their rows.
    Tables before the one that an error names are done; the error says so.

    Raises:
        RequestError: a table's lost writes cannot be undone by writing rows, or this is a STANDBY and another cluster
            than the one that took over is ACTIVE, which may have applied them; the hint says what to do.
        WaitTimeoutError: replay here is behind by more than ``timeout_s``.
    """
    discarded, writes = 0, cluster.coordination.role().state.role is Role.ACTIVE
    records = [record for record in _records(cluster, table) if not record.discarded]
    known = cluster.ledger.successions.known()
    for record in () if writes else records:
        if refusal := discard_refusal(known, _succession(cluster, record.succession)):
            raise RequestError(*refusal)
    for uuid in dict.fromkeys(record.table for record in records):
        of_table = [record for record in records if record.table == uuid]
        spec = next((spec for spec in cluster.tables() if spec.uuid == uuid), None)
        if spec is not None and writes:
            readable, _ = _readable(of_table)
            try:
                _restate(cluster, spec, readable, timeout_s, leave_applied)
            except ReplicationError as error:
                if discarded:
                    error.what += f"; discarded of other tables: {counted(discarded, 'frame')}"
                raise
            of_table = of_table if leave_applied else [kept.record for kept in readable]
        for record in of_table:
            discard_frame(cluster.ledger, record)
            discarded += 1
    return discarded


def discard_refusal(known: Successions, succession: Succession) -> tuple[str, str] | None:
    """Why a STANDBY cannot discard what a succession left out, and what to do; None when it can. Pure.

    Whoever learned of the succession after a lost write landed has applied it. Only the successor certainly has not.
    """
    last = known.last_of(succession.origin)
    if last is None or last.successor == succession.successor:
        return None
    active, successor = last.successor.name, succession.successor.name
    return (
        f"{active} is ACTIVE, and may have applied what {successor} left out, so the clusters would differ",
        f"Merge them; or first discard them on {successor}. It must be ACTIVE: on {active}, walship"
        f" switchover {successor}",
    )


def _restate(cluster: Cluster, spec: TableSpec, kept: Sequence[_Kept], timeout_s: float, leave_applied: bool) -> None:
    """Write this cluster's rows of the keys in ``kept``, where those are older, above the newest of ``kept``."""
    undone = [each for each in kept if spec.key and not has_timestamps(_decoded(cluster, each))]
    if (not spec.key or len(undone) < len(kept)) and not leave_applied:
        raise RequestError(*_not_undone(spec))
    if not undone:
        return
    _await_own_writes(cluster, spec, timeout_s)
    restated = max(each.commit for each in undone) + 1
    # Rows of a batch are in memory together. A key of several is undone by that with its newest row.
    for batch in in_batches(undone, lambda each: each.record.end - each.record.begin, _BYTES_MAX, len(undone)):
        lost = [_decoded(cluster, each) for each in batch]
        with TemporaryDirectory(prefix="walship-lost-") as scratch:
            logs = rows_in_place(cluster.reader.catalog, spec, lost, now_us(), Path(scratch))
        if logs:
            cluster.restate(logs, restated)


def _not_undone(spec: TableSpec) -> tuple[str, str]:
    """Why a table's lost writes cannot be undone by writing rows, and what to do."""
    leave = "or discard them where they were not applied, and leave them where they were: --leave-applied"
    if not spec.key:
        return (
            f"{spec.name} has no key, so its lost writes cannot be undone by writing rows",
            f"Merge them, {leave}. To make the other cluster's table anew: walship droptable {spec.name} there, then"
            " enablereplication --bootstrap",
        )
    return (
        f"lost writes of {spec.name} have timestamps of their own, which later writes do not win over",
        f"Merge them, and write the cells that are wanted with newer timestamps; {leave}",
    )


def _await_own_writes(cluster: Cluster, spec: TableSpec, timeout_s: float) -> None:
    """Wait until the table has everything that was written here by now. The clock may be behind commit times."""
    begun = max(now_us(), cluster.ledger.time.seen())
    for _ in polls(timeout_s, _POLL_S):
        reached = cluster.ledger.time.replicated(spec.uuid)[cluster.id]
        if reached.t >= begun:
            return
    raise WaitTimeoutError(
        f"{spec.name} has not got what was written here within {timeout_s:g} s: {reached.held_by}",
        "Nothing of it was discarded. See walship status",
    )


def _records(cluster: Cluster, table: str) -> list[Quarantined]:
    wanted = cluster.table(table).uuid if table else None
    every = cluster.ledger.replay.quarantined()
    return [record for record in every if record.succession and wanted in (None, record.table)]


def _readable(records: Iterable[Quarantined]) -> tuple[list[_Kept], list[str]]:
    """Those whose copies can be read here, and why the others cannot."""
    found, unread = [], []
    for record in records:
        try:
            found.append(_read(record))
        except (CorruptFrameError, MissingFileError) as error:
            unread.append(error.what)
    return found, unread


def _read(record: Quarantined) -> _Kept:
    return _Kept(record, saved_frame(record)[0])


def _decoded(cluster: Cluster, kept: _Kept) -> LostRows:
    view, content = saved_frame(kept.record)
    header = view.header
    version = cluster.ledger.tables.schema(header.schema, header.table)
    if version is None:
        raise CorruptFrameError(f"{kept.record.copy} has an unknown schema")
    batch = decode_payload(memoryview(content)[view.payload_begin : view.end], version)
    return LostRows(header.group, header.commit_hi, version, batch)


def _succession(cluster: Cluster, name: str) -> Succession:
    known = cluster.ledger.successions.known().all
    found = next((each for each in known if str(each) == name), None)
    if found is None:
        raise RequestError(f"the succession {name} is not known here", "See walship status")
    return found
