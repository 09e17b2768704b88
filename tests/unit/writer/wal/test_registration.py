"""Roles and leases as an open writer feels them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from replication.coordination.membership import Membership
from replication.coordination.paths import MemberKind
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession
from replication.errors import (
    CoordinationError,
    LeaseLostError,
    NoWorkerError,
    ReadOnlyClusterError,
    ReplicationError,
    StorageError,
)
from replication.ledger.base import Peer
from replication.writer.wal.registration import LeaseTerms, WriterRegistration
from replication.writer.wal.wal_series import Place
from tests.unit.writer.site import DIRECTORY, EAST, Site
from tests.waiting import wait_until


def test_a_standby_cluster_takes_no_writers(site: Site) -> None:
    site.set_role(Role.STANDBY)
    with pytest.raises(ReadOnlyClusterError, match="readonly off"):
        site.writer()
    assert site.ledger.time.writers() == []


@pytest.mark.parametrize("known", ["by its definition", "by its own word", "by name only"])
def test_the_refusal_of_open_and_new_writers_names_the_active_cluster(site: Site, known: str) -> None:  # scenario 25
    west, address = ClusterId("west", UUID(int=2)), "zk1:2181/walship/west"
    with site.writer(lease_s=0.5) as writer:
        writer.upsert(site.table, [{"k": 1}])
        if known == "by its definition":
            site.ledger.rules.define(Peer("west", address, west), 0)
        elif known == "by its own word":
            site.ledger.successions.keep_address(west, address)
        site.ledger.successions.record(Succession(EAST, west, 2, 7, is_planned=True))
        site.set_role(Role.STANDBY)
        wait_until(lambda: site.coordination.members(MemberKind.WRITERS)[0].fields["epoch"] == 2)
        refusals = [pytest.raises(ReadOnlyClusterError, writer.upsert, site.table, [{"k": 2}])]
    refusals.append(pytest.raises(ReadOnlyClusterError, site.writer))
    for refused in refusals:
        assert "east is STANDBY" in refused.value.what and "west is ACTIVE" in refused.value.what
        assert (address in str(refused.value)) == (known != "by name only")
        assert "follow=True" in refused.value.hint
    assert site.logged_keys() == [1]


def test_a_role_that_a_zookeeper_which_lost_data_has_given_back_lets_nobody_ack(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.writer(lease_s=0.5) as writer:
        writer.upsert(site.table, [{"k": 1}])
        site.ledger.terms.keep_role(RoleState(Role.STANDBY, 3))  # and ZooKeeper has ACTIVE, of epoch 1, again
        with pytest.raises(CoordinationError, match="ZooKeeper has lost data: its role epoch is 1, and was 3"):
            site.writer()
        before = site.coordination.role()
        site.coordination.set_role(RoleState(Role.ACTIVE, 3), before.version)
        wait_until(lambda: site.coordination.members(MemberKind.WRITERS)[0].fields["epoch"] == 3)
        monkeypatch.setattr(site.coordination, "role", lambda: before)  # until some process restores it

        def refused() -> bool:
            try:
                writer.upsert(site.table, [{"k": 2}])
            except ReplicationError as error:
                return "was not confirmed" in str(error)
            return False

        wait_until(refused, what="the lease to run out")


def test_a_host_without_a_worker_is_refused_with_the_remedy(site: Site) -> None:
    site.worker.leave()
    with pytest.raises(NoWorkerError, match="walship up"):
        site.writer()


def test_an_open_writer_is_refused_when_the_cluster_becomes_standby_and_goes_on_when_it_is_active_again(
    site: Site,
) -> None:
    with site.writer(lease_s=0.5) as writer:
        before = writer.upsert(site.table, [{"k": 1}])
        site.set_role(Role.STANDBY)

        def refused() -> bool:
            try:
                writer.upsert(site.table, [{"k": 2}])
            except ReadOnlyClusterError:
                return True
            return False

        wait_until(refused)
        (member,) = site.coordination.members(MemberKind.WRITERS)
        wait_until(lambda: site.coordination.members(MemberKind.WRITERS)[0].fields["epoch"] == 2)
        settled = site.logged_keys()
        with pytest.raises(ReadOnlyClusterError):
            writer.upsert(site.table, [{"k": 3}])
        assert site.logged_keys() == settled, "nothing is published once it was acknowledged"
        site.set_role(Role.ACTIVE)

        def taken() -> bool:
            try:
                after = writer.upsert(site.table, [{"k": 4}])
            except ReplicationError:
                return False
            return after.commit > before.commit

        wait_until(taken)
        epochs = [frame.header.role_epoch for frame, _ in site.frames()]
        assert epochs[0] == 1 and epochs[-1] == 3
        assert member.fields["pid"]


class Ticking:
    """A boot-time clock that stands until it is moved."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns


