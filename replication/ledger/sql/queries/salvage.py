"""Statements that carry out salvage decisions (rule 2): moving claims, requesting ranges again, recording losses."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from operator import itemgetter
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.errors import RequestError
from replication.ledger.base import Claim, FileRow, SalvagePlan
from replication.ledger.decisions.claiming import Run, by_stream, judge
from replication.ledger.decisions.salvage import FramesOfStream, Place, SalvageDecision, SalvageDecisions
from replication.ledger.sql.queries.claims import claim_row, nearby, place_row
from replication.ledger.sql.queries.moving import PlacedRun, replace_claim
from replication.ledger.sql.queries.salvage_facts import AppliedHere
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.touched import RULES
from replication.ledger.sql.store.keys import KeysInTransaction
from replication.ledger.sql.store.store import count_up, execute_many
from replication.wall_clock import now_us

_b, _f, _o, _q, _r = (t.c for t in (schema.batches, schema.files, schema.sources, schema.quarantined, schema.received))
_begins, _w = sending.rule_begins.c, schema.writers.c


def refuse(plan: SalvagePlan, copies: Mapping[Place, Claim]) -> None:
    """Raise RequestError when a plan cannot be carried out with these copies."""
    file = plan.row.file
    if plan.row.source is not None and not plan.row.closed:
        raise RequestError(f"{file} is still OPEN", "Its receiver closes it when it restarts, or after an idle minute")
    for table in sorted(plan.doubtful):
        raise RequestError(
            f"table {table} has applied an unknown part of the unreadable bytes of {file}",
            "The table has no key, so a row applied twice would show. Restore the file, or drop the table",
        )
    if any((claim.stream, claim.sequence) not in copies for claim in (*plan.wanted, *plan.elsewhere)):
        raise RequestError(f"more frames of {file} are needed than were copied", "Nothing was changed; try again")


def move_claims(
    connection: Connection, decisions: SalvageDecisions, copies: Mapping[Place, Claim], target: int | None
) -> dict[int, Ranges]:
    """Claim copied frames in their new file, keep the claims of applied ones, and drop the other claims.

    Returns:
        By stream key, the sequences that were not applied from the file.
    """
    left: dict[int, Ranges] = {}
    for decision in decisions.claimed:
        claim_range, leaving = decision.claim_range, decision.leaving()
        if claim_range is None or not (leaving or decision.wanted):
            continue
        runs = _kept(decision, decisions.frames.get(decision.stream, FramesOfStream()))
        applied = [claim for claim, is_applied in decision.wanted if is_applied]
        waiting = [claim for claim, is_applied in decision.wanted if not is_applied]
        for claims in (applied, [*waiting, *decision.elsewhere]):
            runs += _moved(target, (copies[claim.stream, claim.sequence] for claim in claims))
        replace_claim(connection, claim_range.key, claim_range.stream_key, runs)
        left[claim_range.stream_key] = left.get(claim_range.stream_key, Ranges()).union(leaving)
    return left


def _kept(decision: SalvageDecision, frames: FramesOfStream) -> list[PlacedRun]:
    """The parts of a claim range that stay claimed as applied, without a file."""
    at = decision.claim_range
    if at is None:
        return []
    return [(None, Run(begin, end, at.begin, at.end, *frames.edges(at, begin, end))) for begin, end in decision.kept]


def _moved(target: int | None, copies: Iterable[Claim]) -> list[PlacedRun]:
    """The claims in the file of copies."""
    runs: list[Run] = []
    for claim in sorted(copies, key=lambda claim: claim.sequence):
        if not runs or not runs[-1].takes(claim):
            runs.append(Run.of(claim))
    return [(target, run) for run in runs]


def claim_rest(
    connection: Connection,
    names: KeysInTransaction,
    decisions: SalvageDecisions,
    target: int,
    copies: Mapping[Place, Claim],
) -> None:
    """Claim copies whose sequences are unclaimed; add the others as duplicates."""
    moved = {(c.stream, c.sequence) for d in decisions.claimed for c in (*(w for w, _ in d.wanted), *d.elsewhere)}
    rest = by_stream(claim for place, claim in copies.items() if place not in moved)
    keys = {stream: names.stream(stream) for stream in rest}
    held = nearby(connection, [(keys[stream], claims) for stream, claims in rest.items()])
    for stream, claims in rest.items():
        decision = judge(claims, held.get(keys[stream], []))
        rows = [claim_row(target, keys[stream], run) for run in decision.claimed]
        execute_many(connection, schema.claims.insert(), rows)
        claimed = Ranges.union_of((run.seq_begin, run.seq_end) for run in decision.claimed)
        duplicates = [
            place_row(target, keys[stream], Run.of(claim)) for claim in claims if not claimed.contains(claim.sequence)
        ]
        execute_many(connection, schema.duplicates.insert(), duplicates)


def carry_over(
    connection: Connection, decisions: SalvageDecisions, key: int, target: int, copies: Mapping[Place, Claim]
) -> None:
    """Carry over, from the file to the file of copies, the tables' applied positions and the rules' begins."""
    positions: dict[UUID, int] = {}
    applied = decisions.applied()
    for place, copy in copies.items():
        if applied.get(place, False):
            positions[place[0].table] = max(copy.end, positions.get(place[0].table, 0))
    rows = [{"file_id": target, "table_uuid": str(table), "applied": end} for table, end in positions.items()]
    execute_many(connection, schema.positions.insert(), rows)
    places = ((claim.end, copies.get((claim.stream, claim.sequence))) for claim in decisions.readable.frames)
    ends = sorted((end, copy.end) for end, copy in places if copy is not None)
    upto = [FILE_HEADER_BYTES, *accumulate((copy for _, copy in ends), max)]  # the end of the copies of the first ones
    begins = [
        {"file_id": target, "rule_id": rule, "begin": upto[bisect_right(ends, begin, key=itemgetter(0))]}
        for rule, begin in connection.execute(sa.select(_begins.rule_id, _begins.begin).where(_begins.file_id == key))
    ]
    execute_many(connection, sending.rule_begins.insert(), begins)
    if begins:
        count_up(connection, RULES)


def release_quarantined(connection: Connection, file: FileId, applied: AppliedHere, left: Mapping[int, Ranges]) -> None:
    """Delete quarantine rows of frames that will land again; remove sequences in ``left`` from the other rows.

    ``left`` has, by stream key, the sequences that are no longer in the file.
    """
    for row in connection.execute(sa.select(schema.quarantined).where(_q.file == str(file))).all():
        here = (_q.file == row.file) & (_q.begin == row.begin)
        spans = json.loads(row.held)
        if spans and row.end > applied.of(row.table_uuid):
            connection.execute(schema.quarantined.delete().where(here))
            continue
        held = [
            [key, low, high]
            for key, begin, end in spans
            for low, high in Ranges.of((begin, end)).subtract(left.get(key, Ranges()))
        ]
        connection.execute(schema.quarantined.update().where(here).values(held=json.dumps(held)))


def take_back_received(connection: Connection, decisions: SalvageDecisions, target: int | None, end: int) -> None:
    """Delete received ranges with lost frames; move those with copied frames to the file of copies."""
    gone, moved = decisions.gone(), decisions.moved()
    sources: set[int] = set()
    for received in decisions.facts.received:
        here = _r.id == received.key
        if gone.within(received.begin, received.end):
            connection.execute(schema.received.delete().where(here))
            sources.add(received.source)
        elif target is not None and moved.within(received.begin, received.end):
            values = {"file_id": target, "begin": FILE_HEADER_BYTES, "end": end}
            connection.execute(schema.received.update().where(here).values(values))
    for source in sorted(sources):
        connection.execute(schema.sources.update().where(_o.id == source).values(losses=_o.losses + 1))


def acknowledge(connection: Connection, names: KeysInTransaction, plan: SalvagePlan) -> None:
    """Record the sequences that are gone, so that closed and replicated time do not wait for them."""
    now = now_us()
    rows = [
        {"stream_id": names.stream(stream), "seq_begin": begin, "seq_end": end, "file": str(plan.row.file), "at": now}
        for stream, sequences in plan.gone.items()
        for begin, end in sequences
    ]
    execute_many(connection, schema.acknowledged.insert(), rows)


def forget_batches(connection: Connection, decisions: SalvageDecisions) -> None:
    """Delete batch ids of lost frames, so that their rows may be appended again.

    In a table without a key, rows that a peer may have would show there twice; their batch ids are kept.
    """
    for decision in decisions.every():
        stream = decision.stream
        kept = decision.somewhere if stream.table in decisions.facts.keyless else Ranges()
        of_stream = (
            (_b.table_uuid == str(stream.table)) & (_b.table_group == stream.group) & (_b.wal == str(stream.wal))
        )
        for begin, end in decision.lost.subtract(kept):
            gone = of_stream & (_b.sequence >= begin) & (_b.sequence < end)
            connection.execute(schema.batches.delete().where(gone))


def end_writer(connection: Connection, row: FileRow) -> None:
    """Delete a dead writer without OPEN files, so that it no longer holds back closed time."""
    if row.closed or not row.writer:
        return
    left = sa.select(_f.id).where(_f.writer == row.writer, _f.host == row.host, _f.closed_length < 0)
    if connection.scalar(left.limit(1)) is None:
        connection.execute(schema.writers.delete().where(_w.writer == row.writer))
