"""The ledger's contract: what those who send tell of it, bytes withheld, rates, and the count of retired bytes."""

from __future__ import annotations

import pytest

from replication.core.coverage import Ranges
from replication.errors import StaleTermError, UnknownPeerError
from replication.ledger.base import FileKind, Ledger, PeerProgress
from tests.contract.ledger_stores import FRAME, HEADER, applied, claims, peer, stream, table

FLIGHTS, WEATHER = table(), table("ops.weather", 2)


@pytest.fixture
def sending(ledger: Ledger) -> Ledger:
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
    ledger.rules.define(peer(), 0)
    for spec in (FLIGHTS, WEATHER):
        ledger.rules.enable("north", spec.uuid, ["default"], spec.name, 0)
    return ledger


def test_attempts_are_counted_in_a_row_and_ever(sending: Ledger) -> None:
    for failures in (1, 2, 5):
        sending.sending.attempted("north", "h0", "tail", failures, 70, 60, "down")
    sending.sending.attempted("north", "h1", "tail", 1, 80, 61, "slow")
    (first, other) = sending.sending.attempts()
    assert (first.failures, first.total, first.next_at, first.at, first.error) == (5, 5, 70, 60, "down")
    assert (other.host, other.total) == ("h1", 1)
    sending.sending.attempted("north", "h0", "tail", 0, 0, 90, "")
    sending.sending.attempted("north", "h0", "tail", 1, 95, 94, "down again")
    (first, _) = sending.sending.attempts()
    assert (first.failures, first.total, first.error) == (1, 6, "down again")
    sending.sending.attempted("nobody", "h0", "tail", 1, 0, 0, "x")
    sending.rules.delete("north", 0)
    assert sending.sending.attempts() == []


def test_a_host_reports_which_tables_it_withholds_now_and_since_when(sending: Ledger) -> None:
    sending.sending.set_held("north", "h0", {FLIGHTS.uuid: "dropped there", WEATHER.uuid: "another uuid"}, 10)
    sending.sending.set_held("north", "h1", {FLIGHTS.uuid: "dropped there"}, 11)
    sending.sending.set_held("north", "h0", {FLIGHTS.uuid: "dropped there"}, 20)
    assert [(h.table, h.host, h.since) for h in sending.sending.held()] == [
        (FLIGHTS.uuid, "h0", 10),
        (FLIGHTS.uuid, "h1", 11),
    ]
    sending.sending.set_held("nobody", "h0", {FLIGHTS.uuid: "x"}, 1)
    for host in ("h0", "h1"):
        sending.sending.set_held("north", host, {}, 30)
    assert sending.sending.held() == []


def test_a_withheld_table_alone_does_not_make_a_peer_count_as_failing(sending: Ledger) -> None:
    file = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    sending.sending.set_held("north", "h0", {FLIGHTS.uuid: "dropped there"}, 10)
    sending.files.record([PeerProgress(file, "north", Ranges(), 0, error="dropped there")])
    assert sending.files.failing() == frozenset()
    sending.files.record([PeerProgress(file, "north", Ranges(), 0, error="its disk is full")])
    assert sending.files.failing() == {"north"}


def test_samples_are_kept_as_long_as_wanted(sending: Ledger) -> None:
    for at, value in ((10, 1), (20, 2), (20, 3), (30, 4)):
        sending.sending.sample("disk h0", at, value)
    sending.sending.sample("peer north", 10, 9)
    assert list(sending.sending.samples("disk h0")) == [(10, 1), (20, 3), (30, 4)]
    sending.sending.sample("disk h0", 40, 5, keep_since=30)
    assert list(sending.sending.samples("disk h0")) == [(30, 4), (40, 5)]
    assert list(sending.sending.samples("peer north")) == [(10, 9)]


def test_no_sample_of_a_clock_that_was_ahead_stays_once_it_is_right(sending: Ledger) -> None:
    for at, value in ((1_000, 1), (87_401_000, 2), (2_000, 3)):
        sending.sending.sample("disk h0", at, value)
    assert list(sending.sending.samples("disk h0")) == [(1_000, 1), (2_000, 3)]


def test_a_peers_rate_is_a_decision(sending: Ledger) -> None:
    sending.rules.set_rate("north", 10_000, 0)
    assert [known.rate for known in sending.rules.peers()] == [10_000]
    with pytest.raises(UnknownPeerError, match="no peer nobody"):
        sending.rules.set_rate("nobody", 1, 0)
    sending.terms.raise_to_next()
    with pytest.raises(StaleTermError):
        sending.rules.set_rate("north", 0, 0)


def test_bytes_of_a_withheld_table_hold_up_no_other(sending: Ledger) -> None:
    file = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    end = HEADER + 4 * FRAME
    mine, other = stream(FLIGHTS, file), stream(WEATHER, file)
    for n in range(2):
        at = HEADER + 2 * n * FRAME
        sending.registration.register_own(file, at, at + FRAME, claims(mine, n, n + 1, at))
        sending.registration.register_own(file, at + FRAME, at + 2 * FRAME, claims(other, n, n + 1, at + FRAME))
    shipped = Ranges.of((HEADER + FRAME, HEADER + 2 * FRAME), (HEADER + 3 * FRAME, end))
    for n in range(2):
        at = HEADER + 2 * n * FRAME
        withheld = {FLIGHTS.uuid: Ranges.of((at, at + FRAME))}
        sending.files.record([PeerProgress(file, "north", shipped, HEADER, withheld=withheld)])
    both = Ranges.of((HEADER, HEADER + FRAME), (HEADER + 2 * FRAME, HEADER + 3 * FRAME))
    assert sending.files.withheld(file) == {FLIGHTS.uuid: both}
    assert sending.files.withholding() == {file}
    statuses = {rule.table: status for _, rule, status in sending.files.statuses("north")}
    assert statuses[WEATHER.uuid].remaining == 0 and statuses[WEATHER.uuid].finished == end
    assert statuses[FLIGHTS.uuid].remaining == 2 * FRAME and statuses[FLIGHTS.uuid].finished == HEADER
    sending.files.close(file, end)
    for number, spec in enumerate((FLIGHTS, WEATHER)):
        applied(sending, spec, {file: end}, number + 1)
    assert sending.files.retirable("h0") == []


def test_retired_bytes_are_counted_for_ever(sending: Ledger) -> None:
    sending.rules.delete("north", 0)
    for number in range(2):
        file = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
        end = HEADER + 2 * FRAME
        sending.registration.register_own(file, HEADER, end, claims(stream(FLIGHTS, file), 0, 2, HEADER))
        sending.files.close(file, end)
        applied(sending, FLIGHTS, {file: end}, number + 1)
        assert sending.files.retired_bytes() == number * end
        sending.files.retire(file, 0)
        sending.files.retire(file, 0)
    assert sending.files.retired_bytes() == 2 * end
