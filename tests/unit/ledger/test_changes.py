"""A ledger is read again when something was decided, and not before."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from replication.core.ids import ClusterId
from replication.core.routes.carried import InboundRoute
from replication.core.succession import Succession
from replication.errors import TableExistsError
from replication.ledger.base import FileKind, Readable
from replication.ledger.changes import LedgerChanges
from replication.ledger.sql.ledger import initialise, open_ledger
from tests.contract.ledger_stores import WEST, Route, claims, stream, table
from tests.fakes.ledger import MemoryLedger


def test_a_ledger_has_changed_once_after_each_decision_of_any_process_and_not_by_facts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url, ClusterId("east", UUID(int=1)))
    ledger, other, now = open_ledger(url), open_ledger(url), [0.0]
    try:
        other.tables.create(table("ops.one", 1))
        changes = LedgerChanges(ledger, lambda: now[0])
        assert [changes.any() for _ in range(3)] == [True, False, False]
        ledger.tables.all()
        other.tables.all()
        assert not changes.any(), "reading commits nothing"
        for number in range(2, 20):  # in one tick of the kernel's clock
            other.tables.create(table(f"ops.t{number}", number))
            assert changes.any() and not changes.any()
        other.replay.keep_report("news")
        other.files.allocate("h0", FileKind.CONTROL, str(tmp_path), "boot")
        other.sending.sample("gauge", 1, 2, 0)
        assert not changes.any()
        with pytest.raises(TableExistsError):
            other.tables.create(table("ops.one", 20))
        assert not changes.any(), "nothing was committed"
        changes.forget()
        assert changes.any() and not changes.any()
        now[0] += 31.0
        assert changes.any() and not changes.any(), "whatever the file tells"
    finally:
        ledger.close()
        other.close()


def test_prepared_statements_tell_of_decisions_and_not_of_facts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    east, west = (ClusterId(name, UUID(int=number)) for number, name in enumerate(("east", "west")))
    initialise(url, east)
    with closing(open_ledger(url)) as ledger:
        changes = LedgerChanges(ledger)
        changes.any()
        decisions: list[Callable[[], object]] = [
            lambda: ledger.landing.keep_epoch(west, 2),
            lambda: ledger.terms.recognise(west, ((1, "nonce"),)),
            lambda: ledger.landing.declare_routes([InboundRoute(west, UUID(int=7), "default", 1)]),
            lambda: ledger.successions.accept(Succession(west, east, 3, 1, is_planned=True)),
            lambda: ledger.time.register_writer("w", "h0", 1, "boot", 1),
            lambda: ledger.steps.create("steps"),
        ]
        for decide in decisions:
            decide()
            assert changes.any() and not changes.any()
        file = ledger.files.allocate("h0", FileKind.WAL, str(tmp_path), "boot").file
        ledger.files.close(file, 100)
        ledger.successions.keep_address(west, "localhost:2181")
        assert not changes.any()


def test_a_salvage_is_a_decision_because_receivers_remember_what_was_here(tmp_path: Path) -> None:
    initialise(url := f"sqlite:///{tmp_path / 'ledger.db'}", WEST)
    with closing(open_ledger(url)) as ledger:
        ledger.tables.create(table())
        route = Route(ledger)
        route.land(claims(stream(table(), route.source), 0, 2, 0))
        ledger.files.close(route.file, route.at)
        changes = LedgerChanges(ledger)
        changes.any()
        ledger.salvage.carry_out(route.file, 0, Readable(route.at))
        assert changes.any() and not changes.any()


def test_where_none_can_tell_a_ledger_counts_as_changed() -> None:
    changes = LedgerChanges(MemoryLedger(ClusterId("east", UUID(int=1))), time.monotonic)
    assert changes.any() and changes.any()
