"""A cluster's status as metrics, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from peer.status.at_peers import TableAtPeer
from peer.status.collect import ClusterStatus
from replication import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP = {
    "walship_info": "The cluster, its role and the version of walship; always 1.",
    "walship_role_epoch": "Counts changes of the role.",
    "walship_members": "Live processes of a kind.",
    "walship_coordination_answers": "Whether ZooKeeper answers.",
    "walship_lag_seconds": "Age of the oldest frame that a peer is missing of a table's group.",
    "walship_lag_bytes": "Bytes that a peer is missing of a table's group.",
    "walship_peer_paused": "Whether the peer is paused.",
    "walship_peer_failures": "Failures in a row of sending to a peer.",
    "walship_peer_retained_bytes": "Bytes of files on this cluster's disks that a peer has not got completely.",
    "walship_origin_age_seconds": "Age of the replicated time of an origin.",
    "walship_table_age_seconds": "Age of the last fold of a table.",
    "walship_replay_backlog_bytes": "Bytes that wait for replay here.",
    "walship_quarantined_frames": "Frames that could not be applied to a table, and were not discarded.",
    "walship_lost_write_frames": "Frames of lost writes to decide about.",
    "walship_unfinished_operations": "Operations that nobody runs.",
    "walship_disk_free_bytes": "Free bytes on the disk of a host.",
    "walship_last_good_drill_timestamp_seconds": "When the last good drill ended, in seconds since 1970; 0 for never.",
}


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def metrics_text(status: ClusterStatus) -> str:
    """All metrics; those of one name stand together."""
    lines: list[str] = []
    for name, samples in groupby(_samples(status), key=lambda sample: sample.name):
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels_text(sample.labels)} {sample.value:.16g}" for sample in samples]
    return "\n".join(lines) + "\n"


def _samples(status: ClusterStatus) -> Iterator[_Sample]:
    yield from _of_cluster(status)
    by_group: dict[tuple[str, str, str], list[TableAtPeer]] = {}  # a dropped table may have the name of another
    for row in status.peers:
        by_group.setdefault((row.peer, row.table, row.group), []).append(row)
    of_groups = [(dict(zip(("peer", "table", "group"), key, strict=True)), rows) for key, rows in by_group.items()]
    yield from (_Sample("walship_lag_seconds", labels, max(r.lag_s for r in rows)) for labels, rows in of_groups)
    yield from (_Sample("walship_lag_bytes", labels, sum(r.lag_bytes for r in rows)) for labels, rows in of_groups)
    by_peer = [({"peer": each.peer}, each) for each in status.sending]
    yield from (_Sample("walship_peer_paused", labels, each.state == "paused") for labels, each in by_peer)
    yield from (_Sample("walship_peer_failures", labels, each.retries) for labels, each in by_peer)
    yield from (
        _Sample("walship_peer_retained_bytes", {"peer": each.peer}, each.local_bytes) for each in status.peer_forecasts
    )
    yield from _ages("walship_origin_age_seconds", "origin", ((o.origin, o.age_s) for o in status.origins))
    yield from _ages("walship_table_age_seconds", "table", ((t.table, t.age_s) for t in status.tables))
    yield from (_Sample("walship_quarantined_frames", {"table": t.table}, t.quarantined) for t in status.tables)


def _of_cluster(status: ClusterStatus) -> Iterable[_Sample]:
    members, good = status.members, status.drills.good
    info = {"cluster": status.cluster, "id": status.id, "role": members.role, "version": __version__}
    kinds = {"worker": len(members.workers), "receiver": len(members.receivers), "writer": members.writers}
    resting = [each for each in status.operations if each.state != "running"]
    yield _Sample("walship_info", info, 1)
    yield _Sample("walship_role_epoch", {}, members.role_epoch)
    yield from (_Sample("walship_members", {"kind": kind}, count) for kind, count in kinds.items())
    yield _Sample("walship_coordination_answers", {}, not members.problem)
    yield _Sample("walship_replay_backlog_bytes", {}, status.replay_backlog_bytes)
    yield _Sample("walship_lost_write_frames", {}, len(status.lost_writes))
    yield _Sample("walship_unfinished_operations", {}, len(resting))
    yield _Sample("walship_disk_free_bytes", {"host": status.disk.host}, status.disk.free)
    yield _Sample("walship_last_good_drill_timestamp_seconds", {}, 0 if good is None else good.ended / 1e6)


def _ages(name: str, label: str, ages: Iterable[tuple[str, float | None]]) -> Iterable[_Sample]:
    return (_Sample(name, {label: of}, age_s) for of, age_s in ages if age_s is not None)


def _labels_text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
