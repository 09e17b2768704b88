"""How far each table is at each peer, and the ReplicationStatus of each file that is not applied there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from peer.replay_report import ReplayReport
from peer.status.lag import PeerLag
from replication.core.coverage import Span
from replication.core.definition.schema import TableSpec
from replication.core.ids import FileId
from replication.core.status import FileState, ReplicationStatus, is_applied
from replication.ledger.base import FileRow, Gap, Ledger, Peer, PeerProgress, Phase, Rule

FILES_MAX = 20
RANGES_MAX = 100


@dataclass(frozen=True, slots=True)
class FileAtPeer:
    """The ReplicationStatus of a file for one table at a peer, with the fields of its protobuf message.

    Offsets are bytes of the file. ``ranges`` are the first that are durable there, ``RANGES_MAX`` at most.
    """

    file: str
    state: FileState
    begin: int
    needed: int
    finished: int
    applied: int
    ranges: tuple[Span, ...]

    @staticmethod
    def of(file: FileId, status: ReplicationStatus) -> FileAtPeer:
        """To show it."""
        return FileAtPeer(
            str(file),
            status.state,
            status.begin,
            status.needed,
            status.finished,
            status.applied,
            status.shipped.spans[:RANGES_MAX],
        )


@dataclass(frozen=True, slots=True)
class TableAtPeer:
    """Progress of one group of a table at a peer.

    ``state`` is ``caught_up``, ``behind``, ``paused``, ``held`` (the peer refuses it), ``failing``, ``bootstrapping``
    (earlier rows are being sent) or ``needs_bootstrap`` (rows were lost for this peer, and nothing is sent before a
    bootstrap). ``needed`` bytes must get there, of which ``finished`` are durable there without a gap, ``landed``
    durable with gaps, ``applied`` in its tables. ``open_files`` of ``files`` still grow. ``dropped``: the table was
    dropped here, and the peer gets the rest. The route is open ``since`` that time; rows written in ``gaps`` are not
    there. ``statuses`` are of files that are not applied there, the first by name.
    """

    peer: str
    cluster: str
    table: str
    group: str
    remote_table: str
    state: str
    files: int
    open_files: int
    needed: int
    finished: int
    landed: int
    applied: int
    lag_bytes: int
    lag_s: float
    last_error: str
    dropped: bool
    since: int
    gaps: tuple[Gap, ...]
    statuses: tuple[FileAtPeer, ...]


def tables_at_peers(
    ledger: Ledger,
    rows: Mapping[FileId, FileRow],
    fresh: Mapping[FileId, int],
    specs: Mapping[UUID, TableSpec],
    lacking: PeerLag,
    report: ReplayReport | None,
) -> Iterable[TableAtPeer]:
    """Every rule's table, by peer and name; dropped ones last.

    ``fresh`` are durable bytes of files that are not registered yet. Dropped tables are looked up in ``specs``.
    ``lacking`` finds since when a peer is behind. ``report`` is that of the own replay, which writes bootstraps.
    """
    progress = {(known.file, known.peer): known for known in ledger.files.progress()}
    by_rule: dict[tuple[str, UUID, str], list[tuple[FileId, ReplicationStatus]]] = {}
    for file, rule, status in ledger.files.statuses():
        by_rule.setdefault((rule.peer, rule.table, rule.group), []).append((file, status))
    peers = {peer.name: peer for peer in ledger.rules.peers()}
    held: dict[str, dict[UUID, str]] = {}
    for each in ledger.sending.held():
        held.setdefault(each.peer, {})[each.table] = each.reason
    known_files = _KnownFiles(rows, fresh, progress, lacking, specs)
    names = {uuid: spec.name for uuid, spec in specs.items()}
    for rule in sorted(ledger.rules.all(), key=lambda r: (r.peer, names.get(r.table, "~"), str(r.table), r.group)):
        spec = specs.get(rule.table) or ledger.tables.by_uuid(rule.table)
        if spec is not None and rule.peer in peers:
            found = by_rule.get((rule.peer, rule.table, rule.group), [])
            waits = report.bootstraps.get(f"{rule.peer} {spec.name}", "") if report is not None else ""
            yield _at_peer(peers[rule.peer], rule, spec, found, known_files, held.get(rule.peer, {}), waits)


@dataclass(frozen=True, slots=True)
class _KnownFiles:
    """What each table's row is computed from: files, unregistered durable bytes, and progress of peers."""

    rows: Mapping[FileId, FileRow]
    fresh: Mapping[FileId, int]
    progress: Mapping[tuple[FileId, str], PeerProgress]
    lag: PeerLag
    specs: Mapping[UUID, TableSpec]

    def unregistered(self, file: FileId, status: ReplicationStatus) -> int:
        """Durable bytes beyond a status, which was read later than the file's row."""
        fresh = self.fresh.get(file, 0)
        return max(0, fresh - max(0, status.needed - self.rows[file].length)) if fresh else 0


def _at_peer(
    peer: Peer,
    rule: Rule,
    spec: TableSpec,
    statuses: Sequence[tuple[FileId, ReplicationStatus]],
    known_files: _KnownFiles,
    held: Mapping[UUID, str],
    bootstrap: str,
) -> TableAtPeer:
    rows, fresh, progress, lacking = known_files.rows, known_files.fresh, known_files.progress, known_files.lag
    lag_bytes, lag_s, error = 0, 0.0, held.get(rule.table, "")
    others = {reason for table, reason in held.items() if table != rule.table}
    for file, status in statuses:
        known = progress.get((file, peer.name))
        behind = status.remaining + known_files.unregistered(file, status)
        if behind:
            if known is not None and known.error not in others:
                error = error or known.error or ""
            lag_bytes += behind
            if file in rows:
                since = lacking.since(rows[file], status, fresh.get(file, 0), known)
                lag_s = max(lag_s, (lacking.now - since) / 1e6)
    lagging = ("failing" if error else "behind") if lag_bytes else "caught_up"
    state = "paused" if peer.paused else "held" if rule.table in held else lagging
    if rule.phase is not Phase.LIVE:
        state = rule.phase.value
    return TableAtPeer(
        peer=peer.name,
        cluster=str(peer.cluster),
        table=spec.name,
        group=rule.group,
        remote_table=rule.remote_table,
        state=state,
        files=len(statuses),
        open_files=sum(status.state is FileState.OPEN for _, status in statuses),
        needed=sum(s.needed - s.begin + known_files.unregistered(file, s) for file, s in statuses),
        finished=sum(status.finished - status.begin for _, status in statuses),
        landed=sum(status.shipped.within(status.begin, status.needed).total for _, status in statuses),
        applied=sum(max(0, min(status.applied, status.needed) - status.begin) for _, status in statuses),
        lag_bytes=lag_bytes,
        lag_s=round(lag_s, 3),
        last_error=error or (bootstrap if rule.phase is Phase.BOOTSTRAPPING else ""),
        dropped=rule.table not in known_files.specs,
        since=rule.since,
        gaps=rule.gaps,
        statuses=tuple(islice((FileAtPeer.of(*each) for each in statuses if not is_applied(each[1])), FILES_MAX)),
    )
