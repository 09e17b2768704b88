"""Defining peers, enabling tables, and adopting a table of another cluster."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from rich.console import Console

from peer.client.contacts import NO_PROOF, Contacts, Proof, known_peer, possible_quorums
from peer.client.enabling import unsent
from peer.client.peering import Peering
from peer.failover.switchover import PreparePeer
from replication import __version__
from replication.commit.step import step_to_json
from replication.core.definition.alter import add_column
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, StreamId
from replication.core.routes.carried import InboundRoute
from replication.errors import (
    PeerExistsError,
    PeerRefusedError,
    PeerUnavailableError,
    RequestError,
    UnfinishedSequenceError,
)
from replication.ledger.base import Peer, Quarantined, ReplayCheckpoint
from replication.ledger.commit_steps import NewSequence, SequenceId
from replication.link.base import PROTOCOL
from replication.wall_clock import now_us
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.peers import definecluster, deletecluster
from tests.contract.ledger_stores import NORTH, WEST
from tests.sites import Site, rows, table
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy

UNUSABLE = [
    "flights-w",
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
def test_a_name_that_no_table_can_have_is_refused_for_the_peer(east: Site, name: str) -> None:
    peering = Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    before = east.ledger.rules.all()
    with pytest.raises(RequestError, match="ops.new cannot go to west under that name") as caught:
        peering.enable("ops.new", [], "west", name, count_rows=lambda _: 0)
    assert "--remote-table" in caught.value.hint and east.ledger.rules.all() == before


def test_a_table_that_the_peer_has_is_not_said_to_have_another_name_there(
    east: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = east.ledger.tables.get("ops.new")
    peering = Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    answering = SimpleNamespace(get_table=lambda name: spec, open_route=lambda *_: None)
    monkeypatch.setattr(Contacts, "link", lambda self, peer: nullcontext(answering))
    with pytest.raises(RequestError, match=r"west has this table already, as ops\.new") as caught:
        peering.enable("ops.new", [], "west", "ops.other", count_rows=lambda _: 0)
    assert caught.value.hint == "Leave out --remote-table"
    answering.get_table = lambda name: replace(spec, uuid=uuid4())
    (rule,) = peering.enable("ops.new", [], "west", "ops.other", count_rows=lambda _: 0)
    assert rule.remote_table == "ops.other"


def test_enabling_a_table_that_the_peer_dropped_tells_why_it_is_held_and_names_no_bootstrap(east: Site) -> None:
    """A bootstrap is refused: the peer does not make the table again."""
    dropped = "table ops.sent was dropped on west. A dropped table is not created again"
    east.ledger.sending.set_held("west", "h0", {east.ledger.tables.get("ops.sent").uuid: dropped}, 1)
    peering = Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    with pytest.raises(RequestError, match=r"ops\.sent goes to west already") as caught:
        peering.enable("ops.sent", [], "west", bootstrap_bytes=0, count_rows=lambda _: 0)
    assert caught.value.hint == f"It is held: {dropped}"


@pytest.mark.parametrize(
    ("shown", "replayed", "said"),
    [
        (0, False, "ops.new holds rows in up to 1 frame not replayed yet, which will not be sent"),
        (7, False, "ops.new holds 7 rows already, and more in up to 1 frame not replayed yet, which"),
        (7, True, "ops.new holds 7 rows already, which will not be sent"),
        (None, True, "ops.new holds rows in 1 frame already, which will not be sent"),
    ],
)
def test_rows_that_would_not_be_sent_are_named_before_they_are_replayed(
    east: Site, shown: int | None, replayed: bool, said: str
) -> None:
    spec, wal = east.ledger.tables.get("ops.new"), east.wal()
    end = wal.append(spec, rows(0, 10))
    with east.worker():
        wait_until(lambda: east.ledger.landing.coverage(spec.uuid))
    if replayed:
        east.ledger.replay.checkpoint_applied(ReplayCheckpoint(spec.uuid, 1, 1, 1, {wal.file: end}))
    peering = Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    with pytest.raises(RequestError, match=said) as caught:
        peering.enable("ops.new", [], "west", count_rows=lambda _: shown)
    assert "--from-now" in caught.value.hint
    assert "ops.new" not in peering.sent_to("west")


@pytest.mark.parametrize("kept_out", ["quarantined", "discarded", "lost"])
def test_frames_that_were_given_up_are_not_said_to_wait_for_replay(east: Site, kept_out: str) -> None:
    spec, wal = east.ledger.tables.get("ops.new"), east.wal()
    end = wal.append(spec, rows(0, 10))
    with east.worker():
        wait_until(lambda: east.ledger.landing.coverage(spec.uuid))
    succession = "one" if kept_out == "lost" else ""
    begin = FILE_HEADER_BYTES
    frame = Quarantined(wal.file, begin, end, spec.uuid, "", "", 1, succession=succession)
    east.ledger.replay.quarantine(frame, (StreamId(wal.file, spec.uuid, "default"), 0))
    east.ledger.replay.checkpoint_applied(ReplayCheckpoint(spec.uuid, 1, 1, 1, {wal.file: end}))
    if kept_out == "discarded":
        east.ledger.replay.discard(wal.file, begin, 9)
    said = unsent(east.ledger, spec, lambda _: 7)
    more = ", and more in up to 1 frame not replayed yet"
    assert said == "7 rows already" + (more if kept_out == "quarantined" else "")


def test_an_adopted_table_has_the_name_that_was_asked_for(east: Site) -> None:
    _Answering.answer = replace(table("ops.other"), name="../ops.other")
    peering = Peering(east.ledger, east.coordination, _Answering(east.ledger, east.config.tls))
    assert peering.adopt("ops.other", "west").name == "ops.other"
    with pytest.raises(RequestError, match="is reserved for walship's own tables"):
        peering.adopt("ops.other__changes", "west")


def test_a_table_that_was_changed_far_ahead_of_the_clock_here_is_not_adopted(east: Site) -> None:
    """Later changes of it would get times above, which no other cluster takes."""
    spec = table("ops.other")
    ahead = add_column(spec, "seats", pa.int32(), "", uuid4(), now_us() + 2 * 86_400_000_000)
    _Answering.answer = ahead
    peering = Peering(east.ledger, east.coordination, _Answering(east.ledger, east.config.tls))
    with pytest.raises(RequestError, match="further ahead of the clock here"):
        peering.adopt("ops.other", "west")
    assert east.ledger.tables.by_uuid(spec.uuid) is None
    assert replace(peering, commit_ahead_max_s=3 * 86400.0).adopt("ops.other", "west") == ahead


class _Told(Contacts):
    """A peer that answers while it is up, and hears which routes are closed."""

    up = False
    closed: list[str] = []

    @contextmanager
    def link(self, peer: Peer) -> Iterator[Any]:
        if not type(self).up:
            raise PeerUnavailableError(f"{peer.name} is down")
        yield SimpleNamespace(
            open_route=lambda source, to, *routes: type(self).closed.extend(r.spec.name for r in routes)
        )


def test_a_peer_that_did_not_answer_is_informed_by_the_next_call(east: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Told, "up", False)
    monkeypatch.setattr(_Told, "closed", [])
    peering = Peering(east.ledger, east.coordination, _Told(east.ledger, east.config.tls))
    to_west = known_peer(east.ledger, "west")
    ((_, failed),) = peering.disable_all(["ops.sent"], ["nope"], "west")
    assert isinstance(failed, RequestError)
    assert re.search(r"no group nope of ops\.sent goes to west.*Those that do: default", str(failed))
    assert dict(peering.disable_all(["ops.sent"], [], "west")) == {"ops.sent": ["default"]}
    assert not peering.close_ended("west")
    assert peering.delete("west") == (to_west, False)
    east.ledger.rules.define(to_west, east.term)
    monkeypatch.setattr(_Told, "up", True)
    assert peering.delete("west") == (to_west, True) and _Told.closed == ["ops.sent"]


def test_a_peer_that_an_unfinished_switchover_needs_is_not_deleted(east: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Told, "up", True)
    steps, switchover = east.ledger.steps, SequenceId("east", "role")
    steps.put_all([NewSequence(switchover, (step_to_json(PreparePeer("west")),))])
    peering = Peering(east.ledger, east.coordination, _Told(east.ledger, east.config.tls))
    with pytest.raises(UnfinishedSequenceError, match="role with west is unfinished.*walship ops show role"):
        peering.delete("west")
    assert [peer.name for peer in east.ledger.rules.peers()] == ["west"]
    steps.remove("east", "role")
    steps.put_all([NewSequence(switchover, (step_to_json(PreparePeer("north")),))])
    peering.delete("west")


def test_disabling_by_name_means_the_dropped_table_of_the_name_too(east: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Told, "up", False)
    old, new = (replace(table("ops.again"), uuid=UUID(int=n)) for n in (1, 2))
    for spec in (old, new):
        east.ledger.tables.create(spec)
        east.ledger.rules.enable("west", spec.uuid, ["default"], spec.name, east.term)
        if spec is old:
            east.ledger.tables.drop(old.uuid)
    peering = Peering(east.ledger, east.coordination, _Told(east.ledger, east.config.tls))

    def left() -> set[UUID]:
        return {rule.table for rule in east.ledger.rules.all()} & {old.uuid, new.uuid}

    assert left() == {old.uuid, new.uuid}
    assert dict(peering.disable_all(["ops.again"], [], "west")) == {"ops.again": ["default"]}
    assert left() == set()


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"version": "9.1.0"}, PeerRefusedError, "west runs walship 9.1.0, which cannot be used with"),
        ({"protocol": PROTOCOL + 1}, PeerRefusedError, "Upgrade the older one first"),
        ({"cluster": NORTH}, RequestError, f"is of {WEST}, but the receiver is of {NORTH}"),
    ],
)
def test_a_peer_of_another_version_or_root_is_not_defined(
    east: Site, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    described = SimpleNamespace(**{"cluster": WEST, "version": __version__, "protocol": PROTOCOL} | wrong)

    class Reaching(Contacts):
        @contextmanager
        def link_to(self, name: str, addresses: Sequence[str], cluster: ClusterId | None = None) -> Iterator[Any]:
            yield SimpleNamespace(describe=lambda invitation: described)

    public = SimpleNamespace(cluster=WEST, receivers=("127.0.0.1:1",))
    monkeypatch.setattr("peer.client.contacts.read_public", lambda zookeepers, tls: (zookeepers, public))
    with pytest.raises(error, match=re.escape(said)):
        Reaching(east.ledger, east.config.tls).reach("west", "zk:2181/walship/west")


def test_a_receiver_that_refuses_leaves_no_connection_open(east: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Refusing:
        def describe(self) -> Any:
            raise PeerRefusedError("west does not know this certificate", reason="CALLER")

        def close(self) -> None:
            closed.append("west")

    monkeypatch.setattr("replication.link.grpc_client.connect", lambda *_, **__: Refusing())
    contacts = Contacts(east.ledger, east.config.tls)
    with pytest.raises(PeerRefusedError), contacts.link_to("west", ["127.0.0.1:1"]):
        pass
    assert closed == ["west"]


def test_a_receiver_at_whose_address_another_cluster_is_by_now_is_not_asked_for_a_peer(
    east: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"a:1": NORTH, "b:1": WEST}
    public = SimpleNamespace(cluster=WEST, receivers=tuple(at))
    monkeypatch.setattr("peer.client.contacts.read_public", lambda zookeepers, tls: (zookeepers, public))
    monkeypatch.setattr(
        "replication.link.grpc_client.connect",
        lambda address, *_, **__: SimpleNamespace(
            describe=lambda: SimpleNamespace(cluster=at[address]), close=lambda: None
        ),
    )
    contacts, west = Contacts(east.ledger, east.config.tls), Peer("west", "zk:2181/walship/west", WEST)
    with contacts.link(west) as link:
        assert link.describe().cluster == WEST
    at["b:1"] = NORTH
    with pytest.raises(PeerUnavailableError, match=f"the receiver at b:1 is of {NORTH}"), contacts.link(west):
        pass


class _There(Contacts):
    """One cluster at one place, which short forms of its address mean, too."""

    cluster = WEST

    def reach(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> Any:
        (quorum,) = [found for found in possible_quorums(zookeepers) if found.root.startswith("/walship/")]
        described = SimpleNamespace(granted=("*",))
        return SimpleNamespace(quorum=quorum, public=SimpleNamespace(cluster=type(self).cluster), described=described)


class _Shell:
    """East's commands about peers, and what they print."""

    def __init__(self, east: Site) -> None:
        self.peering = Peering(east.ledger, east.coordination, _There(east.ledger, east.config.tls))
        self.config = east.config
        self.out = io.StringIO()

    def run(self, verb: Callable[..., None], *arguments: str) -> str:
        console = Console(file=self.out, width=500)

        @contextmanager
        def connect() -> Iterator[Any]:
            yield (
                SimpleNamespace(peering=self.peering, ledger=self.peering.ledger, config=self.config, name="east"),
                Printer(False, console),
            )

        self.out.truncate(self.out.seek(0))
        verb(cast(Invocation, SimpleNamespace(connect=connect)), *arguments)
        return self.out.getvalue()


