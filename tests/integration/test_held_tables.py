"""A table that replay holds at the peer fills no room there that others need."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from peer.replay.report import ReplayReport
from tests.sites import Site, rows, table, until


def test_when_a_held_table_fills_the_landing_that_table_alone_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        east, west = Site(tmp_path, "east"), Site(tmp_path, "west", receiver={"landing_bytes_max": 20_000})
        bad, good = table("ops.bad"), table("ops.good")
        for site in (east, west):
            stack.callback(site.close)
            for spec in (bad, good):
                site.ledger.tables.create(spec)
        east.send_to(west, bad, good)
        ReplayReport(held={"ops.bad": "its schema is odd"}).save(west.ledger.replay)
        wal = east.wal()
        receiver = stack.enter_context(west.receiver())
        stack.enter_context(east.worker())
        east.assign(west.cluster, receiver.port)
        wal.append(bad, rows(0, 1000))

        def refused() -> bool:
            wal.append(bad, rows(0, 1000))
            return bool(east.ledger.sending.held())

        until(refused, 30, what="the table to be refused")
        (held,) = east.ledger.sending.held()
        assert held.table == bad.uuid and "ops.bad is held there: its schema is odd" in held.reason
        wal.append(good, rows(0, 10))
        until(lambda: west.ledger.landing.coverage(good.uuid), 30, what="the other table")
        assert east.ledger.files.failing() == frozenset()
