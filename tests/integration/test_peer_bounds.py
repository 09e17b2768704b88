"""A peer at one of its bounds is refused by type, and the others are served as before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from peer.receive import admission, definitions, divergence, inbound_stream, open_files, space
from peer.receive import receiver as receiver_process
from peer.receive.receiver import Receiver
from peer.repair.quarantine_actions import discard
from replication.core.definition.schema import SchemaVersion
from replication.core.frame import FrameKind
from replication.core.grants import Grant
from replication.core.ids import NIL_UUID, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.errors import PeerRefusedError
from replication.ledger import landing as ledger_landing
from replication.ledger.sql.parts import registration, time
from replication.link import callers
from replication.link.base import Ack, Data, Reason, Refusal
from replication.link.grpc_servicer import Replies
from replication.link.places import Places
from tests.certificates import tls_section
from tests.hostile import of_other_users
from tests.integration.receiving import Pair, answer, refused
from tests.integration.test_hostile_frames import forged, sent
from tests.integration.test_link_tls import AUTHORITY
from tests.waiting import wait_until

Made = Callable[..., tuple[Pair, Pair]]


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """East, which is at a bound, and north, which is not: both have certificates and are defined at west."""
    of_other_users(monkeypatch)
    pairs: list[Pair] = []

    def made(**west: dict[str, object]) -> tuple[Pair, Pair]:
        east = Pair(tmp_path, tls=tls_section(tmp_path, AUTHORITY.issue("west")), **west)
        pairs.append(east)
        north = Pair(tmp_path, "north", of=east)
        pairs.append(north)
        for pair in (east, north):
            pair.tls = AUTHORITY.issue(pair.east.cluster.name)
            pair.west.send_to_cluster(pair.east.cluster)
        return east, north

    yield made
    for pair in reversed(pairs):
        pair.close()


def lands(pair: Pair, receiver: Receiver) -> None:
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[2])), Ack)


def test_the_streams_of_one_peer_leave_places_for_others(both: Made) -> None:
    east, north = both(receiver={"streams_max": 4, "peer_streams_max": 2})
    with east.west.receiver() as receiver:
        first, _ = east.ship(receiver), east.ship(receiver)
        with pytest.raises(PeerRefusedError, match=r"2 streams of east open already.*peer_streams_max") as caught:
            east.ship(receiver)
        assert caught.value.reason == Reason.NOT_READY
        lands(north, receiver)
        first.close()

        def opened() -> bool:
            try:
                east.ship(receiver)
            except PeerRefusedError:
                return False
            return True

        wait_until(opened, what="the place of a stream that has ended")


def test_places_are_counted_by_name_and_in_all() -> None:
    places = Places(total=3, each=2)
    assert [places.take("east") for _ in range(3)] == ["", "", "east"]
    assert [places.take("north"), places.take("north")] == ["", "*"]
    places.release("east")
    assert places.take("north") == "" and places.take("east") == "*"


def test_a_sender_that_takes_no_replies_is_cut_off() -> None:
    ended: list[bool] = []
    replies = Replies(lambda: ended.append(True))
    for _ in range(20_000):
        replies.put(Refusal(Reason.HOLE, "", ""))
    assert ended and replies._waiting.qsize() <= 16_384


def test_the_open_landing_files_of_one_peer_are_few_and_nothing_of_them_is_lost(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "_PEER_FILES_MAX", 3)
    east, north = both()
    with east.west.receiver() as receiver:
        lands(north, receiver)
        session = east.ship(receiver)
        for number in range(90, 100):
            assert isinstance(answer(session, sent(east, forged(east, sequence=2 * number), number)), Ack)
        files = east.west.ledger.files
        is_open = [row.source.cluster.name for row in files.all() if row.source and not row.closed]
        assert sorted(is_open) == ["east"] * 3 + ["north"]
        assert len(files.all()) == 11 and all(row.length > 256 for row in files.all())


def skipped(pair: Pair, number: int, size: int = 44) -> Data:
    """A message of a file of its own that has no frames."""
    return Data(replace(pair.wal.file, number=number), 256, 256 + size, 256, 1, b"")


def test_the_files_that_one_peer_may_name_are_so_many(both: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_landing, "SOURCES_MAX", 3)
    east, north = both()
    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        for number, size in ((90, 44), (91, 0), (92, 44)):
            assert isinstance(answer(session, skipped(east, number, size)), Ack)
        for message in (skipped(east, 93), skipped(east, 94, 0), sent(east, forged(east), 95)):
            refusal = refused(session, message)
            assert refusal.reason is Reason.DISK_FULL and "3 files of east came here" in refusal.what
        assert isinstance(answer(session, replace(skipped(east, 91), term=2)), Ack), "a file that came before"
        assert len(east.west.ledger.files.all()) == 3
        lands(north, receiver)


def test_a_file_comes_in_so_many_pieces_with_gaps_between_them(both: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without frames they would take no space but in the ledger, and ever more time of the one thread that lands."""
    monkeypatch.setattr(inbound_stream, "_PIECES_MAX", 3)
    east, north = both()
    with east.west.receiver() as receiver:
        session = east.ship(receiver)

        def piece(begin: int, end: int) -> Data:
            return Data(east.wal.file, begin, end, begin, 1, b"")

        for begin in (300, 400, 500):
            assert isinstance(answer(session, piece(begin, begin + 10)), Ack)
        assert refused(session, piece(600, 610)).reason is Reason.DISK_FULL
        assert isinstance(answer(session, piece(510, 520)), Ack), "what adjoins makes no more pieces"
        lands(north, receiver)


