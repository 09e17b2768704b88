"""Callers with a grant: they bring what their routes and the grant are for, and nothing else."""  # issue 23, attack 1

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.client.contacts import Contacts, Proof
from peer.client.peering import Peering
from peer.grants.rights import digest_of
from peer.receive.receiver import Receiver
from peer.status.refused import refused_lately
from replication import __version__
from replication.coordination.base import Public
from replication.coordination.paths import Quorum
from replication.core.coverage import Ranges
from replication.core.definition.alter import add_column
from replication.core.frame import FrameKind
from replication.core.grants import Grant
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.carried import Carried
from replication.core.routes.freshness import ClosedNotice
from replication.errors import PeerRefusedError
from replication.ledger.base import Invitation
from replication.link.base import Ack, Hello, PeerLink, Reason, Refusal
from replication.link.tls_files import fingerprint
from replication.settings import TlsSection
from tests.certificates import tls_section
from tests.hostile import calling
from tests.integration.receiving import Pair, answer, refused, secured_pair
from tests.integration.test_hostile_frames import forged, sent
from tests.integration.test_link_tls import AUTHORITY
from tests.sites import table

NORTH = ClusterId("north", uuid4())


_pair = pytest.fixture(name="pair")(secured_pair)


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
    """The true ones are not a divergence afterwards."""
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
    far = time.time_ns() // 1000 + 3_600_000_000  # an hour: more would be refused for the clock
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


def narrowed(pair: Pair, **changed: Any) -> None:
    pair.west.ledger.grants.put(replace(Grant(pair.east.cluster, ("ops.*",)), **changed), 1)


def test_a_grant_of_other_tables_opens_no_route_and_is_told_what_to_do(pair: Pair, receiver: Receiver) -> None:
    wages = table("hr.wages")
    pair.west.ledger.tables.create(wages)
    narrowed(pair)
    session = pair.ship(receiver, pair.hello(pair.route(), pair.route(spec=wages)))
    (refusal,) = session.opened.refused.values()
    assert refusal.reason is Reason.NOT_GRANTED and "walship grants add east --table hr.wages" in refusal.remedy
    assert refused(session, sent(pair, forged(pair, table=wages.uuid))).reason is Reason.NOT_GRANTED
    assert isinstance(answer(session, pair.data(256, pair.ends[2])), Ack), "its own table goes on"
    link = pair.link(receiver)
    renamed = replace(pair.route(spec=wages), remote_table="ops.wages")
    for ask in (
        lambda: link.open_route(pair.east.cluster, pair.west.cluster, renamed),
        lambda: link.get_table("hr.wages"),
    ):
        with pytest.raises(PeerRefusedError, match=r"no table hr\.wages"):
            ask()


def test_streams_of_another_origin_are_asked_about_only_for_tables_that_are_granted_or_sent(
    pair: Pair, receiver: Receiver
) -> None:
    wages = table("hr.wages")
    pair.west.ledger.tables.create(wages)
    pair.west.ledger.tables.create(pair.spec)
    narrowed(pair)
    link = pair.link(receiver)
    of_north = StreamId(FileId(NORTH, "h0", 3), pair.spec.uuid, "default")
    assert not link.reached({of_north: 0})[of_north].durable
    hidden = replace(of_north, table=wages.uuid)
    with pytest.raises(PeerRefusedError, match=r"no table hr\.wages"):
        link.reached({hidden: 0})
    own = replace(hidden, wal=pair.wal.file)
    assert not link.reached({own: 0})[own].durable, "its own rows went there by another cluster"


def test_a_grant_without_defining_makes_and_changes_no_table(pair: Pair, receiver: Receiver) -> None:
    narrowed(pair, defines=False)
    session = pair.ship(receiver)
    (refusal,) = session.opened.refused.values()
    assert refusal.reason is Reason.NOT_GRANTED and "--define" in refusal.remedy
    assert not pair.west.ledger.tables.all()
    pair.west.ledger.tables.create(pair.spec)
    session = pair.ship(receiver)
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    session.send((add_column(pair.spec, "seats", pa.int32(), "", uuid4(), 1),))
    reply = session.receive(20)
    assert isinstance(reply, Refusal) and reply.reason is Reason.NOT_GRANTED
    assert pair.west.ledger.tables.by_uuid(pair.spec.uuid) == pair.spec


