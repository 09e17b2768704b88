"""The ledger's contract: what lands is claimed once, what is applied is known, and it all survives repetition.

Held by SQLite in a file, the in-memory fake, and PostgreSQL (in test-all, from Debian's binaries).
"""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import ClosedNotice
from replication.errors import ClosedFileError, ConfigError, GapError, MissingFileError, VersionError
from replication.ledger.base import Divergence, FileKind, Landed, Ledger
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.store.store import SqlStore
from tests.contract.ledger_stores import (
    EAST,
    FRAME,
    HEADER,
    NORTH,
    WEST,
    Route,
    Stores,
    applied,
    claims,
    stream,
    table,
    wal,
)

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
S = stream(FLIGHTS, wal())
W = stream(WEATHER, wal())


@pytest.fixture
def route(ledger: Ledger) -> Route:
    ledger.tables.create(FLIGHTS)
    ledger.tables.create(WEATHER)
    return Route(ledger)


def test_a_ledger_belongs_to_one_incarnation_of_one_cluster(stores: Stores) -> None:
    if not stores.url:
        pytest.skip("the ledger in memory has no address")
    initialise(stores.url, WEST)
    with pytest.raises(ConfigError, match="belongs to west:.*, not to east"):
        initialise(stores.url, EAST)
    assert stores.another().cluster == WEST


def test_a_newer_schema_is_refused(stores: Stores) -> None:
    if not stores.url:
        pytest.skip("the ledger in memory has no address")
    store = SqlStore(stores.url)
    with store.write() as connection:
        connection.execute(sa.text("UPDATE meta SET value = '99' WHERE name = 'schema'"))
    store.close()
    with pytest.raises(VersionError, match="99.*Upgrade"):
        open_ledger(stores.url)


def test_a_schema_of_before_the_first_release_is_refused_with_what_to_do(stores: Stores) -> None:
    if not stores.url:
        pytest.skip("the ledger in memory has no address")
    store = SqlStore(stores.url)
    with store.write() as connection:
        connection.execute(sa.text("UPDATE meta SET value = '1' WHERE name = 'schema'"))
        connection.execute(sa.text("DROP TABLE grants"))
    store.close()
    with pytest.raises(VersionError, match="walship rebuildledger"):
        open_ledger(stores.url)
    with pytest.raises(VersionError, match="walship init"):
        initialise(stores.url, WEST)


def test_numbers_of_a_slot_are_dense_and_shared_by_every_kind_of_file(ledger: Ledger) -> None:
    made = [ledger.files.allocate("h0", kind, "/data/wal/", "boot") for kind in FileKind]
    other = ledger.files.allocate("h1", FileKind.WAL, "/data/wal", "boot")
    assert [row.file for row in (*made, other)] == [
        *(FileId(WEST, "h0", n) for n in range(len(FileKind))),
        FileId(WEST, "h1", 0),
    ]
    assert made[1].path == "/data/wal/000000000001.wal" and made[1].length == made[1].applied == HEADER
    assert ledger.files.get(made[0].file) == made[0]
    assert ledger.files.all("h0") == made and len(ledger.files.all()) == len(FileKind) + 1
    assert [ledger.files.upcoming(host) for host in ("h0", "h1", "h2")] == [len(FileKind), 1, 0]


def test_what_a_peer_knows_of_files_that_were_never_made_is_kept_for_that_peer_alone(ledger: Ledger) -> None:
    ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot")
    made, ahead, elsewhere = FileId(WEST, "h0", 0), FileId(WEST, "h0", 1), FileId(WEST, "joined-since", 0)
    assert ledger.files.overtaken(EAST, [made, FileId(NORTH, "h0", 9)]) is None
    assert ledger.files.overtaken(EAST, [made, ahead]) == ahead
    ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot")
    assert ledger.files.overtaken(EAST) == ahead, "also when the number has been given since"
    assert ledger.files.overtaken(NORTH) is None
    assert ledger.files.overtaken(NORTH, [elsewhere]) == elsewhere, "a host that joined after the backup"


def test_what_lands_is_registered_and_claimed(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 3, 0), claims(W, 0, 1, 0))
    route.land(claims(S, 3, 5, 0))
    assert ledger.landing.coverage() == {S: Ranges.of((0, 5)), W: Ranges.of((0, 1))}
    assert ledger.landing.coverage(WEATHER.uuid) == {W: Ranges.of((0, 1))}
    assert ledger.landing.received(wal()) == Ranges.of((HEADER, HEADER + 6 * FRAME))
    row = ledger.files.get(route.file)
    assert row is not None and row.length == HEADER + 6 * FRAME and row.commit_hi == 4 and row.source == wal()
    assert ledger.registration.register([route.group(claims(S, 5, 6, 0, "other"))]), "its hash does not follow"


def test_the_same_registration_again_has_no_effect(ledger: Ledger, route: Route) -> None:
    first = route.land(claims(S, 0, 3, 0))
    route.land(claims(S, 3, 4, 0))
    assert ledger.registration.register([first]) == []
    (pending,) = ledger.replay.pending()
    assert pending.duplicates == Ranges() and pending.end == HEADER + 4 * FRAME


def test_registration_must_follow_what_is_registered(ledger: Ledger, route: Route) -> None:
    later = Landed(route.file, HEADER + 50, HEADER + 150, wal(), HEADER, HEADER + 100, ())
    with pytest.raises(GapError, match="registered up to 256"):
        ledger.registration.register([later])
    with pytest.raises(MissingFileError):
        ledger.registration.register_own(FileId(WEST, "h7", 0), HEADER, HEADER + 1, ())