def test_messages_without_frames_are_refused_for_want_of_space_too(both: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    east, _ = both()
    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        monkeypatch.setattr(receiver._landing.space, "shortage", lambda **_: "only 0 MiB are free")
        assert refused(session, skipped(east, 90)).reason is Reason.DISK_FULL
        monkeypatch.setattr(receiver._landing.space, "shortage", lambda **_: "")
        receiver._landing.space.over_quota = {"east": "space gets scarce"}
        assert refused(session, skipped(east, 91)).reason is Reason.DISK_FULL
        assert not east.west.ledger.files.all()


def test_who_has_most_of_what_waits_for_replay_is_refused_before_the_others(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "_POLL_S", 0)  # at each message
    monkeypatch.setattr(space, "_PAUSE", 0)
    east, north = both(receiver={"landing_bytes_max": 8000})
    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        north.ship(receiver)
        numbers = iter(range(90, 200))

        def over_quota() -> Refusal | None:
            number = next(numbers)
            reply = answer(session, sent(east, forged(east, sequence=2 * number), number))
            return reply if isinstance(reply, Refusal) else None

        refusal = wait_until(over_quota)
        assert refusal.reason is Reason.DISK_FULL and "are of east" in refusal.what
        lands(north, receiver)


def test_closed_notices_that_are_not_reached_list_only_so_many_streams(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (time, admission, registration):
        monkeypatch.setattr(module, "NOTED_STREAMS_MAX", 100)
    monkeypatch.setattr(admission, "_LARGE_STREAMS", 30)
    east, north = both()

    def noted(number: int, count: int) -> bytes:
        wals = [replace(east.wal.file, number=number * 1000 + n) for n in range(count)]
        streams = tuple((StreamId(wal, east.spec.uuid, "default"), 1) for wal in wals)
        control = {"kind": FrameKind.CLOSED, "table": NIL_UUID, "group": "", "row_count": 0, "sequence": 2 * number}
        return forged(east, ClosedNotice(number, streams).encode(), **control)

    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        assert isinstance(answer(session, sent(east, noted(90, 60), 90)), Ack)
        refusal = refused(session, sent(east, noted(91, 60), 91))
        assert refusal.reason is Reason.NOT_READY and "more than 100 streams" in refusal.what
        assert "walship status" in refusal.remedy
        refusal = refused(session, sent(east, noted(92, 31) + noted(93, 1), 92))
        assert refusal.reason is Reason.TOO_LARGE
        assert isinstance(answer(session, sent(east, noted(92, 31), 92)), Ack)
        assert east.west.ledger.time.announced(east.east.cluster).t == 92
        lands(north, receiver)


def test_one_peer_does_not_teach_a_table_any_number_of_schema_versions(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "SCHEMAS_MAX", 3)
    east, north = both()
    version = next(iter(east.spec.versions.values()))
    fields = list(version.arrow)
    taught: list[SchemaVersion] = []
    for order in (fields, fields[::-1], fields[:1], fields[1:]):
        taught.append(SchemaVersion.of(version.table, version.group, pa.schema(order, version.arrow.metadata)))
    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        session.send(tuple(taught))
        refusal = session.receive(20)
        assert isinstance(refusal, Refusal) and "3 schema versions" in refusal.what
        assert len(east.west.ledger.tables.schemas(version.table)) == 3
        assert isinstance(answer(session, east.data(256, east.ends[0])), Ack)
        lands(north, receiver)


def test_a_stream_of_nothing_but_refused_messages_is_slowed_down_alone(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbound_stream, "_FAULTS_MAX", 2)
    usual = receiver_process._limits
    monkeypatch.setattr(receiver_process, "_limits", lambda config: replace(usual(config), fault_s=3600.0))
    east, north = both()
    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        bad: list[Data] = [sent(east, b"no frame at all" * 9, number) for number in range(90, 93)]
        assert refused(session, bad[0]).reason is Reason.CORRUPT
        assert isinstance(answer(session, east.data(256, east.ends[0])), Ack), "a message that lands counts anew"
        for message in bad:
            assert refused(session, message).reason is Reason.CORRUPT
        session.send(east.data(east.ends[0], east.ends[1]))
        assert session.receive(0.3) is None
        lands(north, receiver)
        assert isinstance(answer(east.ship(receiver), replace(east.data(east.ends[0], east.ends[1]), term=2)), Ack)
        again = east.ship(receiver)
        for message in bad:
            again.send(message)
        assert isinstance(again.receive(20), Refusal) and again.receive(0.3) is None, "another stream begins no better"


def test_comparisons_of_one_peer_leave_room_for_others(both: Made) -> None:
    east, north = both()
    with east.west.receiver() as receiver:
        begin = receiver._conversations.begin
        opened = [begin(Grant(east.east.cluster)) for _ in range(2)]
        with pytest.raises(PeerRefusedError, match="2 of them of east"):
            begin(Grant(east.east.cluster))
        opened.append(begin(Grant(north.east.cluster)))
        for each in opened:
            each.close()


def test_a_caller_whose_streams_are_refused_is_answered_one_at_a_time_and_others_at_once(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: it gets its second answer once the others have had all theirs."""
    east, north = both()
    east.west.ledger.grants.put(Grant(east.east.cluster, ()), 1)  # nothing
    waits, go = threading.Semaphore(0), threading.Event()

    def sleep(_: float) -> None:
        waits.release()
        go.wait(120)

    monkeypatch.setattr(callers, "time", SimpleNamespace(sleep=sleep))
    ended: list[str] = []

    def refused_opening() -> None:
        with pytest.raises(PeerRefusedError, match="grants nothing to east"):
            east.ship(receiver)
        ended.append("east")

    with east.west.receiver() as receiver:
        threads = [threading.Thread(target=refused_opening) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert waits.acquire(timeout=120) and not waits.acquire(timeout=0.3), "one of them at a time"
        for _ in range(3):
            north.ship(receiver).close()
        lands(north, receiver)
        assert not ended
        go.set()
        for thread in threads:
            thread.join()
        assert len(ended) == 6


def test_a_sender_of_second_histories_fills_no_quarantine_and_goes_on_once_a_person_has_looked(
    both: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergence, "_KEPT_MAX", 3)
    east, north = both()
    with east.west.receiver() as receiver:
        session = east.ship(receiver)
        assert isinstance(answer(session, east.data(256, east.ends[2])), Ack)
        reasons = []
        for number in range(90, 97):
            forgery = forged(east, sequence=3)  # its hash of the frame before is that of the first
            reply = refused(session, sent(east, forgery, number))
            reasons.append(reply.reason)
        assert reasons == [Reason.DIVERGENCE] * 3 + [Reason.DISK_FULL] * 4
        ledger = east.west.ledger
        assert len(ledger.replay.quarantined()) == 3
        lands(north, receiver)
        for record in ledger.replay.quarantined():
            discard(ledger, record)

        def lands_again() -> bool:
            return isinstance(answer(session, sent(east, forged(east, sequence=400), 99)), Ack)

        wait_until(lands_again, what="the sender to be taken again")
