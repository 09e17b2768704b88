"""Schema versions are sent once to a peer, for each table."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from replication.worker.ship.schemas import PeerSchemas
from tests.contract.ledger_stores import FLIGHTS, WEST
from tests.fakes.ledger import MemoryLedger


def test_a_table_with_the_columns_of_another_has_its_own_version_sent() -> None:
    ledger = MemoryLedger(WEST)
    copied = replace(FLIGHTS, uuid=uuid4(), name="ops.copied")
    for spec in (FLIGHTS, copied):
        ledger.tables.create(spec)
    (first,), (second,) = FLIGHTS.versions.values(), copied.versions.values()
    schemas = PeerSchemas(ledger, {}, [(first.table, first.hash)])
    assert schemas.missing([(first.table, first.group, first.hash)]) == []
    used = [(second.table, second.group, second.hash)]
    assert schemas.missing(used) == [second]
    schemas.sent(used)
    assert schemas.missing(used) == []
