"""Frames that no honest cluster sends: each is refused, ends nothing else, and shows in status."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pyarrow as pa
import pytest

from peer.receive.landing_file import LandingFile
from peer.receive.receiver import Receiver
from peer.status.collect import collect
from peer.status.members import Members
from replication.core.definition.schema import SchemaVersion
from replication.core.frame import (
    HOPS_MAX,
    Codec,
    FrameKind,
    SealedHeader,
    encode_envelope,
    encode_sealed_header,
    read_frame,
)
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.core.routes.freshness import ClosedNotice
from replication.core.rows.batch import encode_payload
from replication.ledger.base import Landed
from replication.ledger.sql.parts.landing import SqlLandingRecords
from replication.ledger.sql.parts.registration import SqlRegistration
from replication.link import callers, channel
from replication.link.base import Ack, Data, Reason, Refusal, Reply, ShipSession
from shell.cli.render import Printer
from shell.status.page import show_status
from tests.fakes.tables import MemoryTables
from tests.hostile import memory_below
from tests.integration.conftest import Warehouse
from tests.integration.receiving import Pair, answer, gather, refused
from tests.integration.replay_site import Site, settle
from tests.waiting import wait_until


def forged(pair: Pair, payload: bytes = b"", hops: Sequence[ClusterId] = (), **header: Any) -> bytes:
    """The first frame of east's WAL with another payload, provenance or header; all its checksums are right."""
    first = read_frame(pair.content, 256)
    assert first is not None
    payload = payload or pair.content[first.payload_begin : first.end]
    changed: SealedHeader = replace(
        first.header, payload_sha256=sha256(payload).digest(), payload_bytes=len(payload), **header
    )
    sealed = encode_sealed_header(changed)
    return encode_envelope(hops or (pair.east.cluster,), len(sealed) + len(payload)) + sealed + payload


def sent(pair: Pair, frames: bytes, number: int = 90) -> Data:
    """As a file of its own."""
    return Data(replace(pair.wal.file, number=number), 256, 256 + len(frames), 256, 1, frames)


def replies(session: ShipSession, count: int) -> list[Reply]:
    found = [session.receive(20) for _ in range(count)]
    assert all(found)
    return [reply for reply in found if reply is not None]


def good(pair: Pair, receiver: Receiver) -> None:
    """The receiver serves on: another stream's frames land, and the ledger is usable."""
    (known,) = {stream.wal for stream in pair.west.ledger.landing.coverage()} or {pair.wal.file}
    assert known == pair.wal.file
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[2])), Ack)
    receiver._landing.check()
    assert pair.west.ledger.time.seen() > 0


def shown(pair: Pair, capfd: pytest.CaptureFixture[str]) -> str:
    """The notes of status."""
    capfd.readouterr()
    show_status(Printer(as_json=False), collect(pair.west.config, pair.west.ledger, Members()))
    return capfd.readouterr().err


def test_a_frame_without_room_for_another_hop_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather(monkeypatch)
    pair = Pair(tmp_path)
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        hops = [ClusterId(f"c{n}", uuid4()) for n in range(HOPS_MAX)]
        session.send(sent(pair, forged(pair, hops=hops)))
        session.send(pair.data(256, pair.ends[0]))
        session.send(sent(pair, forged(pair, hops=hops[1:], sequence=7), 91))
        refusal, *landed = sorted(replies(session, 3), key=lambda reply: isinstance(reply, Ack))
        assert isinstance(refusal, Refusal) and refusal.reason is Reason.LOOP and "64 clusters" in refusal.what
        assert len(landed) == 2, "a frame with 63 hops lands"
    pair.close()


