"""What a cluster knows about itself and its peers at one moment: how far everything is, and what holds it.

Positions are sums over the files a peer still needs, in bytes of this cluster's files; times are microseconds since
1970, ages and lags seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from peer.derive.progress import DerivedHere, derived_here
from peer.replay_report import ReplayReport
from peer.status.at_peers import TableAtPeer, tables_at_peers
from peer.status.disk_use import DiskUse, disk_use
from peer.status.drills import DrillHealth, drill_health
from peer.status.forecasts import DiskForecast, PeerForecast, disk_forecast, peer_forecasts
from peer.status.lag import PeerLag
from peer.status.members import Members, with_files, with_replayers
from peer.status.operations import UnfinishedOperation, operations
from peer.status.paths import InboundPath, paths
from peer.status.refused import RefusedMessages, refused_lately
from peer.status.retained import Retained, retained
from peer.status.role_processes import roles_without_session
from peer.status.roles import RoleHistory, role_history
from peer.status.sending import PeerSending, sending
from peer.status.unreadable import Unreadable, unreadable
from replication.config import Config
from replication.core.definition.evolution import clashes
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import as_seen
from replication.core.routes.freshness import Replicated, named
from replication.core.shipping.retention import RetentionPolicy
from replication.core.succession import contested
from replication.files.boot import boot_id
from replication.ledger.base import FileKind, FileRow, Ledger, PatternRule, Quarantined
from replication.ledger.batches import BatchConflict
from replication.tls_checks import ends_soon
from replication.wall_clock import now_us
from replication.writer.wal.durable_length import DurableLength


@dataclass(frozen=True, slots=True)
class LocalTable:
    """A table on this cluster: what replay has applied, and how far ``<table>`` is behind ``<table>__latest``.

    ``age_s`` is None before the first fold. ``replicated`` is the time up to which every origin that feeds it is here.
    ``held_by`` is what holds it there, such as ``quarantined`` frames; ``discarded`` ones do not hold it.
    ``replay_held`` is why replay or fold of this table waits for its next try. ``clashes`` are columns whose names were
    taken, each with a remedy.
    """

    table: str
    replicated: int
    held_by: str
    folded_upto: int
    age_s: float | None
    quarantined: int
    discarded: int
    replay_held: str
    clashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Replicated time of one origin over all tables, its age, what holds it, and its paths."""

    origin: str
    replicated: int
    age_s: float | None
    held_by: str
    paths: tuple[InboundPath, ...] = ()


@dataclass(frozen=True, slots=True)
class FarAhead:
    """An origin's commit times that are far ahead of this host's clock; ``seen`` is when that was found."""

    origin: str
    commit: int
    ahead_s: float
    seen: int


@dataclass(frozen=True, slots=True)
class LocalLosses:
    """Frames of a table that were lost with ``file``, salvaged at ``at`` (microseconds), and are not in tables here."""

    file: str
    table: str
    frames: int
    at: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole status of one cluster; ``location`` is this host's location in its configuration.

    ``contested`` are the successions by which another cluster takes writes in place of this one, which is ACTIVE.
    ``certificates`` are this host's files of those that end soon, and when.
    """

    cluster: str
    id: str
    location: str
    members: Members
    term: int
    closed: int
    replay_backlog_bytes: int
    peers: tuple[TableAtPeer, ...]
    pattern_rules: tuple[PatternRule, ...]
    sending: tuple[PeerSending, ...]
    tables: tuple[LocalTable, ...]
    derived: tuple[DerivedHere, ...]
    origins: tuple[Origin, ...]
    replay: ReplayReport | None
    disk_use: DiskUse
    retained: Retained
    peer_forecasts: tuple[PeerForecast, ...]
    disk: DiskForecast
    quarantined: tuple[Quarantined, ...]
    lost_writes: tuple[Quarantined, ...]
    role_history: RoleHistory
    unreadable: tuple[Unreadable, ...]
    lost: tuple[LocalLosses, ...]
    far_ahead: tuple[FarAhead, ...]
    batch_conflicts: tuple[BatchConflict, ...]
    refused: tuple[RefusedMessages, ...]
    operations: tuple[UnfinishedOperation, ...]
    drills: DrillHealth
    contested: tuple[str, ...] = ()
    certificates: Mapping[str, int] = field(default_factory=dict)

    def of_peer(self, peer: str) -> ClusterStatus:
        """The same with one peer only; this cluster's own part stays."""
        return replace(
            self,
            peers=tuple(row for row in self.peers if row.peer == peer),
            pattern_rules=tuple(row for row in self.pattern_rules if row.peer == peer),
            sending=tuple(row for row in self.sending if row.peer == peer),
            retained=replace(self.retained, peers=tuple(row for row in self.retained.peers if row.peer == peer)),
            peer_forecasts=tuple(row for row in self.peer_forecasts if row.peer == peer),
        )


