"""Callers with a grant: they bring what their routes and the grant are for, and nothing else."""  # issue 23, attack 1

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from peer.receive.receiver import Receiver
from replication.core.frame import FrameKind
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.core.routes.carried import Carried
from replication.core.routes.freshness import ClosedNotice
from replication.link.base import Ack, Reason
from tests.hostile import of_other_users
from tests.integration.receiving import Pair, answer, refused
from tests.integration.test_hostile_frames import forged, sent
from tests.integration.test_link_tls import AUTHORITY
from tests.integration.test_strangers import tls_section
from tests.sites import table

NORTH = ClusterId("north", uuid4())


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """East calls west with a certificate, and is a peer there, which grants it what a usual route needs."""
    of_other_users(monkeypatch)
    made = Pair(tmp_path, tls=tls_section(tmp_path, AUTHORITY.issue("west")))
    made.tls = AUTHORITY.issue("east")
    made.west.send_to_cluster(made.east.cluster)
    yield made
    made.close()


@pytest.fixture
def receiver(pair: Pair) -> Iterator[Receiver]:
    with pair.west.receiver() as made:
        yield made


def test_what_its_routes_are_for_lands(pair: Pair, receiver: Receiver) -> None:
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[2])), Ack)
    assert pair.landed == pair.sealed


def test_frames_without_a_route_change_nothing_and_others_go_on(pair: Pair, receiver: Receiver) -> None:
    pair.west.ledger.tables.create(wages := table("hr.wages"))
    session = pair.ship(receiver)
    refusal = refused(session, sent(pair, forged(pair, table=wages.uuid)))
    assert (refusal.reason, refusal.table) == (Reason.NOT_GRANTED, wages.uuid)
    refusal = refused(session, sent(pair, forged(pair, group="other"), 91))
    assert refusal.reason is Reason.NOT_GRANTED and "enablereplication" in refusal.remedy
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    assert pair.landed == pair.sealed[:1]


def test_frames_of_an_origin_that_no_route_carries_are_refused(pair: Pair, receiver: Receiver) -> None:
    wal = FileId(NORTH, "h0", 3)
    message = sent(pair, forged(pair, wal=wal, hops=(NORTH, pair.east.cluster)))
    refusal = refused(pair.ship(receiver), message)
    assert refusal.reason is Reason.NOT_GRANTED and "walship grants add east" in refusal.remedy
    assert not pair.west.ledger.landing.coverage()
    carried = replace(pair.route(), carried=(Carried(NORTH, (NORTH, pair.east.cluster)),))
    assert isinstance(answer(pair.ship(receiver, pair.hello(carried)), message), Ack)
    session = pair.ship(receiver)
    late = sent(pair, forged(pair, wal=replace(wal, number=4), hops=(NORTH, pair.east.cluster)), 91)
    assert isinstance(answer(session, late), Ack), "what was on the way when the route ceased to carry it"


def test_frames_of_the_receiver_itself_are_refused_whatever_their_path(pair: Pair, receiver: Receiver) -> None:
    """The true ones are no divergence afterwards."""
    own = pair.west.wal()
    carried = replace(pair.route(), carried=(Carried(pair.west.cluster, (pair.west.cluster, pair.east.cluster)),))
    session = pair.ship(receiver, pair.hello(carried))
    for number, kind in enumerate((FrameKind.DATA, FrameKind.BOOTSTRAP)):
        refusal = refused(session, sent(pair, forged(pair, wal=own.file, kind=kind), 90 + number))
        assert refusal.reason is Reason.NOT_GRANTED and "this cluster itself" in refusal.what
    copy = FileId(ClusterId("west", uuid4()), "h0", 0)
    assert refused(session, sent(pair, forged(pair, wal=copy), 95)).reason is Reason.NOT_GRANTED
    assert not pair.west.ledger.landing.coverage()
    assert not any(route.carried for route in pair.west.ledger.landing.routes())


def test_a_closed_time_counts_only_from_its_origin_or_along_a_route_that_carries_it(
    pair: Pair, receiver: Receiver
) -> None:
    far = 1 << 61
    notice = ClosedNotice(far, ()).encode()
    wal = FileId(NORTH, "h0", 3)
    control = {"kind": FrameKind.CLOSED, "table": NIL_UUID, "group": "", "row_count": 0}
    forgery = forged(pair, notice, (NORTH, pair.east.cluster), wal=wal, **control)
    reply = answer(pair.ship(receiver), sent(pair, forgery))
    assert isinstance(reply, Ack)
    assert NORTH not in pair.west.ledger.time.replicated()


def test_definitions_change_only_tables_that_have_a_route(pair: Pair, receiver: Receiver) -> None:
    wages = table("hr.wages")
    pair.west.ledger.tables.create(wages)
    session = pair.ship(receiver)
    session.send((replace(wages, properties={"history_s": "1"}),))
    reply = session.receive(20)
    assert reply is not None and reply.reason is Reason.NOT_GRANTED  # type: ignore[union-attr]
    assert pair.west.ledger.tables.by_uuid(wages.uuid) == wages
