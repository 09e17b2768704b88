"""Roles, epochs, and the lease that lets a writer ack."""

from __future__ import annotations

import pytest

from replication.core.roles import NS_PER_S, Lease, Role, RoleState
from replication.errors import FormatError, ReadOnlyClusterError

ACTIVE = RoleState(Role.ACTIVE, 3)


def test_each_change_of_role_is_a_new_epoch_and_no_change_is_none() -> None:
    assert ACTIVE.becomes(Role.STANDBY) == RoleState(Role.STANDBY, 4)
    assert ACTIVE.becomes(Role.ACTIVE) is ACTIVE


def test_a_role_reads_back_as_it_was_written() -> None:
    assert RoleState.decode(RoleState(Role.STANDBY, 9).encode()) == RoleState(Role.STANDBY, 9)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"role":"KING","epoch":1}', b'{"role":"ACTIVE"}'])
def test_a_role_node_that_holds_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError):
        RoleState.decode(content)


def test_a_lease_holds_from_the_start_of_the_read_that_confirmed_it() -> None:
    lease = Lease.begin(ACTIVE, 100 * NS_PER_S, lease_s=10)
    assert lease.holds(110 * NS_PER_S - 1)
    assert not lease.holds(110 * NS_PER_S)
    renewed = lease.confirm(ACTIVE, 104 * NS_PER_S)
    assert renewed is not None and renewed.holds(114 * NS_PER_S - 1) and not renewed.holds(114 * NS_PER_S)


def test_an_answer_that_comes_late_does_not_shorten_a_lease() -> None:
    lease = Lease.begin(ACTIVE, 100 * NS_PER_S, lease_s=10)
    assert lease.confirm(ACTIVE, 90 * NS_PER_S) == lease


def test_a_lease_ends_with_its_role_and_with_its_epoch_even_if_the_role_came_back() -> None:
    lease = Lease.begin(ACTIVE, 0, lease_s=10)
    assert lease.confirm(ACTIVE.becomes(Role.STANDBY), 1) is None
    assert lease.confirm(RoleState(Role.ACTIVE, 5), 1) is None


def test_a_standby_cluster_gives_no_lease() -> None:
    with pytest.raises(ReadOnlyClusterError, match="STANDBY"):
        Lease.begin(RoleState(Role.STANDBY, 2), 0, lease_s=10)
