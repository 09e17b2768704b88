"""The ledger's contract: a file that was written here is salvaged, and whoever lacks something of it is told."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest

from replication.core.coverage import Interval, Ranges
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.bootstrap import Coverage
from replication.core.routes.freshness import ClosedNotice
from replication.core.shipping.retention import RetentionPolicy
from replication.errors import MissingFileError, RequestError, StaleTermError
from replication.ledger.base import BatchPart, Claim, FileKind, Grown, Ledger, PeerProgress, Readable, SalvagePlan
from tests.contract.ledger_stores import (
    FLIGHTS,
    FRAME,
    HEADER,
    NORTH,
    WEATHER,
    WEST,
    Route,
    applied,
    claims,
    frame_hash,
    own_wal,
    stream,
    wal,
)
from tests.noted import note_closed

NUMBERS = (UUID(int=9000 + i) for i in itertools.count())
KEYLESS = typed_table("ops.log", pa.schema([("a", pa.int64())]), [], uuids=NUMBERS)


def at(frames: int) -> int:
    return HEADER + frames * FRAME


def closed(ledger: Ledger, frames: int) -> FileId:
    """A WAL of so many frames of the flights."""
    file = own_wal(ledger, frames)
    ledger.files.close(file, at(frames))
    return file


def readable_frames(file: FileId, frames: Iterable[int], spec: TableSpec = FLIGHTS) -> tuple[Claim, ...]:
    """These frames of a stream, each where it is in a file that holds nothing else."""
    return tuple(claim for n in frames for claim in claims(stream(spec, file), n, n + 1, at(n)))


def enable(ledger: Ledger, spec: TableSpec = FLIGHTS, *, bootstrap: bool = False) -> None:
    groups = [group.name for group in spec.groups]
    ledger.rules.enable("north", spec.uuid, groups, spec.name, 0, bootstrap=bootstrap)


def shipped(ledger: Ledger, file: FileId, frames: int) -> None:
    ledger.files.record([PeerProgress(file, "north", Ranges.of((HEADER, at(frames))), HEADER)])


def salvage(ledger: Ledger, file: FileId, end: int, found: tuple[Claim, ...], last: int | None = None) -> SalvagePlan:
    """As a person's word does it: what is wanted of ``found`` is copied; the file of copies is ``copies``."""
    ends = None if last is None else {stream(FLIGHTS, file): last}
    readable = Readable(end, found, ends)
    loss = ledger.salvage.plan(file, readable)
    into = ledger.files.allocate("h0", FileKind.LANDING, "/data/landing", "boot").file if loss.wanted else None
    saved = [replace(claim, begin=at(n), end=at(n + 1)) for n, claim in enumerate(loss.wanted)]
    done = ledger.salvage.carry_out(file, 0, readable, into, saved)
    assert done == loss, "it does what it said"
    assert ledger.files.get(file) is None
    return done


def copies(ledger: Ledger) -> FileId:
    (row,) = [row for row in ledger.files.all() if row.kind is FileKind.LANDING]
    return row.file