def test_a_refused_message_writes_no_term(pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[FileId] = []
    accept = pair.west.ledger.landing.accept_term

    def counted(_: SqlLandingRecords, file: FileId, term: int) -> bool:
        written.append(file)
        return accept(file, term)

    monkeypatch.setattr(SqlLandingRecords, "accept_term", counted)
    session, whole = pair.ship(receiver), pair.data(256, pair.ends[0])
    broken = replace(whole, frames=whole.frames[:-1] + b"?")
    for number in range(50, 60):
        file = replace(pair.wal.file, number=number)
        assert refused(session, replace(broken, file=file)).reason is Reason.CORRUPT
    assert not written
    assert isinstance(answer(session, whole), Ack)
    assert written == [whole.file], "one that may land"


def test_frames_of_no_bytes_of_their_file_are_refused_and_not_acked(pair: Pair, receiver: Receiver) -> None:
    whole = pair.data(256, pair.ends[0])
    refusal = refused(pair.ship(receiver), replace(whole, end=whole.begin))
    assert refusal.reason is Reason.CORRUPT and "cannot hold" in refusal.what


def test_frames_of_a_bootstrap_beside_others_end_no_receiver(
    pair: Pair, receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    session = pair.ship(receiver)
    bootstrap = forged(pair, kind=FrameKind.BOOTSTRAP, sequence=50)
    first = pair.content[256 : pair.ends[0]]
    assert refused(session, sent(pair, first + bootstrap)).reason is Reason.CORRUPT
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    end = pair.ends[0] + len(bootstrap)
    refusal = refused(session, replace(pair.data(pair.ends[0], end), frames=bootstrap))
    assert refusal.reason is Reason.CORRUPT and "bootstrap beside others" in refusal.what
    good(pair, receiver)
    wait_until(lambda: "refused 2 messages of east (CORRUPT)" in shown(pair, capfd))


@pytest.mark.parametrize("part", ["write", "register"])
def test_an_error_that_no_check_foresaw_refuses_the_item_and_lands_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], part: str
) -> None:
    """As numbers past int64 once did in the ledger's transaction. Every item of the group has its own answer."""

    def is_bad(landed: Landed) -> bool:
        return landed.source.number == 90

    write, register = LandingFile.write, SqlRegistration.register

    def writing(self: LandingFile, *given: Any) -> Landed:
        landed = write(self, *given)
        if is_bad(landed):
            raise ZeroDivisionError("nobody foresaw this")
        return landed

    def registering(self: SqlRegistration, landed: Sequence[Landed]) -> Any:
        if any(map(is_bad, landed)):
            raise OverflowError("nobody foresaw this")
        return register(self, landed)

    if part == "write":
        monkeypatch.setattr(LandingFile, "write", writing)
    else:
        monkeypatch.setattr(SqlRegistration, "register", registering)
    gather(monkeypatch)
    pair = Pair(tmp_path)
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        for _ in range(2):  # the sender sends it again
            session.send(pair.data(256, pair.ends[0]))
            session.send(sent(pair, forged(pair)))
            session.send(pair.data(pair.ends[0], pair.ends[1]))
            found = replies(session, 3)
            assert sum(isinstance(reply, Ack) for reply in found) == 2, found
            (refusal,) = (reply for reply in found if isinstance(reply, Refusal))
            assert refusal.file == replace(pair.wal.file, number=90) and refusal.reason is Reason.NOT_READY
        good(pair, receiver)
        wait_until(lambda: "refused 2 messages of east (NOT_READY)" in shown(pair, capfd))
        assert "Error while it landed" in shown(pair, capfd)
        files = pair.west.ledger.files
        wait_until(lambda: all(row.closed for row in files.all() if row.source and row.source.number == 90))
    assert set(pair.landed) == set(pair.sealed)
    pair.close()