def registration(site: Site, clock: Ticking, lease_s: float = 10.0) -> WriterRegistration:
    terms = LeaseTerms(lease_s)
    return WriterRegistration(
        site.ledger, site.coordination, site.files, Place(DIRECTORY, "h0", site.boot), terms, clock
    )


def test_the_lease_counts_from_the_start_of_the_last_confirmed_read(site: Site) -> None:
    clock = Ticking()
    held = registration(site, clock)
    published: list[int] = []
    held.publish(1, lambda: published.append(1))

    def fault(call: str, path: str) -> None:
        raise CoordinationError("cut off")

    site.ensemble.fault = fault
    clock.ns += 9_999_999_999
    held.publish(1, lambda: published.append(2))
    clock.ns += 1
    with pytest.raises(LeaseLostError):
        held.publish(1, lambda: published.append(3))
    with pytest.raises(CoordinationError, match="nothing was written"):
        held.epoch()
    site.ensemble.fault = None
    wait_until(lambda: _holds(held))
    held.publish(1, lambda: published.append(4))
    assert published == [1, 2, 4]
    held.close(clean=True)


def test_a_lease_is_renewed_again_after_an_error_that_nobody_foresaw(site: Site) -> None:
    failed = threading.Event()

    def fault(call: str, path: str) -> None:
        if threading.current_thread().name == "writer-lease":
            site.ensemble.fault = None
            failed.set()
            raise RuntimeError("can't start new thread")

    clock = Ticking()
    held = registration(site, clock, lease_s=0.3)
    site.ensemble.fault = fault
    assert failed.wait(20)
    clock.ns += 1_000_000_000
    wait_until(lambda: _holds(held))
    held.close(clean=True)


def _holds(held: WriterRegistration) -> bool:
    try:
        held.epoch()
    except CoordinationError:
        return False
    return True


def test_a_host_with_the_longest_name_has_writers(site: Site) -> None:
    host = "h" * 63
    worker = site.coordination.enrol(MemberKind.WORKERS, host, {})
    place = Place(DIRECTORY, host, site.boot)
    held = [WriterRegistration(site.ledger, site.coordination, site.files, place, LeaseTerms(10.0)) for _ in range(2)]
    members = site.coordination.members(MemberKind.WRITERS)
    assert {member.name for member in members} == {each.place.writer for each in held} and len(members) == 2
    assert all(member.fields["host"] == host for member in members)
    for each in held:
        each.close(clean=True)
    worker.leave()


def test_a_change_of_role_is_not_acknowledged_while_something_is_being_published(site: Site) -> None:
    held = registration(site, Ticking())
    publishing, go_on = threading.Event(), threading.Event()

    def publish() -> None:
        publishing.set()
        assert go_on.wait(20)

    thread = threading.Thread(target=held.publish, args=(1, publish))
    thread.start()
    assert publishing.wait(20)
    site.set_role(Role.STANDBY)
    (member,) = site.coordination.members(MemberKind.WRITERS)
    assert member.fields["epoch"] == 1
    go_on.set()
    thread.join(20)
    wait_until(lambda: site.coordination.members(MemberKind.WRITERS)[0].fields["epoch"] == 2)
    with pytest.raises(ReadOnlyClusterError):
        held.publish(1, lambda: None)
    held.close(clean=True)