def collect(config: Config, ledger: Ledger, members: Members) -> ClusterStatus:
    """Read everything; each part is one transaction, so parts may be a moment apart."""
    now, host = now_us(), config.cluster.host
    members = with_replayers(members, ledger.replay.replayers())
    rows = {row.file: row for row in ledger.files.all()}
    fresh = _unregistered(rows.values(), host)
    specs = {spec.uuid: spec for spec in ledger.tables.all()}
    kept = ledger.replay.quarantined()
    quarantined = tuple(frame for frame in kept if not frame.succession)
    lost_writes = tuple(frame for frame in kept if frame.succession and not frame.discarded)
    report = ReplayReport.load(ledger.replay)
    pending = ledger.replay.pending()
    members = with_files(members, rows.values(), pending, report, host, now / 1e6)
    if not members.problem:
        present = [role for each in members.hosts if each.slot == host for role in each.roles]
        members = replace(members, unanswering=roles_without_session(config.run_dir, present, now / 1e6))
    is_away = any(each.away for each in members.hosts if each.slot == host)  # then replay reads no file
    policy = RetentionPolicy(members.keeps_tables, config.master.peer_bytes_max)
    return ClusterStatus(
        cluster=ledger.cluster.name,
        id=str(ledger.cluster),
        location=config.cluster.location,
        members=members,
        term=ledger.terms.current(),
        closed=ledger.time.closed(),
        replay_backlog_bytes=sum(p.end - p.begin for p in pending),
        peers=tuple(tables_at_peers(ledger, rows, fresh, specs, PeerLag(host, now), report)),
        pattern_rules=tuple(ledger.rules.pattern_rules()),
        sending=sending(ledger, now),
        tables=_tables_here(ledger, specs.values(), quarantined, report, now),
        derived=tuple(derived_here(ledger, specs, now)),
        origins=tuple(_origins(ledger, specs, now)),
        replay=report,
        disk_use=disk_use(config, rows.values(), specs.values(), ledger.files.retired_bytes()),
        retained=retained(ledger.files.retention(policy), policy),
        peer_forecasts=peer_forecasts(ledger, config, now),
        disk=disk_forecast(ledger, config, now),
        quarantined=quarantined,
        lost_writes=lost_writes,
        role_history=role_history(ledger, kept),
        unreadable=tuple(unreadable(ledger, rows.values(), host, config.data_dir, None if is_away else report)),
        lost=_local_losses(ledger, specs),
        far_ahead=tuple(_far_ahead(ledger, now)),
        batch_conflicts=tuple(ledger.batches.conflicts()),
        refused=refused_lately(ledger, now),
        operations=operations(ledger.steps, now),
        drills=drill_health(ledger.drills.all()),
        contested=_contested(ledger, members),
        certificates=_ending(config, now),
    )


def _ending(config: Config, now: int) -> dict[str, int]:
    files = (config.tls.cert, config.zookeeper.cert)
    return {str(file): end for file in files if (end := ends_soon(file, now))}


def _contested(ledger: Ledger, members: Members) -> tuple[str, ...]:
    role = RoleState(Role(members.role), members.role_epoch) if members.role else ledger.terms.role()
    if role.role is not Role.ACTIVE:
        return ()
    known = (*ledger.successions.known().all, *ledger.successions.contradictions())
    return tuple(map(str, contested(ledger.cluster, role, known, ledger.former)))


def durable_lengths(ledger: Ledger, host: str) -> dict[FileId, int]:
    """Durable lengths of this host's OPEN WALs, which may be ahead of the ledger."""
    return _durable(ledger.files.all(host, open_only=True), host)


