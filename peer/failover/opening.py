"""What the tables of a lost cluster open with: what it committed up to one instant, or everything that landed."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from peer.failover.landed import LandedFrame, has_timestamps, hosts_of, landed_after, rows_of_frames
from peer.failover.role_change import RoleChange
from peer.tables.versions import snapshot_upto
from replication.core.clock import moment_text
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.routes.freshness import named
from replication.core.succession import Cut, without
from replication.errors import ReplicationError, RequestError

#: Open with everything that landed.
EVERYTHING = 0
#: Open at the largest time up to which everything has landed.
CONSISTENT = -1
_ALL = "--with-all-landed takes over with everything that is here"


@dataclass(frozen=True, slots=True)
class Opening:
    """What the tables open with.

    Attributes:
        upto: no row of the lost cluster with a later commit time counts, in microseconds since 1970; 0 for no limit.
        left_out: the frames that landed and do not count.
        uncut: tables that open with everything that landed, and why; a cut could not be undone for them.
        whole: these tables' uuids.
        refusals: why the tables cannot open so, with remedies.
    """

    upto: int
    left_out: tuple[LandedFrame, ...] = ()
    uncut: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    whole: frozenset[UUID] = frozenset()


def opening(context: RoleChange, origin: ClusterId, at: int) -> Opening:
    """What the tables of ``origin`` would open with, of what has landed by now.

    ``at`` is ``CONSISTENT``, ``EVERYTHING``, or a commit time in microseconds since 1970.
    """
    if at == EVERYTHING:
        return Opening(EVERYTHING)
    ledger = context.cluster.ledger
    reached = ledger.time.landed(origin)
    upto = reached.t if at == CONSISTENT else at
    held_by = named(reached.held_by, {spec.uuid: spec.name for spec in ledger.tables.all()})
    if not reached.t:
        why = f"it is not known when {origin.name} was complete here ({held_by}); {_ALL}"
    elif upto > reached.t:
        why = f"everything of {origin.name} has landed up to {moment_text(reached.t)} only: give no later time"
    elif (retired := ledger.files.retired(origin)) > upto:
        why = _too_early(upto, f"frames up to {moment_text(retired)} are deleted")
    else:
        try:
            return _cut(context, origin, upto)
        except ReplicationError as error:
            why = f"what landed from {origin.name} cannot be read: {error.what}; {_ALL}"
    return Opening(upto, refusals=(why,))


def counting_sequences(context: RoleChange, origin: ClusterId, upto: int) -> tuple[Cut | None, Opening]:
    """Of the streams with frames after ``upto``, the sequences that count, None for all; and the opening.

    Raises:
        RequestError: the tables cannot open so.
    """
    # first: what lands from here on does not count, if it is cut
    covered = context.cluster.ledger.successions.coverage_after(origin, upto)
    made = opening(context, origin, upto)
    if made.refusals:
        raise RequestError("; ".join(made.refusals), f"See the plan: walship failover {context.cluster.name} --plan")
    if upto == EVERYTHING:
        return None, made
    left_out = ((frame.header.stream, frame.header.sequence) for frame in made.left_out)
    return without(covered, left_out), made


def _cut(context: RoleChange, origin: ClusterId, upto: int) -> Opening:
    ledger = context.cluster.ledger
    by_table: dict[UUID, list[LandedFrame]] = {}
    for frame in landed_after(ledger, hosts_of(context.cluster), origin, upto):
        by_table.setdefault(frame.header.table, []).append(frame)
    left_out: list[LandedFrame] = []
    uncut, whole, refusals = [], [], []
    for spec in ledger.tables.all():
        frames = by_table.get(spec.uuid, [])
        if not frames:
            continue
        if why := _why_uncut(context, spec, frames):
            uncut.append(f"{spec.name}: {why}")
            whole.append(spec.uuid)
            continue
        left_out += frames
        if why := _unreached(context, spec, upto):
            refusals.append(_too_early(upto, why))
    return Opening(upto, tuple(left_out), tuple(uncut), tuple(refusals), frozenset(whole))


def _why_uncut(context: RoleChange, spec: TableSpec, frames: list[LandedFrame]) -> str:
    """Why rows that were applied cannot be taken back by writing rows; "" when they can."""
    if not spec.key:
        return "it has no key"
    rows = rows_of_frames(context.cluster.ledger, hosts_of(context.cluster), frames) if spec.kind == "cell" else ()
    return "rows have timestamps of their own" if any(map(has_timestamps, rows)) else ""


def _unreached(context: RoleChange, spec: TableSpec, upto: int) -> str:
    """Why the table's rows as of a time are not known any more; "" when they are."""
    catalog = context.cluster.reader.catalog
    if not catalog.has(spec):
        return ""
    try:
        snapshot_upto(catalog.history(spec.name), upto, spec.name)
    except RequestError as error:
        return error.what
    return ""


def _too_early(upto: int, why: str) -> str:
    return f"the tables cannot open at {moment_text(upto)}: {why}; give a later time, or {_ALL}"
