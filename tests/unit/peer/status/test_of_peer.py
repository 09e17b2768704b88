"""What ``status --peer`` shows: of peers that one alone."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from rich.console import Console

from peer.status.collect import ClusterStatus, collect
from peer.status.members import Members
from replication.core.ids import ClusterId, StreamId
from replication.core.succession import Succession
from replication.errors import UnknownPeerError
from replication.ledger.base import PatternRule, Quarantined
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.status import status
from tests.sites import Site, rows, table
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


class Told:
    """An invocation of ``status`` at a cluster with two peers that lack a file, and what it printed."""

    def __init__(self, east: Site) -> None:
        self.east = east
        self.out = io.StringIO()

    def status(self) -> ClusterStatus:
        return collect(self.east.config, self.east.ledger, Members())

    def run(self, peer: str | None, *, as_json: bool) -> str:
        console = Console(file=self.out, width=500)

        @contextmanager
        def connect() -> Iterator[Any]:
            yield SimpleNamespace(ledger=self.east.ledger, status=self.status), Printer(as_json, console, console)

        status(cast(Invocation, SimpleNamespace(connect=connect)), peer)
        return self.out.getvalue()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    east, west, north = (Site(tmp_path, name) for name in ("east", "west", "north"))
    spec = table("ops.flights")
    east.ledger.tables.create(spec)
    for peer in (west, north):
        east.send_to(peer, spec)
        east.ledger.rules.add_pattern_rule(PatternRule(peer.cluster.name, "hr.*"), east.term)
    wal = east.wal()
    wal.append(spec, rows(0, 10))
    wal.finish()
    with east.worker():
        wait_until(lambda: east.ledger.landing.coverage(spec.uuid))
    yield Told(east)
    for site in (east, west, north):
        site.close()


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_is_said_of_other_peers(told: Told, as_json: bool) -> None:
    said = told.run("west", as_json=as_json)
    assert "west" in said and "north" not in said
    if as_json:
        found = json.loads(said)
        assert found["retained"]["peers"] and found["peer_forecasts"] and found["peers"] and found["pattern_rules"]
    else:
        assert re.search("retained for west: [12] closed files", said) and "files not complete at west: 1 (" in said


def test_all_of_them_are_shown_without_a_name_and_an_unknown_one_is_refused(told: Told) -> None:
    assert re.search("retained for north: [12] closed files", told.run(None, as_json=False))
    with pytest.raises(UnknownPeerError, match="no peer 'south'"):
        told.run("south", as_json=False)


def test_where_the_host_stands_is_shown_when_it_says_so(told: Told) -> None:
    assert "location of" not in told.run(None, as_json=False)
    config = told.east.config
    told.east.config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"location": "Ulm"})})
    assert "location of this host: Ulm" in told.run(None, as_json=False)
    told.out.truncate(told.out.seek(0))
    assert json.loads(told.run(None, as_json=True))["location"] == "Ulm"


def test_who_took_over_from_whom_is_one_line_with_the_lost_writes(told: Told) -> None:  # scenario 25
    east, west, north = told.east.cluster, ClusterId("west", UUID(int=2)), ClusterId("north", UUID(int=3))
    assert "took over" not in told.run(None, as_json=False)
    records = told.east.ledger.successions
    records.record(Succession(east, west, 2, 1_700_000_000_000_000, is_planned=True))
    lost = Succession(west, north, 3, 1_700_000_100_000_000, is_planned=False)
    records.record(lost)
    records.record(Succession(ClusterId("south", UUID(int=4)), north, 4, 1 << 61, is_planned=True))  # as south says
    records.keep_address(north, "zk:2181/walship/north")
    wal = told.east.ledger.files.all()[0].file
    frame = Quarantined(wal, 256, 300, UUID(int=9), "late", "/x", 1, succession=str(lost))
    told.east.ledger.replay.quarantine(frame, (StreamId(wal, frame.table, "default"), 0))
    said = told.run(None, as_json=False)
    (line,) = (line for line in said.splitlines() if "took over" in line)
    assert line == (
        f"north took over from south {1 << 61} (switchover, epoch 4);"
        " north took over from west 2023-11-14 22:15:00.000Z (failover, epoch 3);"
        " west took over from east 2023-11-14 22:13:20.000Z (switchover, epoch 2);"
        " ACTIVE: north (zk:2181/walship/north); frames of lost writes to decide: 1"
    )
    told.out.truncate(told.out.seek(0))
    found = json.loads(told.run(None, as_json=True))["role_history"]
    assert found["active"] == "north" and [each["lost_writes"] for each in found["successions"]] == [0, 1, 0]
