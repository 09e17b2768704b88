"""Which processes of a cluster are alive, host by host, by ZooKeeper, and the files of each host, by the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from peer.polling import polls
from peer.replay_report import ReplayReport
from replication.coordination.base import Member, keeps_tables
from replication.coordination.paths import Election, MemberKind
from replication.coordination.session import Coordination
from replication.core.roles import outlived_s
from replication.ledger.base import FileRow, Ledger, Pending

_FULL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Host:
    """One host of the cluster, alive or not.

    ``roles`` are those that run there, such as ``worker``, ``receiver 10.0.0.1:7070``, ``master (leads)`` or ``replay
    (standby)``. Of its registered ``wal_bytes`` and ``landing_bytes``, ``unapplied_bytes`` wait for replay. ``away``
    is why replay cannot read them now, "" when it can.
    """

    slot: str
    data_dir: str
    roles: tuple[str, ...] = ()
    wal_bytes: int = 0
    landing_bytes: int = 0
    unapplied_bytes: int = 0
    away: str = ""


@dataclass(frozen=True, slots=True)
class Members:
    """The live processes, by ZooKeeper; ``problem`` is why they are not known.

    ``keeps_tables`` is False when no host is configured to replay. ``unanswering`` are processes of this host that run
    and are not among the live ones: they are frozen, or cut off from ZooKeeper.
    """

    role: str = ""
    role_epoch: int = 0
    workers: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    writers: int = 0
    problem: str = ""
    keeps_tables: bool = True
    hosts: tuple[Host, ...] = ()
    unanswering: tuple[str, ...] = ()

    def without_replay(self, disk_free: int = _FULL_BYTES) -> str:
        """Why replay makes no progress, with so many bytes free here, and what to do; "" when it runs and reports."""
        replays = ", ".join(role for host in self.hosts for role in host.roles if role.startswith("replay"))
        if self.problem or not self.keeps_tables or replays and "silent" not in replays:
            return ""
        if replays and disk_free < _FULL_BYTES:
            return f"{replays}: the disk is full, so it neither commits nor reports; it goes on once there is room"
        if replays:
            return f"{replays}: in a long round, or frozen; if frozen, kill it, and walship up starts another"
        return "no replay process runs, so the tables are not updated; walship up starts one"


def await_writers(ledger: Ledger, coordination: Coordination, epoch: int, lease_s: float) -> None:
    """Wait until every open writer has acknowledged a role's epoch or lost its lease: then none acks any more.

    The ledger has those, too, whose session ended although they run. A dead one is in it until its WALs are recovered.
    A lease lasts for ``lease_s``, or longer where another host is configured so.
    """
    longest_s = max([lease_s, *(host.lease_s for host in coordination.hosts())])
    for _ in polls(outlived_s(longest_s), 0.05):
        found = {member.name: int(member.fields.get("epoch", 0)) for member in coordination.members(MemberKind.WRITERS)}
        registered = {row.writer: 0 for row in ledger.time.writers()}
        if all(acknowledged >= epoch for acknowledged in (registered | found).values()):
            return


def members_of(coordination: Coordination) -> Members:
    """The live processes; CoordinationError when ZooKeeper does not answer."""
    role, records = coordination.role().state, coordination.hosts()
    workers, receivers = coordination.members(MemberKind.WORKERS), coordination.members(MemberKind.RECEIVERS)
    elections = {
        "master": coordination.candidates(Election.MASTERS),
        "replay": coordination.candidates(Election.REPLAYERS),
        "derive": coordination.candidates(Election.DERIVERS),
    }
    return Members(
        role=role.role.value,
        role_epoch=role.epoch,
        workers=tuple(member.name for member in workers),
        receivers=tuple(f"{member.name} {member.fields.get('address', '')}".strip() for member in receivers),
        writers=len(coordination.members(MemberKind.WRITERS)),
        keeps_tables=keeps_tables(records),
        hosts=tuple(Host(r.slot, r.data_dir, _roles(r.slot, workers, receivers, elections)) for r in records),
    )


def with_replayers(members: Members, replayers: tuple[str, ...]) -> Members:
    """``members`` with the hosts that are configured to replay by the ledger, known to ZooKeeper or not."""
    known = {host.slot for host in members.hosts}
    others = tuple(Host(slot, "") for slot in replayers if slot not in known)
    return replace(members, keeps_tables=members.keeps_tables or bool(replayers), hosts=members.hosts + others)


def with_files(
    members: Members,
    rows: Iterable[FileRow],
    pending: Iterable[Pending],
    report: ReplayReport | None,
    here: str,
    now_s: float,
) -> Members:
    """``members`` with each host's files; ``report`` is replay's, ``here`` this host, ``now_s`` the time.

    A host that ZooKeeper does not know (it may not answer) is listed for its files. A replay process that has not
    reported for a while, frozen or in a long round, is shown with how long that is.
    """
    wal: dict[str, int] = {}
    landing: dict[str, int] = {}
    waits: dict[str, int] = {}
    for row in rows:
        of_kind = landing if row.is_landed else wal
        of_kind[row.host] = of_kind.get(row.host, 0) + row.length
    for part in pending:
        waits[part.row.host] = waits.get(part.row.host, 0) + part.end - part.begin
    known = {host.slot: host for host in members.hosts}
    known |= {slot: Host(slot, "") for slot in wal.keys() | landing.keys() if slot not in known}
    if report is not None and report.host == here and here in known and report.pid > 0:
        host = known[here]
        if not any(role.startswith("replay") for role in host.roles):  # a single host needs no election
            import psutil  # deferred: it takes a while to import

            if psutil.pid_exists(report.pid):
                known[here] = replace(host, roles=(*host.roles, "replay"))
    if report is not None and report.host in known:
        known[report.host] = _silent(known[report.host], report.silence(now_s))
    away = _away(known.values(), waits, report, "" if members.problem else here)
    return replace(
        members,
        hosts=tuple(
            replace(
                host,
                wal_bytes=wal.get(slot, 0),
                landing_bytes=landing.get(slot, 0),
                unapplied_bytes=waits.get(slot, 0),
                away=away.get(slot, ""),
            )
            for slot, host in sorted(known.items())
        ),
    )


def _silent(host: Host, note: str) -> Host:
    if not note:
        return host
    return replace(
        host,
        roles=tuple(
            {"replay": f"replay ({note})", "replay (leads)": f"replay (leads, {note})"}.get(role, role)
            for role in host.roles
        ),
    )


def _away(hosts: Iterable[Host], waits: Mapping[str, int], report: ReplayReport | None, here: str) -> dict[str, str]:
    """Hosts whose files replay cannot read: what replay reports, or that no receiver is up there."""
    away = dict(report.away) if report is not None else {}
    replays = report.host if report is not None else here
    for host in hosts:
        gives = any(role.startswith("receiver") for role in host.roles)
        if here and waits.get(host.slot) and host.slot != replays and not gives:
            away.setdefault(host.slot, "its receiver is not running")
    return away


def _roles(
    slot: str, workers: Iterable[Member], receivers: Iterable[Member], elections: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    found = []
    for election, candidates in elections.items():
        if slot in candidates:
            found.append(f"{election} (leads)" if candidates[0] == slot else f"{election} (standby)")
    if any(member.name == slot for member in workers):
        found.append("worker")
    found += [f"receiver {member.fields.get('address', '')}".strip() for member in receivers if member.name == slot]
    return tuple(found)
