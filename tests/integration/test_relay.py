"""A cluster that keeps no tables and only passes frames on: what it tells its senders, and what its status says."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from peer.status.collect import collect
from peer.status.members import members_of
from replication.coordination.base import HostRecord
from replication.core.shipping.retention import RetentionPolicy
from tests.sites import Site, rows, table
from tests.waiting import wait_until


def test_a_relay_lets_its_senders_go_once_it_has_landed_what_they_sent(tmp_path: Path) -> None:
    with ExitStack() as stack:
        east, west = (Site(tmp_path, name, replay={"enabled": name == "east"}) for name in ("east", "west"))
        for site in (east, west):
            stack.callback(site.close)
        spec = table()
        east.ledger.tables.create(spec)
        east.send_to(west, spec)
        west.coordination.put_host(HostRecord("h0", str(west.config.data_dir), "", keeps_tables=False))
        receiver = stack.enter_context(west.receiver())
        stack.enter_context(east.worker())
        east.assign(west.cluster, receiver.port)
        wal = east.wal()
        wal.append(spec, rows(0, 10))
        length = wal.finish()
        wait_until(lambda: any(p.file == wal.file and p.applied == length for p in east.ledger.files.progress("west")))
        assert west.ledger.replay.pending(), "nothing was replayed"
        wait_until(lambda: any(row.source == wal.file and row.closed for row in west.ledger.files.all()))
        relay = RetentionPolicy(keeps_tables=False)
        assert wal.file in {row.source for row in west.ledger.files.retirable("h0", relay)}
        retained = collect(west.config, west.ledger, members_of(west.coordination)).retained
        assert not retained.own_replay and retained.unreplayed_bytes == 0


def test_status_shows_what_is_kept_for_a_peer_and_what_is_past_its_budget(tmp_path: Path) -> None:
    with ExitStack() as stack:
        east, west = (Site(tmp_path, name, master={"peer_bytes_max": 1}) for name in ("east", "west"))
        for site in (east, west):
            stack.callback(site.close)
        spec = table()
        east.ledger.tables.create(spec)
        east.send_to(west, spec)
        receiver = stack.enter_context(west.receiver())
        stack.enter_context(east.worker())
        east.assign(west.cluster, receiver.port)
        there, young = east.wal(), east.wal()
        there.append(spec, rows(0, 10))
        length = there.finish()

        def kept() -> tuple[int, int]:
            retained = collect(east.config, east.ledger, members_of(east.coordination)).retained
            (of_west,) = retained.peers
            return of_west.unapplied_bytes, of_west.past_budget_files

        wait_until(lambda: kept() == (length, 1))
        assert young.length == 256
