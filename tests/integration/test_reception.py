"""What a receiver takes and refuses, over real sockets, with a SQLite ledger and real files."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from peer.receive.receiver import Receiver
from peer.replay_report import ReplayReport
from peer.status.collect import collect
from peer.status.members import Host, Members
from replication.core.coverage import Ranges
from replication.core.frame import read_frame
from replication.core.ids import StreamId
from replication.core.routes.freshness import Until
from replication.core.status import reported
from replication.errors import LockedFileError, NoSpaceError, PeerRefusedError
from replication.files.base import AppendFile
from replication.files.local import LocalFiles
from replication.link.base import Ack, Data, FileStatus, Reason, Refusal
from shell.cli.render import Printer
from shell.status.page import show_status
from tests.integration.receiving import Pair, answer, gather, refused
from tests.sites import rows, table
from tests.waiting import wait_until


def test_frames_land_as_they_were_with_the_peer_in_their_provenance(pair: Pair, receiver: Receiver) -> None:  # 004-17
    session = pair.ship(receiver)
    begin = 256
    for end in pair.ends:
        assert answer(session, pair.data(begin, end)) == Ack(pair.wal.file, ((begin, end),))
        begin = end
    assert pair.landed == pair.sealed
    (row,) = pair.west.ledger.files.all()
    frame = read_frame(Path(row.path).read_bytes(), 256)
    assert frame is not None and frame.provenance == (pair.east.cluster, pair.west.cluster)
    assert row.source == pair.wal.file and row.file.cluster == pair.west.cluster
    assert pair.west.ledger.tables.get("ops.flights") == pair.spec


def test_an_ack_means_registered(pair: Pair, receiver: Receiver) -> None:
    answer(pair.ship(receiver), pair.data(256, pair.ends[1]))
    assert pair.west.ledger.landing.received(pair.wal.file).spans == ((256, pair.ends[1]),)
    (coverage,) = pair.west.ledger.landing.coverage().values()
    assert coverage.spans == ((0, 2),)


def test_a_repeated_message_is_acked_without_effect(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    for _ in range(3):
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    again = pair.ship(receiver, pair.hello(files=(pair.wal.file,)))
    assert again.opened.files == {pair.wal.file: FileStatus(reported(Ranges.of((256, pair.ends[0]))))}
    assert isinstance(answer(again, pair.data(256, pair.ends[0])), Ack)
    assert pair.landed == pair.sealed[:1]


def test_after_a_new_rule_the_same_bytes_land_again_but_claim_only_what_is_new(pair: Pair, receiver: Receiver) -> None:
    other = table("ops.weather")
    pair.east.ledger.tables.create(other)
    begin = pair.ends[-1]
    end = pair.wal.append(other, rows(0, 5))
    pair.content = Path(pair.wal.path).read_bytes()
    narrow = pair.ship(receiver)
    assert isinstance(answer(narrow, replace(pair.data(256, end), frames=pair.content[256:begin])), Ack)
    wide = pair.ship(receiver, pair.hello(pair.route(), pair.route(2, other), files=(pair.wal.file,)))
    assert wide.opened.files == {pair.wal.file: FileStatus(reported(Ranges()))}
    assert isinstance(answer(wide, pair.data(256, end)), Ack)
    coverage = {stream.table: ranges.spans for stream, ranges in pair.west.ledger.landing.coverage().items()}
    assert coverage == {pair.spec.uuid: ((0, 3),), other.uuid: ((0, 1),)}


def test_a_hole_is_refused_with_the_expected_offset(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    answer(session, pair.data(256, pair.ends[0]))
    refusal = refused(session, pair.data(pair.ends[1], pair.ends[2]))
    assert (refusal.reason, refusal.expected) == (Reason.HOLE, pair.ends[0])
    assert (refusal.file, refusal.begin, refusal.end) == (pair.wal.file, pair.ends[1], pair.ends[2])


def test_chunks_of_a_file_land_in_any_order(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    first, second, third = pair.ends
    for begin, end in ((second, third), (256, first), (first, second)):
        assert isinstance(answer(session, replace(pair.data(begin, end), chunk_begin=begin)), Ack)
    assert sorted(pair.landed) == sorted(pair.sealed)
    (coverage,) = pair.west.ledger.landing.coverage().values()
    assert coverage.spans == ((0, 3),)


@pytest.mark.parametrize("seed", range(6))
def test_chunks_in_any_order_and_any_number_of_times_come_to_the_same(tmp_path: Path, seed: int) -> None:  # scenario 22
    chosen = Random(seed)
    with closing(Pair(tmp_path)) as pair, pair.west.receiver() as receiver:
        pair.ends += [pair.wal.append(pair.spec, rows(n * 10, 10)) for n in range(3, 9)]
        pair.content = Path(pair.wal.path).read_bytes()
        end = pair.ends[-1]
        inner = sorted(chosen.sample(pair.ends[:-1], 4))
        chunks = list(zip([256, *inner], [*inner, end], strict=True))
        sent = [*chunks, *chosen.choices(chunks, k=6)]
        chosen.shuffle(sent)
        known = Ranges()
        for part in (sent[:5], sent[5:]):  # each by a stream of its own
            session = pair.ship(receiver, pair.hello(files=(pair.wal.file,)))
            assert session.opened.files == {pair.wal.file: FileStatus(reported(known))}
            for begin, until_there in part:
                reply = answer(session, replace(pair.data(begin, until_there), chunk_begin=begin))
                assert isinstance(reply, Ack) and reply.spans == ((begin, until_there),)
                known = known.union(Ranges.of(*reply.spans))
            assert pair.west.ledger.landing.received(pair.wal.file) == known
            session.close()
        assert known.spans == ((256, end),)
        assert sorted(pair.landed) == sorted(pair.sealed), "each frame landed once"
        assert [r.spans for r in pair.west.ledger.landing.coverage().values()] == [((0, 9),)]
        answer(pair.ship(receiver), Data(pair.wal.file, end, end, 256, 1, b"", end))
        wait_until(lambda: all(row.closed for row in pair.west.ledger.files.all()))


@pytest.mark.parametrize("at", [2, 30, 90, 200, -1])
def test_a_flipped_bit_anywhere_is_corrupt_and_nothing_lands(pair: Pair, receiver: Receiver, at: int) -> None:
    session = pair.ship(receiver)
    damaged = bytearray(pair.content[256 : pair.ends[0]])
    damaged[at] ^= 1
    refusal = refused(session, replace(pair.data(256, pair.ends[0]), frames=bytes(damaged)))
    assert refusal.reason in (Reason.CORRUPT, Reason.VERSION)
    assert not pair.landed
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)


@pytest.mark.parametrize("cut", [1, 100])
def test_a_truncated_message_is_corrupt(pair: Pair, receiver: Receiver, cut: int) -> None:
    whole = pair.data(256, pair.ends[1])
    refusal = refused(pair.ship(receiver), replace(whole, frames=whole.frames[:-cut]))
    assert refusal.reason is Reason.CORRUPT and not pair.landed


def test_an_unknown_table_is_refused_by_name_and_others_go_on(pair: Pair, receiver: Receiver) -> None:
    other = table("ops.weather")
    end = pair.wal.append(other, rows(0, 5))
    pair.content = Path(pair.wal.path).read_bytes()
    session = pair.ship(receiver)
    assert isinstance(answer(session, pair.data(256, pair.ends[2])), Ack)
    refusal = refused(session, pair.data(pair.ends[2], end))
    assert (refusal.reason, refusal.table) == (Reason.UNKNOWN_TABLE, other.uuid)


def test_an_unknown_schema_version_is_taken_once_it_was_sent(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver, pair.hello(replace(pair.route(), schemas=())))
    # creating the table brings its current versions, so take one that it never had
    newer = replace(pair.spec, columns=pair.spec.columns[:1], groups=(replace(pair.spec.groups[0], members=()),))
    assert newer.versions["default"].hash != pair.spec.versions["default"].hash
    begin = pair.ends[-1]
    end = pair.wal.append(newer, rows(0, 5).select(["id"]))
    pair.content = Path(pair.wal.path).read_bytes()
    assert isinstance(answer(session, pair.data(256, begin)), Ack)
    assert refused(session, pair.data(begin, end)).reason is Reason.UNKNOWN_SCHEMA
    session.send((newer.versions["default"],))
    assert isinstance(answer(session, pair.data(begin, end)), Ack)


@pytest.mark.parametrize("name", ["flights_w", "a.b.c", "../ops.x", "ops.airports__changes"])
def test_a_route_to_a_name_that_no_table_can_have_is_refused_by_its_type(
    pair: Pair, receiver: Receiver, name: str
) -> None:
    for route in (replace(pair.route(), remote_table=name), replace(pair.route(), spec=replace(pair.spec, name=name))):
        with pytest.raises(PeerRefusedError, match="west refuses this table name") as caught:
            pair.link(receiver).open_route(pair.east.cluster, pair.west.cluster, route)
        assert caught.value.reason == Reason.TABLE_CONFLICT.value and "--remote-table" in caught.value.hint
        opened = pair.ship(receiver, pair.hello(route)).opened
        assert opened.refused[pair.spec.uuid, "default"].reason is Reason.TABLE_CONFLICT
    assert pair.west.ledger.tables.all() == [] and pair.west.ledger.landing.routes() == []


def test_a_bootstrap_without_room_is_refused_with_remedies_that_there_are(pair: Pair, receiver: Receiver) -> None:
    route = replace(pair.route(), bootstrap_bytes=1 << 60)
    with pytest.raises(PeerRefusedError, match="a bootstrap needs about") as refused:
        pair.link(receiver).open_route(pair.east.cluster, pair.west.cluster, route)
    assert "enablereplication --from-now, after disablereplication if it is sent" in refused.value.hint


def test_of_two_tables_of_one_name_the_remedy_makes_this_one(pair: Pair, receiver: Receiver) -> None:
    other = table(pair.spec.name)
    pair.west.ledger.tables.create(other)
    link = pair.link(receiver)
    with pytest.raises(PeerRefusedError, match=f"west has another table named {pair.spec.name}") as refused:
        link.open_route(pair.east.cluster, pair.west.cluster, pair.route())
    assert f"droptable {pair.spec.name} there, then enablereplication again" in refused.value.hint
    assert "--like" not in refused.value.hint, "which asks a peer of the cluster where it is said"
    pair.west.ledger.tables.drop(other.uuid)
    link.open_route(pair.east.cluster, pair.west.cluster, pair.route())
    assert pair.west.ledger.tables.get(pair.spec.name).uuid == pair.spec.uuid


def test_an_older_term_is_refused(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    assert isinstance(answer(session, pair.data(256, pair.ends[0], term=5)), Ack)
    assert refused(session, pair.data(pair.ends[0], pair.ends[1], term=4)).reason is Reason.STALE_TERM
    assert isinstance(answer(session, pair.data(pair.ends[0], pair.ends[1], term=5)), Ack)


def test_an_older_term_is_refused_after_a_restart(pair: Pair) -> None:
    with pair.west.receiver() as receiver:
        assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[0], term=5)), Ack)
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        assert refused(session, pair.data(pair.ends[0], pair.ends[1], term=4)).reason is Reason.STALE_TERM


def test_a_frame_that_was_here_before_is_a_loop(pair: Pair, receiver: Receiver) -> None:  # 004-11
    wal = pair.west.wal()
    end = wal.append(pair.spec, rows(0, 5))
    frames = Path(wal.path).read_bytes()[256:end]
    message = Data(replace(pair.wal.file, number=99), 256, end, 256, 1, frames)
    assert refused(pair.ship(receiver), message).reason is Reason.LOOP


def test_a_second_history_is_withheld_and_reported(pair: Pair, receiver: Receiver) -> None:
    answer(pair.ship(receiver), pair.data(256, pair.ends[0]))
    other = pair.wal.other_history(pair.spec, rows(500, 10))
    message = Data(replace(pair.wal.file, number=99), 256, 256 + len(other), 256, 1, other)
    assert refused(pair.ship(receiver), message).reason is Reason.DIVERGENCE
    (kept,) = pair.west.ledger.replay.quarantined()
    assert Path(kept.copy).read_bytes() == other and "divergence" in kept.reason


def test_a_second_history_of_which_no_copy_could_be_kept_is_asked_for_again(
    pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(pair.ship(receiver), pair.data(256, pair.ends[0]))
    other = pair.wal.other_history(pair.spec, rows(500, 10))
    file = replace(pair.wal.file, number=99)
    message = Data(file, 256, 256 + len(other), 256, 1, other)
    create = LocalFiles.create

    def full(self: LocalFiles, path: str) -> AppendFile:
        if path.endswith(".frame"):
            raise NoSpaceError("the disk is full")
        return create(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "create", full)
        assert refused(pair.ship(receiver), message).reason is Reason.NOT_READY
    again = pair.ship(receiver, pair.hello(files=(file,)))
    assert again.opened.files[file].status.shipped == Ranges()
    assert refused(again, message).reason is Reason.DIVERGENCE
    (kept,) = pair.west.ledger.replay.quarantined()
    assert Path(kept.copy).read_bytes() == other


def test_too_many_frames_in_one_message_are_too_large(tmp_path: Path) -> None:
    pair = Pair(tmp_path, receiver={"message_bytes_max": 1000})
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        assert refused(session, pair.data(256, pair.ends[2])).reason is Reason.TOO_LARGE
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    pair.close()


def test_a_full_disk_is_refused_before_it_is_full(tmp_path: Path) -> None:
    pair = Pair(tmp_path, receiver={"disk_free_min_bytes": 1 << 60})
    with pair.west.receiver() as receiver:
        refusal = refused(pair.ship(receiver), pair.data(256, pair.ends[0]))
        assert refusal.reason is Reason.DISK_FULL and "MiB are free" in refusal.what
    pair.close()


def test_a_backlog_of_replay_is_refused_too(tmp_path: Path) -> None:
    pair = Pair(tmp_path, receiver={"landing_bytes_max": 1})
    pair.west.ledger.tables.create(pair.spec)
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
        begin, found = pair.ends[0], set[object]()
        for end in pair.ends[1:]:
            reply = answer(session, pair.data(begin, end))
            found.add(reply.reason if isinstance(reply, Refusal) else Ack)
            begin = end
        assert found <= {Ack, Reason.DISK_FULL, Reason.HOLE}
    pair.close()


def test_skipped_bytes_count_as_received(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    assert isinstance(answer(session, replace(pair.data(256, pair.ends[0]), frames=b"")), Ack)
    assert isinstance(answer(session, pair.data(pair.ends[0], pair.ends[1])), Ack)
    assert pair.west.ledger.landing.received(pair.wal.file).spans == ((256, pair.ends[1]),)
    assert pair.landed == pair.sealed[1:2]


def test_a_closed_source_closes_its_landing_file(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    answer(session, pair.data(256, pair.ends[2]))
    (row,) = pair.west.ledger.files.all()
    assert not row.closed
    answer(session, Data(pair.wal.file, pair.ends[2], pair.ends[2], 256, 1, b"", pair.ends[2]))
    receiver_files = pair.west.ledger.files
    wait_until(lambda: receiver_files.all()[0].closed)
    assert pair.wal.file not in receiver._landing.received._received, "nothing more of it is to come"
    assert isinstance(answer(session, pair.data(256, pair.ends[2])), Ack) and len(receiver_files.all()) == 1


def test_bytes_past_the_registered_length_are_cut_at_the_next_start(pair: Pair) -> None:
    with pair.west.receiver() as receiver:
        answer(pair.ship(receiver), pair.data(256, pair.ends[0]))
    row = pair.west.ledger.files.allocate(
        "h0", pair.west.ledger.files.all()[0].kind, str(pair.west.config.landing_dir), "boot", source=pair.wal.file
    )
    Path(row.path).write_bytes(pair.content[: pair.ends[1]])
    with pair.west.receiver() as receiver:
        wait_until(lambda: Path(row.path).stat().st_size == row.length)
        assert all(known.closed for known in pair.west.ledger.files.all()), "closed before it is cut"
        assert isinstance(answer(pair.ship(receiver), pair.data(pair.ends[0], pair.ends[1])), Ack)
    assert pair.landed == pair.sealed[:2]


def test_two_receivers_do_not_share_a_folder(pair: Pair, receiver: Receiver) -> None:
    with pytest.raises(LockedFileError), pair.west.receiver():
        pass


def test_tells_where_it_listens(pair: Pair, receiver: Receiver) -> None:
    wait_until(lambda: pair.west.coordination.public().receivers == (f"127.0.0.1:{receiver.port}",))
    assert pair.links == [] and receiver.address.startswith("127.0.0.1:")


def test_a_landing_file_rolls_in_the_middle_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather(monkeypatch)
    pair = Pair(tmp_path, writer={"wal_bytes_max": 900})
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        begin = 256
        for end in pair.ends:
            session.send(pair.data(begin, end))
            begin = end
        assert all(isinstance(session.receive(20), Ack) for _ in pair.ends)
        end = pair.wal.append(pair.spec, rows(100, 10))
        pair.content = Path(pair.wal.path).read_bytes()
        assert isinstance(answer(session, pair.data(begin, end)), Ack)
    assert pair.landed == pair.sealed and len(pair.west.ledger.files.all()) == 2
    pair.close()


def test_commit_times_far_ahead_land_and_are_an_alarm(pair: Pair, receiver: Receiver) -> None:
    session = pair.ship(receiver)
    answer(session, pair.data(256, pair.ends[0]))
    assert pair.west.ledger.time.ahead() == []
    pair.wal.ahead_us = 3_600_000_000
    began = time.time_ns() // 1000
    end = pair.wal.append(pair.spec, rows(30, 10))
    pair.content = Path(pair.wal.path).read_bytes()
    assert answer(session, pair.data(pair.ends[0], end)) == Ack(pair.wal.file, ((pair.ends[0], end),))
    (alarm,) = pair.west.ledger.time.ahead()
    now = time.time_ns() // 1000
    assert alarm.origin == pair.east.cluster and began <= alarm.at <= now
    assert began <= alarm.commit - pair.wal.ahead_us <= alarm.at
    found = collect(pair.west.config, pair.west.ledger, Members())
    (shown,) = found.far_ahead
    left_s = [(alarm.commit - at) / 1e6 for at in (time.time_ns() // 1000, now)]
    assert shown.origin == str(pair.east.cluster) and left_s[0] <= shown.ahead_s + 0.001 <= left_s[1] + 0.002
    assert pair.west.ledger.time.seen() == alarm.commit


def test_what_landed_and_waits_for_a_silent_replay_says_so(
    pair: Pair, receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    answer(pair.ship(receiver), pair.data(256, pair.ends[0]))
    (landed,) = pair.west.ledger.landing.coverage()
    for at, said in ((None, "replay there has never run"), (100.0, "replay there is silent for "), (0.0, "")):
        if at is not None:
            ReplayReport(host="h0", at=time.time() - at).save(pair.west.ledger.replay)
        found = pair.link(receiver).reached({landed: 0, replace(landed, group="none"): 0})
        assert found[landed].held_by.startswith("landed but not applied") and said in found[landed].held_by
        assert bool(said) is ("replay there" in found[landed].held_by)
        assert "replay" not in found[replace(landed, group="none")].held_by
        hosts = (Host("h0", "/data", ("replay (leads)",)),)
        show_status(Printer(as_json=False), collect(pair.west.config, pair.west.ledger, Members(hosts=hosts)))
        assert ("in a long round, or frozen" in capfd.readouterr().err) is ("silent" in said)


def test_an_answer_waits_until_what_is_asked_for_has_landed(pair: Pair, receiver: Receiver) -> None:
    session, link = pair.ship(receiver), pair.link(receiver)
    stream = StreamId(pair.wal.file, pair.spec.uuid, "default")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(link.reached, {stream: 0}, Until.DURABLE, 60.0)
        answer(session, pair.data(256, pair.ends[0]))
        first = asked.result()[stream]
    assert first.durable or link.reached({stream: 0}, Until.DURABLE, 60.0)[stream].durable, "a second at most"
    assert not link.reached({stream: 0}, Until.VISIBLE, 0.01)[stream].visible, "nothing replays here"
    receiver._reception.answers._waits = threading.BoundedSemaphore(1)
    with receiver._reception.answers._waits:
        assert not link.reached({stream: 9}, Until.DURABLE, 1.0)[stream].durable, "too many wait already"