def pending(ledger: Ledger) -> dict[FileId, tuple[int, int]]:
    """From which frame to which replay has to apply of each file."""
    return {
        p.row.file: ((max([p.begin, *p.behind.values()]) - HEADER) // FRAME, (p.end - HEADER) // FRAME)
        for p in ledger.replay.pending()
    }


def phases(ledger: Ledger) -> dict[str, Phase]:
    return {rule.remote_table: rule.phase for rule in ledger.rules.all()}


def own_time(ledger: Ledger) -> int:
    return ledger.time.replicated()[WEST].t


def test_what_can_be_read_is_copied_the_rest_is_lost_and_nobody_waits_for_it(sending: Ledger) -> None:
    file = closed(sending, 4)
    s = stream(FLIGHTS, file)
    note_closed(sending, WEST, ClosedNotice(10, ((s, 3),)))
    loss = salvage(sending, file, at(4), readable_frames(file, (0, 1, 3)))
    assert loss.lost == {s: Ranges.of((2, 3))} and len(loss.wanted) == 3 and loss.unreadable_bytes == FRAME
    assert not loss.lacking and not loss.at_peers and not loss.unknown_bytes
    assert sending.landing.coverage() == {s: Ranges.of((0, 2), (3, 4))}
    assert pending(sending) == {copies(sending): (0, 3)} and own_time(sending) == 0
    applied(sending, FLIGHTS, {copies(sending): at(3)})
    assert own_time(sending) == 10 and sending.time.reached({s: 3})[s].visible
    lost = sending.time.reached({s: 2})[s]
    assert not lost.durable and "was salvaged" in lost.held_by
    assert sending.salvage.acknowledged() == {(FLIGHTS.uuid, "default"): {file: Ranges.of((2, 3))}}
    (waiver,) = sending.salvage.acknowledged_losses()
    assert (waiver.stream, waiver.sequences, waiver.file) == (s, Ranges.of((2, 3)), file) and waiver.at > 0


def test_what_is_lost_counts_when_it_comes_back(sending: Ledger) -> None:
    file = closed(sending, 3)
    salvage(sending, file, at(3), ())
    assert len(sending.salvage.acknowledged_losses()) == 1
    route = Route(sending, source=wal(0, NORTH))
    route.land(claims(stream(FLIGHTS, file), 0, 3, 0))
    assert sending.salvage.acknowledged_losses() == [] and pending(sending) == {route.file: (0, 3)}


def test_of_a_file_that_is_applied_and_everywhere_nothing_is_lost(sending: Ledger) -> None:
    enable(sending)
    file = closed(sending, 3)
    applied(sending, FLIGHTS, {file: at(3)})
    shipped(sending, file, 3)
    loss = salvage(sending, file, at(3), readable_frames(file, (0, 2)))
    assert not loss.lost and not loss.wanted and not loss.lacking
    assert phases(sending) == {"ops.flights": Phase.LIVE}
    assert sending.landing.coverage() == {stream(FLIGHTS, file): Ranges.of((0, 3))}
    assert sending.salvage.acknowledged_losses() == [] and not pending(sending)


def test_a_peer_that_lacks_what_is_lost_needs_a_bootstrap_of_those_tables_only(sending: Ledger) -> None:
    enable(sending)
    enable(sending, WEATHER)
    file = own_wal(sending, 3)
    other = stream(WEATHER, file, "first")
    sending.registration.register_own(file, at(3), at(4), claims(other, 0, 1, at(3)))
    sending.files.close(file, at(4))
    applied(sending, FLIGHTS, {file: at(3)})
    shipped(sending, file, 1)
    found = (*readable_frames(file, (0, 1)), *claims(other, 0, 1, at(3)))
    loss = salvage(sending, file, at(4), found)
    assert loss.lacking == {"north": {FLIGHTS.uuid: 1}} and not loss.lost
    assert [claim.sequence for claim in loss.wanted] == [1, 0], "what north lacks, and what replay waits for"
    assert phases(sending) == {"ops.flights": Phase.NEEDS_BOOTSTRAP, "ops.weather": Phase.LIVE}
    assert sending.landing.coverage()[stream(FLIGHTS, file)] == Ranges.of((0, 3))
    found_at = {(f, rule.remote_table) for f, rule, status in sending.files.statuses("north") if status.remaining}
    assert found_at == {(copies(sending), "ops.weather")}


def test_what_is_applied_here_and_lacked_by_a_peer_goes_from_the_copy_and_is_not_applied_again(
    sending: Ledger,
) -> None:
    enable(sending)
    file = closed(sending, 4)
    applied(sending, FLIGHTS, {file: at(2)})
    shipped(sending, file, 1)
    loss = salvage(sending, file, at(4), readable_frames(file, range(4)))
    assert not loss.lost and not loss.lacking and [claim.sequence for claim in loss.wanted] == [1, 2, 3]
    made = copies(sending)
    assert pending(sending) == {made: (1, 3)} and phases(sending) == {"ops.flights": Phase.LIVE}
    (status,) = [status for f, _, status in sending.files.statuses("north") if f == made]
    assert status.remaining == 3 * FRAME
    assert sending.files.retirable("h0", RetentionPolicy()) == []
    sending.files.record([PeerProgress(made, "north", Ranges.of((HEADER, at(3))), at(3))])
    applied(sending, FLIGHTS, {made: at(3)}, commit=2)
    assert [row.file for row in sending.files.retirable("h0", RetentionPolicy())] == [made]


def batch(ledger: Ledger, spec: TableSpec, file: FileId, sequence: int) -> str:
    """A batch of one frame."""
    name = f"batch {file.local} {sequence}"
    part = BatchPart("default", 0, 1, bytes(32), file, sequence, at(sequence + 1))
    ledger.batches.put(spec.uuid, name, [part], sequence)
    return name


def test_what_a_peer_has_is_named_and_a_batch_that_is_lost_may_be_repeated(sending: Ledger) -> None:
    enable(sending)
    file = closed(sending, 3)
    shipped(sending, file, 2)
    names = [batch(sending, FLIGHTS, file, n) for n in range(3)]
    loss = salvage(sending, file, at(3), readable_frames(file, (0, 2)))
    lost = {stream(FLIGHTS, file): Ranges.of((1, 2))}
    assert loss.lost == lost and loss.at_peers == {"north": lost} and not loss.lacking
    assert phases(sending) == {"ops.flights": Phase.LIVE}
    assert [bool(sending.batches.parts(FLIGHTS.uuid, name)) for name in names] == [True, False, True]


def test_a_lost_batch_of_a_table_without_key_is_not_repeated_where_a_peer_may_have_it(sending: Ledger) -> None:
    sending.tables.create(KEYLESS)
    enable(sending, KEYLESS)
    for there, kept in ((0, [False, False]), (1, [True, True])):  # which of the two it has cannot be told
        file = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
        sending.registration.register_own(file, HEADER, at(2), claims(stream(KEYLESS, file), 0, 2, HEADER))
        sending.files.close(file, at(2))
        shipped(sending, file, there)
        names = [batch(sending, KEYLESS, file, n) for n in range(2)]
        loss = salvage(sending, file, at(2), ())
        assert loss.lacking == {"north": {KEYLESS.uuid: 2}} and not loss.at_peers
        assert [bool(sending.batches.parts(KEYLESS.uuid, name)) for name in names] == kept
        sending.rules.disable("north", KEYLESS.uuid, ["default"], 0)
        enable(sending, KEYLESS)


def test_what_was_never_registered_is_saved_and_listed(sending: Ledger) -> None:
    file = own_wal(sending, 2)
    applied(sending, FLIGHTS, {file: at(2)})
    sending.files.close(file, at(6))
    loss = salvage(sending, file, at(6), readable_frames(file, (0, 1, 3, 4)), last=5)
    s = stream(FLIGHTS, file)
    assert loss.lost == {s: Ranges.of((2, 3), (5, 6))} and not loss.unknown_bytes
    assert sending.landing.coverage() == {s: Ranges.of((0, 2), (3, 5))}
    assert pending(sending) == {copies(sending): (0, 2)}
    assert sending.time.grown(2, {}) == {copies(sending): Grown(at(2), {s: 4})}, "closed time may pass them now"
    other = own_wal(sending)
    sending.files.close(other, at(3))
    loss = salvage(sending, other, at(3), ())
    assert not loss.lost and loss.unknown_bytes == 3 * FRAME


def test_an_open_file_of_a_dead_writer_holds_closed_time_no_more(sending: Ledger) -> None:
    sending.time.register_writer("writer", "h0", 1, "boot", 1)
    first, second = own_wal(sending, 1), own_wal(sending, 1)
    assert sending.time.raise_closed("h0", {}, 1000) < 1000
    salvage(sending, first, at(1), ())
    assert len(sending.time.writers()) == 1, "it has another file that is OPEN"
    salvage(sending, second, at(1), readable_frames(second, (0,)))
    assert sending.time.writers() == [] and sending.time.raise_closed("h0", {}, 1000) == 1000


def test_a_bootstrap_under_way_waits_for_what_was_copied(sending: Ledger) -> None:
    file = closed(sending, 2)
    enable(sending, bootstrap=True)
    assert "has not applied" in sending.bootstraps.wanted()[0].waits_for
    salvage(sending, file, at(2), readable_frames(file, (0, 1)))
    (wanted,) = sending.bootstraps.wanted()
    assert "has not applied" in wanted.waits_for and phases(sending) == {"ops.flights": Phase.BOOTSTRAPPING}
    applied(sending, FLIGHTS, {copies(sending): at(2)})
    assert sending.bootstraps.wanted()[0].waits_for == ""


def test_a_table_without_key_of_which_it_is_unknown_what_is_applied_holds_the_file(ledger: Ledger) -> None:
    ledger.tables.create(KEYLESS)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    s = stream(KEYLESS, file)
    ledger.registration.register_own(file, HEADER, at(4), claims(s, 0, 4, HEADER))
    ledger.files.close(file, at(4))
    applied(ledger, KEYLESS, {file: at(2)})
    some = Readable(at(4), readable_frames(file, (0, 3), KEYLESS))
    assert ledger.salvage.plan(file, some).doubtful == {KEYLESS.uuid}
    with pytest.raises(RequestError, match="an unknown part of the unreadable bytes"):
        made = Route(ledger)
        ledger.salvage.carry_out(file, 0, some, made.file, made.group(ledger.salvage.plan(file, some).wanted).claims)
    assert ledger.landing.coverage() == {s: Ranges.of((0, 4))}
    ledger.salvage.carry_out(file, 0, Readable(at(4), readable_frames(file, (0, 1, 2, 3), KEYLESS)[:2]))
    assert ledger.landing.coverage() == {s: Ranges.of((0, 2))}


def test_a_file_is_salvaged_only_as_planned_and_under_the_current_term(sending: Ledger) -> None:
    file = closed(sending, 2)
    readable = Readable(at(2), readable_frames(file, (0, 1)))
    made = Route(sending)
    some = made.group(readable_frames(file, (0,))).claims
    with pytest.raises(RequestError, match="more frames of .* are needed"):
        sending.salvage.carry_out(file, 0, readable, made.file, some)
    with pytest.raises(MissingFileError):
        sending.salvage.plan(wal(99), Readable(HEADER))
    sending.terms.raise_to_next()
    with pytest.raises(StaleTermError):
        sending.salvage.carry_out(file, 0, Readable(at(2)))
    assert sending.files.get(file) is not None and sending.salvage.acknowledged_losses() == []


@pytest.mark.parametrize("is_open", [True, False])
def test_with_a_control_log_nothing_is_lost(sending: Ledger, is_open: bool) -> None:
    enable(sending)
    file = sending.files.allocate("h0", FileKind.CONTROL, "/data/wal", "boot").file
    sending.registration.register_own(file, HEADER, at(3), claims(StreamId(file, NIL_UUID, ""), 0, 3, HEADER))
    if not is_open:
        sending.files.close(file, at(4))
    assert sending.salvage.plan(file, Readable(at(3))).lost == {}
    loss = sending.salvage.carry_out(file, 0, Readable(at(3)))
    assert (loss.lost, loss.lacking, loss.doubtful, loss.unknown_bytes) == ({}, {}, frozenset(), 0)
    assert (
        sending.files.get(file) is None
        and sending.replay.pending() == []
        and sending.salvage.acknowledged_losses() == []
    )
    assert [status for _, _, status in sending.files.statuses("north")] == []


def test_a_bootstrap_that_is_salvaged_is_wanted_again(sending: Ledger) -> None:
    enable(sending, bootstrap=True)
    (wanted,) = sending.bootstraps.wanted()
    file = sending.bootstraps.begin_file(wanted, "h0", "/data/wal", "boot").file
    sending.bootstraps.finish_file(file, at(3))
    loss = sending.salvage.carry_out(file, 0, Readable(at(3)))
    assert (loss.lost, loss.lacking) == ({}, {}) and sending.files.get(file) is None
    assert sending.bootstraps.wanted() == [wanted]


def test_of_a_frame_that_is_damaged_the_hashes_around_it_are_kept(sending: Ledger) -> None:
    file = closed(sending, 4)
    s = stream(FLIGHTS, file)
    applied(sending, FLIGHTS, {file: at(4)})
    enable(sending, bootstrap=True)
    salvage(sending, file, at(4), readable_frames(file, (0, 3)))
    (found,) = sending.bootstraps.coverage(FLIGHTS.uuid, ["default"])
    ((interval,),) = found.intervals
    assert (interval.begin, interval.end, interval.last) == (0, 4, frame_hash(s, 3))


def test_a_bootstrap_claims_of_the_own_wals_only_what_was_lost(sending: Ledger) -> None:
    """Otherwise a peer could claim what will be written here, which would then count as duplicates."""
    file = closed(sending, 4)
    s, unwritten = stream(FLIGHTS, file), stream(FLIGHTS, replace(file, number=file.number + 1))
    salvage(sending, file, at(4), readable_frames(file, (0, 3)))
    received = sending.files.allocate("h0", FileKind.BOOTSTRAP, "/data/landing", "boot", source=wal(9, NORTH)).file
    whole = tuple(Interval(0, 9, frame_hash(each, -1), frame_hash(each, 8)) for each in (s, unwritten))
    claimed = {wal: (interval,) for wal, interval in zip((s.wal, unwritten.wal), whole, strict=True)}
    taken = sending.bootstraps.adopt([(received, at(0), at(1), Coverage.of(FLIGHTS.uuid, "default", claimed))])
    assert taken == {s: Ranges.of((1, 3)), unwritten: Ranges()}
    assert sending.landing.coverage() == {s: Ranges.of((0, 4))} and sending.salvage.acknowledged_losses() == []