def _durable(rows: Iterable[FileRow], host: str) -> dict[FileId, int]:
    boot = boot_id()
    found: dict[FileId, int] = {}
    for row in rows:
        if row.closed or row.host != host or row.kind is not FileKind.WAL or row.boot != boot:
            continue
        counter = DurableLength.open(row.path, boot)
        if counter is not None:
            found[row.file] = counter.length
            counter.close()
    return found


def _unregistered(rows: Iterable[FileRow], host: str) -> dict[FileId, int]:
    """Durable bytes of each OPEN WAL of this host that the ledger does not know yet."""
    known = {row.file: row for row in rows}
    return {file: max(0, end - known[file].length) for file, end in _durable(known.values(), host).items()}


def _tables_here(
    ledger: Ledger,
    specs: Iterable[TableSpec],
    quarantined: Iterable[Quarantined],
    report: ReplayReport | None,
    now: int,
) -> tuple[LocalTable, ...]:
    folds, replicated = ledger.replay.folds(), ledger.time.replicated_by_table()
    frames: dict[UUID, list[Quarantined]] = {}
    for frame in quarantined:
        frames.setdefault(frame.table, []).append(frame)
    return tuple(
        _here(spec, folds.get(spec.uuid, 0), replicated.get(spec.uuid, {}), frames.get(spec.uuid, ()), report, now)
        for spec in specs
    )


def _here(
    spec: TableSpec,
    upto: int,
    origins: Mapping[ClusterId, Replicated],
    quarantined: Sequence[Quarantined],
    report: ReplayReport | None,
    now: int,
) -> LocalTable:
    slowest = min(origins.values(), key=lambda r: r.t, default=None)
    return LocalTable(
        table=spec.name,
        replicated=slowest.t if slowest else 0,
        held_by=named(slowest.held_by, {spec.uuid: spec.name}) if slowest else "",
        folded_upto=upto,
        age_s=age_s(now, upto),
        quarantined=sum(not frame.discarded for frame in quarantined),
        discarded=sum(frame.discarded > 0 for frame in quarantined),
        replay_held=_replay_held(report, spec.name),
        clashes=tuple(clashes(spec)),
    )


def _replay_held(report: ReplayReport | None, table: str) -> str:
    if report is None:
        return ""
    reasons = [report.held.get(table, "")]
    reasons += [
        f"{what.rpartition(' ')[2]}: {why}" for what, why in report.fold_errors.items() if what.startswith(f"{table} ")
    ]
    return "; ".join(part for part in reasons if part)


def _origins(ledger: Ledger, specs: Mapping[UUID, TableSpec], now: int) -> Iterable[Origin]:
    names = {table: spec.name for table, spec in specs.items()}
    found = paths(as_seen(ledger.landing.routes(), ledger.landing.last_seen()), ledger.cluster, now, names)
    known = ledger.time.replicated()
    for origin in sorted(known.keys() | found.keys()):
        reached = known.get(origin, Replicated(0, f"no closed frame of {origin.name} has come yet"))
        held_by = named(reached.held_by, names)
        yield Origin(str(origin), reached.t, age_s(now, reached.t), held_by, found.get(origin, ()))


def age_s(now: int, then: int) -> float | None:
    """Never below 0, even when another cluster's clock is ahead."""
    return max(0.0, round((now - then) / 1e6, 3)) if then else None


def _far_ahead(ledger: Ledger, now: int) -> Iterable[FarAhead]:
    for clock in ledger.time.ahead():
        if clock.commit > now:
            ahead_s = round((clock.commit - now) / 1e6, 3)
            yield FarAhead(str(clock.origin), clock.commit, ahead_s, clock.at)


def _local_losses(ledger: Ledger, specs: Mapping[UUID, TableSpec]) -> tuple[LocalLosses, ...]:
    """Losses per file and table until the rows come back, the oldest first; dropped tables are left out."""
    counts: dict[tuple[int, str, str], int] = {}
    for each in ledger.salvage.acknowledged_losses():
        if each.stream.table in specs:
            key = each.at, each.file.local, specs[each.stream.table].name
            counts[key] = counts.get(key, 0) + each.sequences.total
    return tuple(LocalLosses(file, table, frames, at) for (at, file, table), frames in sorted(counts.items()))