def test_a_grant_may_name_the_origins_that_are_forwarded(pair: Pair, receiver: Receiver) -> None:
    narrowed(pair, origins=("south",))
    carried = replace(pair.route(), carried=(Carried(NORTH, (NORTH, pair.east.cluster)),))
    message = sent(pair, forged(pair, wal=FileId(NORTH, "h0", 3), hops=(NORTH, pair.east.cluster)))
    assert refused(pair.ship(receiver, pair.hello(carried)), message).reason is Reason.NOT_GRANTED
    assert not any(route.carried for route in pair.west.ledger.landing.routes())


def test_what_is_removed_ends_a_stream_and_is_counted(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    narrowed(pair, tables=())
    receiver._reception.refresh()
    assert refused(session, pair.data(pair.ends[0], pair.ends[1])).reason is Reason.NOT_GRANTED
    with pytest.raises(PeerRefusedError, match="grants nothing to east"):
        pair.ship(receiver)
    receiver._landing.refused.save()
    (counted,) = refused_lately(pair.west.ledger, 0)
    assert (counted.source, counted.reason) == ("east", "NOT_GRANTED") and "walship grants add east" in counted.what


def test_an_invitation_gives_its_grant_once_and_pins_who_used_it(pair: Pair, receiver: Receiver) -> None:
    west = pair.west.ledger
    west.rules.delete("east", pair.west.term)
    link = pair.link(receiver)
    assert link.describe().granted == ()
    offered = Grant(ClusterId("east", NIL_UUID), ("ops.*",), by="invitation")
    west.grants.invite(Invitation(digest_of("secret"), offered, 1 << 60), 1)
    with pytest.raises(PeerRefusedError, match="no open invitation") as caught:
        link.describe("guess")
    assert "walship invite east" in caught.value.hint
    assert link.describe("secret").granted == ("ops.*",)
    with pytest.raises(PeerRefusedError, match="no open invitation") as caught:
        link.describe("secret")
    assert "has used it, leave it out" in caught.value.hint, "its answer may have been lost"
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[2])), Ack)
    found = west.grants.of("east")
    assert found is not None and found.grant.cluster == pair.east.cluster


