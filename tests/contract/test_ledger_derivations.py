"""The ledger's contract: each step of a derived table is stored, and only if nobody else took one meanwhile."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from replication.ledger.base import Ledger
from replication.ledger.derivations import ANEW, Derivation
from tests.contract.ledger_stores import FLIGHTS

SOURCE = replace(FLIGHTS, uuid=uuid4(), name="ops.source")
MADE = Derivation(FLIGHTS.uuid, SOURCE.uuid, "select", {"where": "true"}, version="1")


@pytest.fixture
def begun(ledger: Ledger) -> Derivation:
    """A derived table that has a batch under way, up to replay commit 7."""
    for spec in (FLIGHTS, SOURCE):
        ledger.tables.create(spec)
    ledger.derivations.define(MADE)
    (was,) = ledger.derivations.all()
    assert (was.generation, was.position) == (1, ANEW)
    assert ledger.derivations.begin(was, "batch", 7)
    assert not ledger.derivations.begin(was, "another", 8), "it is begun"
    (found,) = ledger.derivations.all()
    assert (found.pending, found.pending_position, found.position) == ("batch", 7, ANEW)
    return found


def test_a_batch_that_is_written_brings_the_table_to_its_position_once(ledger: Ledger, begun: Derivation) -> None:
    ledger.derivations.note_error(begun.table, "no worker", 5)
    assert ledger.derivations.finish(begun, 7, 70, 80)
    (done,) = ledger.derivations.all()
    assert (done.pending, done.position, done.upto, done.at, done.error) == ("", 7, 70, 80, "")
    assert not ledger.derivations.finish(begun, 7, 70, 80) and not ledger.derivations.begin(begun, "late", 9)
    assert ledger.derivations.begin(done, "next", 9)


@pytest.mark.parametrize("keyless", [False, True])
def test_a_batch_of_a_hook_that_was_changed_since_counts_only_where_rows_are_never_compared_again(
    ledger: Ledger, begun: Derivation, keyless: bool
) -> None:
    ledger.derivations.define(replace(MADE, version="2"), anew=not keyless)
    assert ledger.derivations.finish(begun, 7, 70, 80, keyless=keyless)
    (done,) = ledger.derivations.all()
    assert (done.pending, done.version, done.generation) == ("", "2", 2)
    assert done.position == (7 if keyless else ANEW)
    assert not ledger.derivations.finish(begun, 7, 70, 80, keyless=keyless), "nothing is pending"


def test_a_comparison_of_a_hook_that_was_changed_since_does_not_count(ledger: Ledger, begun: Derivation) -> None:
    ledger.derivations.finish(begun, 7, 70, 80)
    (was,) = ledger.derivations.all()
    ledger.derivations.renew(was.table, "2")
    assert not ledger.derivations.finish(was, 9, 90, 95)
    (found,) = ledger.derivations.all()
    assert (found.version, found.position, found.upto) == ("2", ANEW, 70)