def test_the_count_of_refused_messages_outlives_the_receiver(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    for said in ("refused 1 message of east", "refused 2 messages of east"):
        with pair.west.receiver() as receiver:
            refused(pair.ship(receiver), sent(pair, b"no frame at all" * 9))
            wait_until(partial(lambda said: said in shown(pair, capfd), said))


def test_a_closed_notice_that_unpacks_to_more_than_it_may_is_corrupt(pair: Pair, receiver: Receiver) -> None:
    bomb = b"\x02" + zlib.compress(struct.pack("<qIII", 1, 0, 0, 1 << 26) + bytes(100 << 20))
    closed = {"kind": FrameKind.CLOSED, "table": NIL_UUID, "group": "", "codec": Codec.NONE}
    session = pair.ship(receiver)
    message = sent(pair, forged(pair, bomb, **closed))
    with memory_below(32):
        assert refused(session, message).reason is Reason.CORRUPT
    good(pair, receiver)


def test_a_frame_that_unpacks_to_more_than_it_may_is_quarantined_and_others_are_applied(  # hostile row 50
    tmp_path: Path,
) -> None:
    tables = MemoryTables()
    site = Site(tmp_path, Warehouse(tables, tables.rollback, "ops"))
    site.put(("a", 1))
    version = site.spec.versions[site.spec.groups[0].name]
    keys = pa.array(["0" * (20 << 20)] * 2)
    batch = pa.RecordBatch.from_arrays(
        [keys if f.name == "k" else pa.array([0, 0], f.type) for f in version.arrow], schema=version.arrow
    )
    payload = encode_payload(batch, Codec.ZSTD).to_pybytes()
    site.wal.frame(site.spec.uuid, version.group, version.hash, payload, 2)
    site.put(("b", 2))
    del batch, keys
    with memory_below(32):
        settle(site.replayer())
    (kept,) = site.ledger.replay.quarantined()
    assert "unpacks to 2 rows" in kept.reason and "at most" in kept.reason
    assert site.rows() == {"a": 1, "b": 2} and site.applied()
    site.ledger.close()


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("k", ["x", None], "key column 'k' is NULL in 1 of 2 rows"),
        ("k", None, "key column 'k' is NULL in 2 of 2 rows"),
        ("_op", [0, 3], "_op is not one of"),
        ("_op", [-1, 0], "_op is not one of"),
        ("_op", [0, None], "_op is not one of"),
        ("_op", None, "_op is not one of"),
    ],
)
def test_rows_that_no_fold_could_apply_are_quarantined_and_others_are_applied(
    tmp_path: Path, column: str, values: list[Any] | None, why: str
) -> None:
    tables = MemoryTables()
    site = Site(tmp_path, Warehouse(tables, tables.rollback, "ops"))
    site.put(("a", 1))
    spec, group = site.spec, site.spec.groups[0].name
    given = {"_op": [0, 0], "k": ["x", "y"], "v": [8, 9], column: values}
    fields = [field for field in spec.versions[group].arrow if given[field.name] is not None]
    version = SchemaVersion.of(spec.uuid, group, pa.schema(fields))
    site.ledger.tables.put_schema(version)
    arrays = [pa.array(given[field.name], field.type) for field in fields]
    payload = encode_payload(pa.RecordBatch.from_arrays(arrays, schema=version.arrow), Codec.LZ4).to_pybytes()
    site.wal.frame(spec.uuid, group, version.hash, payload, 2)
    site.put(("b", 2))
    settle(site.replayer())
    (kept,) = site.ledger.replay.quarantined()
    assert why in kept.reason
    assert site.rows() == {"a": 1, "b": 2} and site.applied()
    site.ledger.close()


DAY_US = 86_400_000_000


