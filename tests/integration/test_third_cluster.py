"""A cluster that landed more of a lost one than its successor did: that goes to the successor, and both say so."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from peer.status.collect import collect
from peer.status.members import Members
from replication.core.roles import Role, RoleState
from replication.roles.takeover import Takeover
from tests.graphs import Graph
from tests.sites import table
from tests.waiting import wait_until


def test_what_a_third_cluster_landed_beyond_the_cut_is_kept_by_the_successor_and_told_by_both(tmp_path: Path) -> None:
    spec = table()
    with ExitStack() as stack:
        graph = Graph(tmp_path, stack, "east>west east>north north>west west>north", spec)
        graph.define()
        graph.start()
        east, west, north = graph["east"], graph["west"], graph["north"]
        for node in (west, north):
            node.coordination.set_role(RoleState(Role.STANDBY, 2), node.coordination.role().version)
        position = east.write(spec, {1: "both", 2: "both"})
        for node in (west, north):
            east.wait(position, node)
        east.plan(without=["west"])
        north.plan(without=["west"])
        wait_until(
            lambda: not any(each.name == "tail west" for each in threading.enumerate()), what="no sender to west"
        )
        east.wait(east.write(spec, {2: "late", 3: "late"}), north)
        east.plan(without=["west", "north"])  # it is lost
        takeover = Takeover(west.ledger, west.coordination)
        now = time.time_ns() // 1000
        succession = west.ledger.successions.take_over(east.cluster, west.cluster, 3, now)
        takeover.promote(succession)
        north.plan()
        wait_until(lambda: [e.succession for e in west.ledger.replay.quarantined()] == [str(succession)], timeout_s=90)
        wait_until(lambda: north.ledger.successions.known().of(east.cluster) == succession, timeout_s=90)
        assert west.rows(spec) == {1: "both", 2: "both"} and north.rows(spec) == {1: "both", 2: "late", 3: "late"}
        at_west, at_north = (collect(node.config, node.ledger, Members()).role_history for node in (west, north))
        (told,) = at_west.successions
        assert (told.origin, told.successor, told.lost_writes, told.applied_here) == ("east", "west", 1, 0)
        (told,) = at_north.successions
        assert (told.origin, told.successor, told.lost_writes, told.applied_here) == ("east", "west", 0, 1)
        counts = replace(succession, cut=dict(north.ledger.landing.coverage(spec.uuid)))
        assert north.ledger.successions.landed_beyond(counts) == 0, "once they are merged"
