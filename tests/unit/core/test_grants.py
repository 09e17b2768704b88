"""Who is believed, and what is granted: default deny."""

from __future__ import annotations

from uuid import uuid4

import pytest

from replication.core.grants import CARRIED, Caller, Grant, grant_of, unknown_caller
from replication.core.ids import NIL_UUID, ClusterId
from replication.errors import PeerRefusedError

WEST, EAST = ClusterId("west", uuid4()), ClusterId("east", uuid4())
CERTIFIED = frozenset({"east"})


@pytest.mark.parametrize(
    ("caller", "plaintext", "known"),
    [
        (Caller(EAST), False, False),
        (Caller(EAST), True, True),
        (Caller(EAST, is_same_user=True), False, True),
        (Caller(EAST, CERTIFIED), False, True),
        (Caller(EAST, frozenset({"north"}), is_same_user=True), True, False),
        (Caller(EAST, frozenset()), True, False),
    ],
)
def test_a_caller_is_known_by_its_certificate_or_as_the_same_user(caller: Caller, plaintext: bool, known: bool) -> None:
    refusal = unknown_caller(caller, plaintext)
    assert (refusal is None) == known
    assert refusal is None or refusal.hint


def test_nothing_is_granted_but_to_peers_and_the_same_user() -> None:
    for caller, peer in ((Caller(EAST, CERTIFIED), None), (Caller(EAST, CERTIFIED), ClusterId("east", uuid4()))):
        refusal = grant_of(caller, WEST, None, peer)
        assert isinstance(refusal, PeerRefusedError) and refusal.reason == "NOT_GRANTED" and "east" in refusal.hint
    for caller, peer in ((Caller(EAST, CERTIFIED), EAST), (Caller(EAST, is_same_user=True), None)):
        grant = grant_of(caller, WEST, None, peer)
        assert isinstance(grant, Grant) and grant.covers("ops.flights")


def test_a_grant_that_was_made_comes_before_policy() -> None:
    narrow = Grant(EAST, ("ops.*",), defines=False)
    for caller in (Caller(EAST, CERTIFIED), Caller(EAST, is_same_user=True)):
        assert grant_of(caller, WEST, narrow, EAST, "any-certified") == narrow
        denied = grant_of(caller, WEST, Grant(EAST, ()), EAST, "any-certified")
        assert isinstance(denied, PeerRefusedError) and "walship grants add east" in denied.hint


def test_another_incarnation_has_no_grant_until_a_person_says_so() -> None:
    again = ClusterId("east", uuid4())
    refusal = grant_of(Caller(again, CERTIFIED), WEST, Grant(EAST), None, "any-certified")
    assert isinstance(refusal, PeerRefusedError) and f"walship grants add east --id {again}" in refusal.hint
    assert grant_of(Caller(again, CERTIFIED), WEST, Grant(ClusterId("east", NIL_UUID)), None) == Grant(again)
    assert grant_of(Caller(again, is_same_user=True), WEST, Grant(EAST), None) == Grant(again)


def test_policy_may_accept_every_certificate_but_nothing_without_one() -> None:
    assert grant_of(Caller(EAST, CERTIFIED), WEST, None, None, "any-certified") == Grant(EAST, by="certificate")
    assert isinstance(grant_of(Caller(EAST), WEST, None, None, "any-certified"), PeerRefusedError)
    assert isinstance(grant_of(Caller(EAST, CERTIFIED), WEST, None, None, "ask"), PeerRefusedError)


def test_a_grant_is_for_its_tables_and_origins() -> None:
    grant = Grant(EAST, ("ops.*",), (CARRIED, "nor*"))
    assert grant.covers("ops.flights") and not grant.covers("hr.wages")
    carried = ClusterId("south", uuid4())
    assert grant.forwards(EAST) and grant.forwards(ClusterId("east", uuid4())), "its own, of before a restore too"
    assert grant.forwards(ClusterId("north", uuid4()))
    assert not grant.forwards(carried) and grant.forwards(carried, {carried})
    assert not Grant(EAST, origins=("north",)).forwards(carried, {carried}), "only those that are named"