@pytest.mark.parametrize("kind", ["data", "closed", "notice"])
def test_a_commit_time_too_far_ahead_of_the_clock_here_is_refused_and_poisons_nothing(
    pair: Pair, receiver: Receiver, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = pair.ship(receiver)
    now = time.time_ns() // 1000
    closed: Any = {"kind": FrameKind.CLOSED, "table": NIL_UUID, "group": "", "codec": Codec.NONE, "sequence": 8}
    for ahead in (2 * DAY_US, 1 << 60):
        late = {"commit_lo": now, "commit_hi": now + ahead}
        if kind == "data":
            frame = forged(pair, sequence=8, **late)
        elif kind == "closed":
            frame = forged(pair, ClosedNotice(now, ()).encode(), **closed, **late)
        else:
            frame = forged(pair, ClosedNotice(now + ahead, ()).encode(), **closed)
        refusal = refused(session, sent(pair, frame))
        assert refusal.reason is Reason.CLOCK_AHEAD and "commit_ahead_max_s on west" in refusal.remedy
        assert refusal.table == (pair.spec.uuid if kind == "data" else None)
    good(pair, receiver)
    assert pair.west.ledger.time.seen() < now + DAY_US and pair.west.ledger.time.ahead() == []
    wait_until(lambda: "refused 2 messages of east (CLOCK_AHEAD)" in shown(pair, capfd))


def test_closed_times_of_ids_that_a_peer_makes_up_do_not_count(pair: Pair, receiver: Receiver) -> None:
    """Tombstones of all tables waited for each of them, for ever."""
    session, now = pair.ship(receiver), time.time_ns() // 1000
    closed: Any = {"kind": FrameKind.CLOSED, "table": NIL_UUID, "group": "", "codec": Codec.NONE, "sequence": 0}
    made_up = replace(pair.wal.file, cluster=ClusterId("east", uuid4()))
    for number, wal in enumerate((pair.wal.file, made_up), 90):
        frame = forged(pair, ClosedNotice(now, ()).encode(), wal=wal, **closed)
        assert isinstance(answer(session, sent(pair, frame, number)), Ack)
    known = pair.west.ledger.time.replicated(pair.spec.uuid, every_origin=True)
    assert pair.east.cluster in known and made_up.cluster not in known


def test_commit_times_that_descend_in_a_frame_are_corrupt(pair: Pair, receiver: Receiver) -> None:
    now = time.time_ns() // 1000
    frame = forged(pair, commit_lo=now, commit_hi=now - 1)
    assert refused(pair.ship(receiver), sent(pair, frame)).reason is Reason.CORRUPT


@pytest.mark.parametrize("field", ["begin", "end", "chunk_begin", "term", "closed_length"])
def test_numbers_that_no_ledger_holds_end_the_stream_by_type_each_time(
    pair: Pair, receiver: Receiver, field: str
) -> None:
    for number in (1 << 62, (1 << 64) - 1):
        session = pair.ship(receiver)
        changed: Any = {field: number}
        session.send(replace(pair.data(256, pair.ends[0]), **changed))
        reply = session.receive(20)
        assert isinstance(reply, Refusal) and reply.reason is Reason.CORRUPT
    good(pair, receiver)
    assert set(pair.landed) == set(pair.sealed)


def test_streams_that_say_nothing_are_ended_and_leave_their_places(  # hostile row 53
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "FIRST_S", 0.5)
    pair = Pair(tmp_path, receiver={"streams_max": 2})
    with pair.west.receiver() as receiver, grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as made:
        quiet = threading.Event()
        who = ((channel.CALLER_KEY, str(pair.east.cluster)),)
        for method in (channel.SHIP, channel.COMPARE):
            silent = [made.stream_stream(method)(iter(quiet.wait, True), None, who) for _ in range(2)]
            for call in silent:
                with pytest.raises(grpc.RpcError):
                    next(call)
                assert call.code() is grpc.StatusCode.CANCELLED
        assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[0])), Ack)
        quiet.set()
    pair.close()


def test_many_small_landing_files_reserve_little(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    for number in range(90, 100):
        assert isinstance(answer(session, sent(pair, forged(pair, sequence=2 * number), number)), Ack)
    sizes = [Path(row.path).stat().st_blocks * 512 for row in pair.west.ledger.files.all()]
    assert len(sizes) == 10 and sum(sizes) < 10 * (256 << 10)
