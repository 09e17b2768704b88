"""One immutable snapshot of ledger and ZooKeeper for the planner, with what the master needs to act on the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replication import log
from replication.coordination.base import HostRecord, keeps_tables
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.shipping.chunk import Assignment
from replication.core.shipping.planner import FileView, HostView, Limits, PeerView, PlannerInput
from replication.core.shipping.retention import RetentionPolicy
from replication.errors import FormatError
from replication.ledger.base import FileRow, Ledger
from replication.master.peer_reader import PeerReader

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot, the versions of its assignment nodes, live receivers' addresses, and the rows of retirable files.

    ``policy`` is the retention policy by which files are retirable.
    """

    snapshot: PlannerInput
    versions: Mapping[str, int]
    receivers: tuple[str, ...]
    retirable: Sequence[FileRow]
    policy: RetentionPolicy

    @property
    def is_complete(self) -> bool:
        """Whether every host has a worker, there are receivers, and every peer answers as itself."""
        snapshot = self.snapshot
        workers = all(host.absent_s == 0.0 for host in snapshot.hosts)
        peers = all(peer.answers_as == peer.cluster and peer.receivers for peer in snapshot.peers)
        return bool(snapshot.hosts and self.receivers) and workers and peers and not snapshot.files


class Observer:
    """Takes snapshots. Between them it keeps only the times since when workers are absent, and peers' public parts.

    Args:
        reader: reads the peers' public parts; the caller closes it.
        peer_bytes_max: the disk budget per peer, for retiring; None for no limit.
        limits: the planner's limits; files that the planner could not assign are not read.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordination: Coordination,
        reader: PeerReader,
        peer_bytes_max: int | None,
        limits: Limits,
    ) -> None:
        self._ledger = ledger
        self._coordination = coordination
        self._reader = reader
        self._peer_bytes_max = peer_bytes_max
        self._limits = limits
        self._gone_since: dict[str, float] = {}

    def observe(self, now_s: float, *, retiring: bool) -> Observed:
        """Read everything once; only when ``retiring`` the retirable files, which cost more than the rest."""
        records = self._coordination.hosts()
        policy = RetentionPolicy(keeps_tables(records), self._peer_bytes_max)
        hosts = self._hosts(records, now_s)
        assigned, versions = self._assigned()
        files = self._files(assigned) if self._limits.streams > 1 else ()
        retiring_at = hosts if retiring else ()
        retirable = [row for host in retiring_at for row in self._ledger.files.retirable(host.slot, policy)]
        snapshot = PlannerInput(
            now_s=now_s,
            hosts=hosts,
            peers=self._peers(now_s, self._ledger.files.failing() if files else frozenset()),
            files=files,
            assigned=assigned,
            outdated=self._outdated(assigned),
        )
        receivers = self._coordination.members(MemberKind.RECEIVERS)
        addresses = tuple(sorted(str(member.fields["address"]) for member in receivers if "address" in member.fields))
        return Observed(snapshot, versions, addresses, retirable, policy)

    def _hosts(self, hosts: Sequence[HostRecord], now_s: float) -> tuple[HostView, ...]:
        working = {member.name for member in self._coordination.members(MemberKind.WORKERS)}
        absent = {host.slot for host in hosts} - working
        self._gone_since = {slot: self._gone_since.get(slot, now_s) for slot in absent}
        return tuple(HostView(host.slot, self._absent(host.slot, now_s)) for host in hosts)

    def _absent(self, slot: str, now_s: float) -> float:
        """Seconds since the worker was first seen absent: above 0 while it is absent, 0 while it is there."""
        return max(now_s - self._gone_since[slot], 1e-9) if slot in self._gone_since else 0.0

    def _peers(self, now_s: float, failing: frozenset[str]) -> tuple[PeerView, ...]:
        """Peers with rules or ended rules: a peer that was away when its last rule ended must still get that change."""
        rules = self._ledger.rules
        named = {rule.peer for rule in rules.all()}
        peers = [peer for peer in rules.peers() if peer.name in named or rules.ended(peer.cluster)]
        known = self._reader.poll(peers, failing, now_s)
        views = []
        for peer in peers:
            reading = known[peer.name]
            public = reading.public
            views.append(
                PeerView(
                    name=peer.name,
                    cluster=peer.cluster,
                    paused=peer.paused,
                    answers_as=None if public is None else public.cluster,
                    receivers=() if public is None else public.receivers,
                    backoff=reading.backoff,
                )
            )
        return tuple(views)

    def _files(self, assigned: Mapping[str, Assignment]) -> tuple[FileView, ...]:
        """Files with assigned chunks, and CLOSED ones that are large enough for chunks."""
        chunked = {chunk.file for assignment in assigned.values() for chunk in assignment.chunks}
        large = self._limits.large_bytes
        return tuple(
            view
            for view in self._ledger.files.lacking()
            if view.closed and view.length >= large or view.file in chunked
        )

    def _assigned(self) -> tuple[dict[str, Assignment], dict[str, int]]:
        assigned, versions = {}, {}
        for slot, read in self._coordination.assignments().items():
            versions[slot] = read.version
            try:
                assigned[slot] = Assignment.decode(read.content)
            except FormatError as error:
                _log.error("assignment_unreadable", host=slot, error=str(error))  # the next plan replaces it
        return assigned, versions

    def _outdated(self, assigned: Mapping[str, Assignment]) -> frozenset[str]:
        """Hosts with an assignment older than their newest term in the ledger: ZooKeeper was restored from a copy."""
        newest = self._ledger.terms.assigned() if assigned else {}
        return frozenset(slot for slot, each in assigned.items() if each.term < newest.get(slot, 0))