def test_what_was_stamped_before_two_role_changes_is_not_published_after_them(site: Site) -> None:
    held = registration(site, Ticking())
    stamped = held.epoch()
    site.set_role(Role.STANDBY)
    wait_until(lambda: site.coordination.members(MemberKind.WRITERS)[0].fields["epoch"] == 2)
    site.set_role(Role.ACTIVE)
    wait_until(lambda: _holds(held))
    published: list[int] = []
    with pytest.raises(LeaseLostError, match="the role changed"):
        held.publish(stamped, lambda: published.append(1))
    held.publish(held.epoch(), lambda: published.append(2))
    assert published == [2]
    held.close(clean=True)


def test_a_role_that_changed_before_a_writer_was_seen_ends_its_lease_before_it_acks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol = site.coordination.enrol

    def late(kind: MemberKind, name: str, fields: dict[str, Any]) -> Membership:
        site.set_role(Role.STANDBY)
        assert site.coordination.members(MemberKind.WRITERS) == (), "readonly waits for nobody"
        return enrol(kind, name, fields)

    monkeypatch.setattr(site.coordination, "enrol", late)
    monkeypatch.setattr(site.coordination, "watch_role", lambda _: SimpleNamespace(close=lambda: None))
    held = registration(site, Ticking())
    with pytest.raises(ReadOnlyClusterError):
        held.publish(1, lambda: None)
    held.close(clean=True)


def test_closing_leaves_no_trace_and_no_thread(site: Site) -> None:
    held = registration(site, Ticking())
    assert [w.writer for w in site.ledger.time.writers()] == [held.place.writer]
    held.close(clean=True)
    held.close(clean=True)
    assert site.ledger.time.writers() == []
    assert site.coordination.members(MemberKind.WRITERS) == ()
    assert site.files.names(DIRECTORY) == []
    assert not any(thread.name == "writer-lease" for thread in threading.enumerate())


@pytest.mark.parametrize("call", ["time.register_writer", "enrol"])
def test_a_writer_that_cannot_register_leaves_no_lock_file(
    site: Site, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fault(name: str, *_: object) -> None:
        if name == call:
            raise CoordinationError("out of reach")

    site.ledger.fault = fault
    monkeypatch.setattr(site.coordination, "enrol", lambda *_: fault("enrol"))
    with pytest.raises(CoordinationError):
        registration(site, Ticking())
    site.ledger.fault = None
    assert site.files.names(DIRECTORY) == []
    site.recover()
    assert site.ledger.time.writers() == []


@pytest.mark.parametrize("failing", ["the ledger", "the disk"])
def test_a_writer_that_cannot_be_unregistered_leaves_zookeeper(
    site: Site, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def no_ledger(name: str) -> None:
        if name == "time.remove_writer":
            raise CoordinationError("out of reach")

    def no_disk(path: str) -> None:
        raise StorageError(f"{path} cannot be removed")

    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        if failing == "the ledger":
            site.ledger.fault = no_ledger
        else:
            monkeypatch.setattr(site.files, "remove", no_disk)
    assert site.coordination.members(MemberKind.WRITERS) == ()
    site.ledger.fault = None
    monkeypatch.undo()
    site.recover()
    assert site.ledger.time.writers() == []


def test_a_writer_that_could_not_close_its_files_stays_in_the_ledger_for_recovery(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])

    def fault(name: str) -> None:
        if name == "files.close":
            raise CoordinationError("out of reach")

    site.ledger.fault = fault
    writer.close()
    site.ledger.fault = None
    assert [w.writer for w in site.ledger.time.writers()] == [writer.name]
    (row,) = site.rows()
    published = site.published(row)
    assert site.recover() == [row.file] and site.rows()[0].closed_length == published
    assert (site.logged_keys(), site.ledger.time.writers()) == ([1], [])