def test_an_invitation_that_many_show_at_once_or_too_late_or_in_anothers_name_is_used_once_at_most(
    pair: Pair, receiver: Receiver
) -> None:
    west, east = pair.west.ledger, pair.east.cluster
    west.rules.delete("east", pair.west.term)
    offered = Grant(ClusterId("east", NIL_UUID), ("ops.*",), by="invitation")
    west.grants.invite(Invitation(digest_of("late"), offered, time.time_ns() // 1000 - 1), 1)
    west.grants.invite(
        Invitation(digest_of("of north"), replace(offered, cluster=ClusterId("north", NIL_UUID)), 1 << 60), 1
    )
    west.grants.invite(Invitation(digest_of("secret"), offered, 1 << 60), 1)
    for shown in ("late", "of north", digest_of("secret"), "' OR 1=1 --", "x" * 10_000):
        with pytest.raises(PeerRefusedError, match="no open invitation"):
            pair.link(receiver).describe(shown)
    links, taken, refusals = [pair.link(receiver) for _ in range(8)], [], []

    def show(link: PeerLink) -> None:
        try:
            taken.append(link.describe("secret").granted)
        except PeerRefusedError as error:
            refusals.append(error.reason)

    threads = [threading.Thread(target=show, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [("ops.*",)] and refusals == ["NOT_GRANTED"] * 7
    found = west.grants.of("east")
    assert found is not None and found.grant.cluster == east and west.grants.of("north") is None


def test_a_restored_cluster_keeps_its_grant_by_the_terms_that_were_seen_of_it(pair: Pair, receiver: Receiver) -> None:
    narrowed(pair)
    history = ((3, "nonce"),)
    pair.ship(receiver, replace(pair.hello(), term_history=history)).close()
    was, again = pair.east.cluster, ClusterId("east", uuid4())
    pair.east.cluster = again
    for former, proof in (((), history), ((was,), ((3, "another"),))):
        with pytest.raises(PeerRefusedError, match="knows east as"):
            pair.ship(receiver, replace(pair.hello(), former=former, term_history=proof))
    pair.ship(receiver, replace(pair.hello(), former=(was,), term_history=(*history, (9, "new")))).close()
    found = pair.west.ledger.grants.of("east")
    assert found is not None and found.grant.cluster == again


def test_a_cluster_that_says_it_was_another_one_makes_nothing_of_that_one_forgotten(
    pair: Pair, receiver: Receiver
) -> None:
    """East would be asked for what it has sent already, as often as north opens a stream."""
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[2])), Ack)
    pair.west.ledger.grants.put(Grant(NORTH), 1)
    with calling(receiver.port, "west", NORTH, AUTHORITY.issue("north")) as link:
        link.ship(Hello(NORTH, pair.west.cluster, 1, "test", former=(pair.east.cluster,))).close()
    again = pair.ship(receiver, pair.hello(files=(pair.wal.file,)))
    assert again.opened.files[pair.wal.file].status.shipped == Ranges.of((256, pair.ends[2]))


def test_who_asks_is_kept_for_a_person_when_policy_says_so(pair: Pair, receiver: Receiver) -> None:
    pair.west.ledger.rules.delete("east", pair.west.term)
    receiver._reception._rights._accept = "ask"
    with pytest.raises(PeerRefusedError):
        pair.link(receiver).open_route(pair.east.cluster, pair.west.cluster, pair.route())
    (row,) = pair.west.ledger.grants.all()
    assert row.asked and row.grant.cluster == pair.east.cluster
    with pytest.raises(PeerRefusedError):
        pair.ship(receiver)
    receiver._reception._rights._accept = "any-certified"
    pair.ship(receiver).close()
    (row,) = pair.west.ledger.grants.all()
    assert not row.asked and row.grant.by == "certificate"


def unknown_at_west(pair: Pair, receiver: Receiver, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Peering:
    """East's commands; west has not defined east."""
    pair.west.ledger.rules.delete("east", pair.west.term)
    public = Public(pair.west.cluster, __version__, (f"127.0.0.1:{receiver.port}",))
    monkeypatch.setattr("peer.client.contacts.read_public", lambda at, tls: (Quorum.parse(at), public))
    return Peering(pair.east.ledger, pair.east.coordination, Contacts(pair.east.ledger, holder(folder, "east")))


def holder(folder: Path, name: str) -> TlsSection:
    """The files of who has a certificate for a name."""
    kept = folder / f"certificate of {name}"
    kept.mkdir()
    return TlsSection.model_validate(tls_section(kept, AUTHORITY.issue(name)))


def test_definecluster_with_an_invitation_is_granted_what_it_offers(
    pair: Pair, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peering = unknown_at_west(pair, receiver, tmp_path, monkeypatch)
    _, granted = peering.define("west", "zk:2181/walship/west")
    assert not granted
    with pytest.raises(PeerRefusedError, match="grants nothing to east") as caught:
        peering.enable("ops.flights", [], "west", from_now=True, count_rows=lambda _: 0)
    assert "walship invite east" in caught.value.hint and not pair.east.ledger.rules.all()
    offered = Grant(ClusterId("east", NIL_UUID), ("ops.*",), by="invitation")
    pair.west.ledger.grants.invite(Invitation(digest_of("secret"), offered, 1 << 60), 1)
    peer, granted = peering.define("west", "zk:2181/walship/west", Proof("secret"))
    assert granted and peer.cluster == pair.west.cluster
    (rule,) = peering.enable("ops.flights", [], "west", from_now=True, count_rows=lambda _: 0)
    assert rule.remote_table == "ops.flights" and pair.west.ledger.tables.get("ops.flights") == pair.spec


def test_definecluster_with_an_administrators_certificate_is_granted_what_a_route_needs(
    pair: Pair, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peering = unknown_at_west(pair, receiver, tmp_path, monkeypatch)
    admin, stranger = holder(tmp_path, "ops-admin"), holder(tmp_path, "printer")
    receiver._reception._rights._administrators = frozenset({"ops-admin"})
    address = "zk:2181/walship/west"
    with pytest.raises(PeerRefusedError, match="the certificate is for printer, not for east"):
        peering.define("west", address, Proof(administrator=stranger))
    assert not pair.west.ledger.grants.all() and not pair.east.ledger.rules.peers()
    _, granted = peering.define("west", address, Proof(administrator=admin))
    assert granted
    (row,) = pair.west.ledger.grants.all()
    assert row.grant == Grant(pair.east.cluster, by="administrator ops-admin") and not row.asked
    (rule,) = peering.enable("ops.flights", [], "west", from_now=True, count_rows=lambda _: 0)
    assert rule.remote_table == "ops.flights"
    by_admin = replace(peering.contacts, link_tls=admin).link_to("west", (f"127.0.0.1:{receiver.port}",))
    with by_admin as link, pytest.raises(PeerRefusedError, match="the certificate is for ops-admin, not for east"):
        link.get_table("ops.flights")


@pytest.mark.parametrize(
    "decided",
    [{"tables": ()}, {"cluster": ClusterId("east", uuid4()), "tables": ("ops.*",)}],
    ids=["denied", "another incarnation"],
)
def test_an_administrators_certificate_changes_nothing_that_a_person_has_decided_there(
    pair: Pair, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: dict[str, Any]
) -> None:
    peering = unknown_at_west(pair, receiver, tmp_path, monkeypatch)
    receiver._reception._rights._administrators = frozenset({"ops-admin"})
    narrowed(pair, **decided)
    (before,) = pair.west.ledger.grants.all()
    with pytest.raises(PeerRefusedError, match="a person has decided on west what east may do") as caught:
        peering.define("west", "zk:2181/walship/west", Proof(administrator=holder(tmp_path, "ops-admin")))
    assert "walship grants add east --id east" in caught.value.hint
    assert pair.west.ledger.grants.all() == [before]


def test_a_revoked_administrator_grants_nothing(
    pair: Pair, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peering = unknown_at_west(pair, receiver, tmp_path, monkeypatch)
    rights = receiver._reception._rights
    rights._administrators = frozenset({"ops-admin"})
    admin = holder(tmp_path, "ops-admin")
    assert admin.cert is not None
    rights._denied = {fingerprint({"x509_pem_cert": [admin.cert.read_bytes()]})}
    with pytest.raises(PeerRefusedError, match="it is revoked"):
        peering.define("west", "zk:2181/walship/west", Proof(administrator=admin))
    assert not pair.west.ledger.grants.all()


def test_tables_and_grants_are_read_again_only_when_something_was_decided(
    pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ledger, reads = pair.ship(receiver), pair.west.ledger, list[str]()
    monkeypatch.setattr(receiver, "_refresh", lambda: None)  # so that only this test does it
    tables, grants = ledger.tables.all, ledger.grants.of
    monkeypatch.setattr(ledger.tables, "all", lambda: (reads.append("tables"), tables())[1])
    monkeypatch.setattr(ledger.grants, "of", lambda name: (reads.append("grants"), grants(name))[1])
    receiver._reception.refresh()
    reads.clear()
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    reads.clear()
    for _ in range(5):
        receiver._reception.refresh()
    assert reads == []
    ledger.tables.create(table("ops.new"))
    receiver._reception.refresh()
    receiver._reception.refresh()
    assert reads == ["tables", "grants"]
