"""Which names a table may have at a peer, or take from one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.contacts import Contacts
from peer.peering import Peering
from replication import __version__
from replication.errors import PeerRefusedError, RequestError
from replication.ledger.base import ReplayMark
from replication.link.base import PROTOCOL
from tests.contract.ledger_stores import NORTH, WEST
from tests.sites import Site, rows, table, until

UNUSABLE = [
    "flights_w",
    "a.b.c",
    "../ops.x",
    "ops/x.y",
    "ops.airports__changes",
    "ops.Airports__LATEST",
    "Walship.x",
    ".",
]


@pytest.fixture
def east(tmp_path: Path) -> Iterator[Site]:
    site, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    sent = table("ops.sent")
    for spec in (sent, table("ops.new")):
        site.ledger.tables.create(spec)
    site.send_to(west, sent)
    yield site
    site.close()
    west.close()


class _Answering(Contacts):
    """One cluster, which answers with whatever table."""

    answer: Any = None

    @contextmanager
    def link_by(self, cluster: str) -> Iterator[Any]:
        yield SimpleNamespace(get_table=lambda name: type(self).answer)


@pytest.mark.parametrize("name", UNUSABLE)
def test_no_table_goes_to_a_peer_under_a_name_that_none_can_have(east: Site, name: str) -> None:
    peering = Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    before = east.ledger.rules.all()
    with pytest.raises(RequestError, match="ops.new cannot go to west under that name") as caught:
        peering.enable("ops.new", [], "west", name, count_rows=lambda _: 0)
    assert "--remote-table" in caught.value.hint and east.ledger.rules.all() == before


@pytest.mark.parametrize(
    ("shown", "replayed", "said"),
    [
        (0, False, "ops.new holds rows in up to 1 frames that are not replayed yet, which will not be sent"),
        (7, False, "ops.new holds 7 rows already, and more in up to 1 frames that are not replayed yet, which"),
        (7, True, "ops.new holds 7 rows already, which will not be sent"),
        (None, True, "ops.new holds rows in 1 frames already, which will not be sent"),
    ],
)
def test_rows_that_will_not_be_sent_are_told_also_before_they_are_replayed(
    east: Site, shown: int | None, replayed: bool, said: str
) -> None:
    spec, wal = east.ledger.tables.get("ops.new"), east.wal()
    end = wal.append(spec, rows(0, 10))
    with east.worker():
        until(lambda: east.ledger.landing.coverage(spec.uuid))
    if replayed:
        east.ledger.replay.mark_applied(ReplayMark(spec.uuid, 1, 1, 1, {wal.file: end}))
    peering = Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    with pytest.raises(RequestError, match=said) as caught:
        peering.enable("ops.new", [], "west", count_rows=lambda _: shown)
    assert "--from-now" in caught.value.hint
    assert "ops.new" not in peering.sent_to("west")


def test_a_table_that_is_taken_over_has_the_name_that_was_asked_for(east: Site) -> None:
    _Answering.answer = replace(table("ops.other"), name="../ops.other")
    peering = Peering(east.ledger, east.coordination, _Answering(east.ledger, east.config.tls))
    assert peering.adopt("ops.other", "west").name == "ops.other"
    with pytest.raises(RequestError, match="keeps for tables of its own"):
        peering.adopt("ops.other__changes", "west")


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"version": "9.1.0"}, PeerRefusedError, "west runs walship 9.1.0, which does not go with"),
        ({"protocol": PROTOCOL + 1}, PeerRefusedError, "Upgrade the older one first"),
        ({"cluster": NORTH}, RequestError, f"says {WEST}, its receiver {NORTH}"),
    ],
)
def test_a_peer_of_another_version_or_root_is_not_defined(
    east: Site, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    described = SimpleNamespace(**{"cluster": WEST, "version": __version__, "protocol": PROTOCOL} | wrong)

    class Reaching(Contacts):
        @contextmanager
        def link_to(self, name: str, addresses: Sequence[str]) -> Iterator[Any]:
            yield SimpleNamespace(describe=lambda: described)

    public = SimpleNamespace(cluster=WEST, receivers=("127.0.0.1:1",))
    monkeypatch.setattr("peer.contacts.read_public", lambda zookeepers, tls: (zookeepers, public))
    with pytest.raises(error, match=re.escape(said)):
        Reaching(east.ledger, east.config.tls).reach("west", "zk:2181/walship/west")
