"""The planner: from one snapshot of the cluster to decisions, and the assignments that follow from them. Pure.

One tail per (host, peer) covers open and small files; it needs no further planning. A large CLOSED file is cut into
ranges for several streams of its host's worker. Work stays with its worker while the worker is alive. Work that a
worker loses is *fenced*: the master raises the term first, so that receivers refuse the worker that had it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from replication.core.coverage import Ranges
from replication.core.ids import COUNT_END, ClusterId, FileId
from replication.core.shipping.chunk import Assignment, ChunkAssignment, Tail
from replication.error_text import counted
from replication.retries import Backoff


@dataclass(frozen=True, slots=True)
class HostView:
    """A registered host, and for how long its worker has been absent (0.0: present)."""

    slot: str
    absent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer of present or former rules: its expected id, and the id and receivers that it publishes.

    ``answers_as`` is None while its published id is unknown.
    """

    name: str
    cluster: ClusterId
    paused: bool = False
    answers_as: ClusterId | None = None
    receivers: tuple[str, ...] = ()
    backoff: Backoff = Backoff()


@dataclass(frozen=True, slots=True)
class FileView:
    """A file, and the ranges that each peer is missing."""

    file: FileId
    host: str
    closed: bool
    length: int
    missing: Mapping[str, Ranges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """The planner's input; ``now_s`` is by the clock of the backoffs.

    ``outdated`` are hosts whose assignment has an old term, which receivers may refuse. It is written again.
    """

    now_s: float
    hosts: tuple[HostView, ...] = ()
    peers: tuple[PeerView, ...] = ()
    files: tuple[FileView, ...] = ()
    assigned: Mapping[str, Assignment] = field(default_factory=dict)
    outdated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the planner. A worker counts as lost after an absence of ``worker_grace_s``.

    ``streams`` is the maximum number of streams for large files from a worker to a peer.
    """

    range_bytes: int = 256 << 20
    streams: int = 1
    chunks_per_worker: int = 64
    worker_grace_s: float = 5.0

    @property
    def large_bytes(self) -> int:
        """A file with at least this many missing bytes is cut, if several streams can share it."""
        return 2 * self.range_bytes


@dataclass(frozen=True, slots=True)
class Assign:
    """Give work to the worker on a host."""

    slot: str
    work: Tail | ChunkAssignment


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take work from the worker on a host; ``reason`` is for the log."""

    slot: str
    work: Tail | ChunkAssignment
    reason: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Assign no new work for this peer until ``until_s``; 0.0 means until ``reason`` is resolved."""

    peer: str
    until_s: float
    reason: str


Decision = Assign | Revoke | RetryLater


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions, and the assignments to write. Their term is 0; the master sets its own when it writes them.

    With ``fence`` the master raises the term before it writes. The assignments are those that change.
    """

    decisions: tuple[Decision, ...] = ()
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    fence: bool = False


def plan(snapshot: PlannerInput, limits: Limits) -> Plan:
    """Make a plan. The same snapshot gives the same plan. Once it is applied, nothing is left to assign or revoke."""
    decisions: list[Decision] = []
    peers = _reachable(snapshot, decisions)
    files = {view.file: view for view in snapshot.files}
    chunks, fence = _kept(snapshot, files, peers, limits, decisions)
    _hand_out(snapshot, peers, limits, chunks, decisions)
    assignments = _assignments(snapshot, peers, chunks, decisions)
    return Plan(tuple(decisions), assignments, fence)


_AGAIN = "walship deletecluster, then definecluster and enablereplication --bootstrap, of"
_Chunks = dict[str, list[ChunkAssignment]]


def _reachable(snapshot: PlannerInput, decisions: list[Decision]) -> dict[str, PeerView]:
    """Return the peers to send to. While a peer publishes no receivers, those assigned before are kept."""
    reachable = {}
    for peer in snapshot.peers:
        known = [tail for each in snapshot.assigned.values() for tail in each.tails if tail.peer == peer.name]
        receivers = peer.receivers or next((t.receivers for t in known if t.peer_cluster == peer.cluster), ())
        if peer.paused:
            decisions.append(RetryLater(peer.name, 0.0, "it is paused"))
        elif peer.answers_as not in (None, peer.cluster):
            why = f"it answers as {peer.answers_as}, not as {peer.cluster}; if it was restored: {_AGAIN} {peer.name}"
            decisions.append(RetryLater(peer.name, 0.0, why))
        elif not receivers:
            decisions.append(RetryLater(peer.name, peer.backoff.until_s, "none of its receivers is known"))
        else:
            reachable[peer.name] = replace(peer, receivers=receivers)
    return reachable


def _kept(
    snapshot: PlannerInput,
    files: Mapping[FileId, FileView],
    peers: Mapping[str, PeerView],
    limits: Limits,
    decisions: list[Decision],
) -> tuple[_Chunks, bool]:
    """Return the chunks that stay with their workers, and whether a chunk is taken from a worker that may still run."""
    working = {host.slot for host in snapshot.hosts if host.absent_s < limits.worker_grace_s}
    kept: _Chunks = {}
    fence = False
    for slot, assignment in sorted(snapshot.assigned.items()):
        for chunk in assignment.chunks:
            view = files.get(chunk.file)
            missing = view.missing.get(chunk.peer, Ranges()) if view is not None else Ranges()
            if not missing.within(chunk.begin, chunk.end):
                continue  # finished
            if chunk.peer not in peers:
                decisions.append(Revoke(slot, chunk, "nothing is sent to its peer now"))
            elif slot not in working:
                decisions.append(Revoke(slot, chunk, "its worker is gone"))
                fence = True
            else:
                kept.setdefault(slot, []).append(chunk)
    return kept, fence


def _hand_out(
    snapshot: PlannerInput, peers: Mapping[str, PeerView], limits: Limits, chunks: _Chunks, decisions: list[Decision]
) -> None:
    """Assign ranges of large files to the workers of their hosts, adding to ``chunks``."""
    present = [host.slot for host in snapshot.hosts if host.absent_s == 0.0]
    room = {slot: limits.chunks_per_worker - len(chunks.get(slot, ())) for slot in present}
    waiting: set[str] = set()
    failing = {peer.name for peer in peers.values() if not peer.backoff.due(snapshot.now_s)}
    kept: dict[tuple[FileId, str], list[ChunkAssignment]] = {}
    for each in chunks.values():
        for chunk in each:
            kept.setdefault((chunk.file, chunk.peer), []).append(chunk)
    for view in sorted((v for v in snapshot.files if v.closed and v.host in room), key=lambda each: each.file):
        slot = view.host
        if failing <= waiting and room[slot] <= 0:
            continue
        for name in sorted(view.missing.keys() & peers.keys()):
            missing, mine = view.missing[name], kept.get((view.file, name), ())
            large = limits.streams > 1 and missing.total >= limits.large_bytes
            if not (mine or large) or name in waiting:
                continue
            if name not in failing and room[slot] <= 0:
                continue
            rest = missing.subtract(Ranges.union_of((c.begin, c.end) for c in mine))
            pieces = cut(rest, limits.range_bytes, max(1, room[slot]))
            if pieces and name in failing:
                waiting.add(name)
                continue
            for begin, end in pieces[: room[slot]]:
                chunk = ChunkAssignment(view.file, begin, end, name)
                chunks.setdefault(slot, []).append(chunk)
                room[slot] -= 1
                decisions.append(Assign(slot, chunk))
    for name in sorted(waiting):
        backoff = peers[name].backoff
        decisions.append(RetryLater(name, backoff.until_s, f"it failed {counted(backoff.failures, 'time')} in a row"))


def cut(missing: Ranges, range_bytes: int, most: int = COUNT_END) -> list[tuple[int, int]]:
    """Cut ranges at multiples of ``range_bytes``, so that progress does not move the cuts; ``most`` pieces."""
    pieces: list[tuple[int, int]] = []
    for begin, end in missing:
        while begin < end and len(pieces) < most:
            border = min(end, (begin // range_bytes + 1) * range_bytes)
            pieces.append((begin, border))
            begin = border
    return pieces


def _assignments(
    snapshot: PlannerInput, peers: Mapping[str, PeerView], chunks: _Chunks, decisions: list[Decision]
) -> dict[str, Assignment]:
    """Decide the tails. Return the assignments that change."""
    changed = {}
    slots = sorted(host.slot for host in snapshot.hosts)
    for slot in sorted({*slots, *snapshot.assigned}):
        serving = peers.values() if slot in slots else ()
        turn = slots.index(slot) if slot in slots else 0
        tails = tuple(
            Tail(peer.name, peer.cluster, _rotated(peer.receivers, turn), _chunked_files(chunks, slot, peer.name))
            for peer in sorted(serving, key=lambda each: each.name)
        )
        before = snapshot.assigned.get(slot, Assignment(0))
        wanted = Assignment(0, tails, tuple(sorted(chunks.get(slot, ()))))
        _decide_tails(slot, before, wanted, decisions)
        if slot in snapshot.outdated or not wanted.same_work(before):
            changed[slot] = wanted
    return changed


def _chunked_files(chunks: _Chunks, slot: str, peer: str) -> tuple[FileId, ...]:
    return tuple(sorted({chunk.file for chunk in chunks.get(slot, ()) if chunk.peer == peer}))


def _rotated(receivers: tuple[str, ...], turn: int) -> tuple[str, ...]:
    """Return the receivers in another order for each host, so that they share the load. The first is tried first."""
    ordered = tuple(sorted(receivers))
    at = turn % len(ordered) if ordered else 0
    return ordered[at:] + ordered[:at]


def _decide_tails(slot: str, old: Assignment, new: Assignment, decisions: list[Decision]) -> None:
    for tail in old.tails:
        if new.tail(tail.peer) is None:
            decisions.append(Revoke(slot, tail, "nothing is sent to its peer now"))
    for tail in new.tails:
        if old.tail(tail.peer) != tail:
            decisions.append(Assign(slot, tail))