def test_a_failed_group_registers_nothing_of_the_groups_beside_it(ledger: Ledger, route: Route) -> None:
    good = route.group(claims(S, 0, 1, 0))
    bad = Landed(route.file, 9999, 10_099, wal(), 9999, 10_099, ())
    with pytest.raises(GapError):
        ledger.registration.register([good, bad])
    assert ledger.landing.coverage() == {} and ledger.replay.pending() == []
    assert ledger.registration.register([good]) == []
    assert ledger.landing.coverage() == {S: Ranges.of((0, 1))}


def test_a_closed_file_registers_up_to_its_length_and_no_further(ledger: Ledger) -> None:  # 004-25
    own = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    ledger.files.close(own, HEADER + FRAME)
    ledger.registration.register_own(own, HEADER, HEADER + FRAME, claims(stream(FLIGHTS, own), 0, 1, HEADER))
    with pytest.raises(ClosedFileError, match="CLOSED at 356"):
        ledger.registration.register_own(own, HEADER + FRAME, HEADER + 2 * FRAME, ())
    ledger.files.close(own, HEADER + FRAME)
    with pytest.raises(ClosedFileError, match="cannot be CLOSED at 456"):
        ledger.files.close(own, HEADER + 2 * FRAME)
    row = ledger.files.get(own)
    assert row is not None and row.closed and row.needed == row.length == HEADER + FRAME
    assert ledger.files.all(open_only=True) == []


def test_a_file_cannot_be_closed_below_what_is_registered(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0))
    with pytest.raises(ClosedFileError, match="registered up to 456"):
        ledger.files.close(route.file, HEADER + FRAME)


def test_one_frame_by_two_routes_counts_once(ledger: Ledger, route: Route) -> None:  # A→B→D and A→C→D
    other = Route(ledger, source=FileId(EAST, "h1", 7))
    route.land(claims(S, 0, 3, 0))
    other.land(claims(S, 1, 5, 0))
    route.land(claims(S, 3, 6, 0))
    assert ledger.landing.coverage() == {S: Ranges.of((0, 6))}
    skipped = {p.row.file: p.duplicates for p in ledger.replay.pending()}
    begin = HEADER + 3 * FRAME
    assert skipped == {
        other.file: Ranges.of((HEADER, HEADER + 2 * FRAME)),
        route.file: Ranges.of((begin, begin + 2 * FRAME)),
    }


def test_two_receivers_claiming_the_same_sequences_at_once_count_them_once(stores: Stores, route: Route) -> None:
    second = Route(stores.another(), source=FileId(EAST, "h1", 7), host="h1")
    barrier = threading.Barrier(2)
    failures: list[BaseException] = []

    def land(of: Route) -> None:
        try:
            barrier.wait(120)
            for n in range(40):
                of.land(claims(S, n, n + 1, 0))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=land, args=(of,)) for of in (route, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    pending = stores.ledger.replay.pending()
    counted = sum((p.end - p.begin - p.duplicates.total) // FRAME for p in pending)
    assert counted == 40 and stores.ledger.landing.coverage() == {S: Ranges.of((0, 40))}
    duplicates = sum(p.duplicates.total // FRAME for p in pending)
    passed = sum(r.length - HEADER for r in stores.ledger.files.all() if r.applied == r.length) // FRAME
    assert duplicates + passed + counted <= 80


def test_another_history_is_divergence_and_so_is_what_follows_it(ledger: Ledger, route: Route) -> None:
    other = Route(ledger, source=FileId(EAST, "h1", 7))
    route.land(claims(S, 0, 3, 0))
    found = ledger.registration.register([other.group(claims(S, 3, 5, 0, "other"))])
    assert [(d.claim.sequence, d.file, d.held_by) for d in found] == [
        (3, other.file, route.file),
        (4, other.file, route.file),
    ]
    assert [d.claim.sequence for d in ledger.registration.register([other.group(claims(S, 5, 6, 0, "other"))])] == [5]
    assert ledger.landing.coverage() == {S: Ranges.of((0, 3))}
    assert ledger.registration.register([route.group(claims(S, 3, 6, 0))]) == []
    assert ledger.landing.coverage() == {S: Ranges.of((0, 6))}
    assert [p.row.file for p in ledger.replay.pending()] == [route.file]


def test_the_last_frame_again_with_other_content_is_divergence(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 3, 0))
    (found,) = ledger.registration.register([route.group(claims(S, 2, 3, 0, "other"))])
    assert isinstance(found, Divergence) and found.claim.sequence == 2 and found.held_by == route.file


def test_a_hole_in_a_stream_is_filled_later(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 4, 6, 0))
    route.land(claims(S, 0, 2, 0))
    assert ledger.landing.coverage() == {S: Ranges.of((0, 2), (4, 6))}
    route.land(claims(S, 2, 4, 0))
    assert ledger.landing.coverage() == {S: Ranges.of((0, 6))}
    assert ledger.registration.register([route.group(claims(S, 6, 7, 0, "other"))]), "its hash does not follow"


def test_a_source_remembers_its_highest_term(stores: Stores) -> None:
    accept, again = stores.ledger.landing.accept_term, stores.another().landing.accept_term
    assert accept(wal(), 3) and again(wal(), 3) and again(wal(), 5)
    assert not accept(wal(), 4) and not again(wal(), 3) and accept(wal(1), 1)


def test_a_notice_arrives_with_its_registration(ledger: Ledger, route: Route) -> None:
    group = route.group(claims(S, 0, 1, 0))
    notice = ClosedNotice(50, ((S, 0),))
    ledger.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    with_notice = Landed(
        group.file, group.begin, group.end, wal(), group.begin, group.end, group.claims, ((EAST, notice),)
    )
    ledger.registration.register([with_notice])
    assert ledger.time.replicated()[EAST].t == 0
    applied(ledger, FLIGHTS, {route.file: route.at})
    assert ledger.time.replicated()[EAST].t == 50