SPELLED = ["zk:2181/walship/west", "zk:2181/west", "zk:2181", "zk:2181/walship/west/"]


@pytest.fixture
def shell(east: Site) -> _Shell:
    east.ledger.rules.delete("west", east.term)
    shell = _Shell(east)
    assert "west is a peer" in shell.run(definecluster, "west", "zk:2181/west")
    return shell


@pytest.mark.parametrize("spelled", SPELLED)
def test_defining_a_peer_again_changes_nothing(east: Site, shell: _Shell, spelled: str) -> None:
    before = east.ledger.rules.peers()
    assert "defined already" in (said := shell.run(definecluster, "west", spelled)) and "nothing to do" in said
    assert east.ledger.rules.peers() == before
    assert "west is a peer" in shell.run(definecluster, "west", "zk2:2181/walship/west"), "where it moved to"
    assert [peer.zookeepers for peer in east.ledger.rules.peers()] == ["zk2:2181/walship/west"]


def test_a_second_definition_forgets_the_former_incarnation_when_the_first_was_killed(
    east: Site, shell: _Shell
) -> None:
    spec, former = east.ledger.tables.get("ops.sent"), ClusterId("west", uuid4())
    east.ledger.landing.declare_routes([InboundRoute(former, spec.uuid, "default", 1)])
    assert former in east.ledger.time.replicated(spec.uuid)
    shell.run(definecluster, "west", "zk:2181/west")
    assert former not in east.ledger.time.replicated(spec.uuid)
    assert former not in {route.source for route in east.ledger.landing.routes()}


def test_a_peer_that_is_another_cluster_now_must_be_deleted_first(
    shell: _Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_There, "cluster", ClusterId("west", uuid4()))
    with pytest.raises(PeerExistsError, match="walship deletecluster west"):
        shell.run(definecluster, "west", "zk:2181/west")


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_peer_is_deleted_by_any_form_of_its_address_and_by_no_other(east: Site, shell: _Shell, spelled: str) -> None:
    for other in ("zk2:2181/west", "zk:2181/walship/north", "zk:2181/x/west"):
        with pytest.raises(RequestError, match="peer west is at zk:2181/walship/west, not at"):
            shell.run(deletecluster, "west", other)
    assert "nothing more is sent to it" in shell.run(deletecluster, "west", spelled)
    assert east.ledger.rules.peers() == []
