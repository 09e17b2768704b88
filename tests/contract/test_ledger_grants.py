"""The ledger's contract: what is granted to other clusters, and invitations."""

from __future__ import annotations

from uuid import uuid4

import pytest

from replication.core.grants import Grant
from replication.core.ids import NIL_UUID, ClusterId
from replication.errors import RequestError
from replication.ledger import grants as bounds
from replication.ledger.base import GrantRow, Invitation, Ledger
from replication.ledger.sql.parts import grants as part
from tests.contract.ledger_stores import EAST, NORTH

GRANT = Grant(NORTH, ("ops.*", "hr.staff"), ("@carried", "sou*"), False, "person")


def test_a_grant_is_kept_replaced_and_pinned(ledger: Ledger) -> None:
    assert ledger.grants.all() == [] and ledger.grants.of("north") is None
    ledger.grants.put(GRANT, 7)
    ledger.grants.put(Grant(EAST), 8)
    assert ledger.grants.all() == [GrantRow(Grant(EAST), 8), GrantRow(GRANT, 7)]
    denied = Grant(ClusterId("north", NIL_UUID), (), (), False)
    ledger.grants.put(denied, 9)
    assert ledger.grants.of("north") == GrantRow(denied, 9)
    again = ClusterId("north", uuid4())
    ledger.grants.pin(again)
    found = ledger.grants.of("north")
    assert found is not None and found.grant.cluster == again and found.grant.tables == ()


def test_what_is_asked_for_replaces_no_grant_and_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "ASKED_MAX", 2)
    ledger.grants.put(GRANT, 7)
    for number, name in enumerate(("north", "a", "b", "c")):
        ledger.grants.put(Grant(ClusterId(name, uuid4())), number, asked=True)
    assert [(row.grant.cluster.name, row.asked) for row in ledger.grants.all()] == [
        ("a", True),
        ("b", True),
        ("north", False),
    ]
    ledger.grants.put(Grant(ClusterId("a", NIL_UUID)), 9)
    found = ledger.grants.of("a")
    assert found is not None and not found.asked


def test_an_invitation_is_used_once_by_the_cluster_of_its_name_in_time(ledger: Ledger) -> None:
    for digest, expires in (("one", 100), ("two", 50)):
        ledger.grants.invite(Invitation(digest, Grant(ClusterId("north", NIL_UUID), ("ops.*",)), expires), 1)
    ledger.grants.put(Grant(NORTH, ()), 2)
    assert not ledger.grants.redeem("one", EAST, 60), "another cluster"
    assert not ledger.grants.redeem("two", NORTH, 60), "too late"
    assert not ledger.grants.redeem("three", NORTH, 60)
    assert ledger.grants.redeem("one", NORTH, 60)
    assert ledger.grants.all() == [GrantRow(Grant(NORTH, ("ops.*",)), 60)]
    assert not ledger.grants.redeem("one", NORTH, 60), "a second time"


@pytest.mark.parametrize("decided", [GRANT, Grant(ClusterId("north", NIL_UUID), (), (), False, "person")])
def test_what_a_person_decides_later_ends_open_invitations(ledger: Ledger, decided: Grant) -> None:
    for name in ("north", "east"):
        ledger.grants.invite(Invitation(name, Grant(ClusterId(name, NIL_UUID)), 100), 1)
    ledger.grants.put(decided, 2)
    assert not ledger.grants.redeem("north", NORTH, 60)
    assert ledger.grants.all() == [GrantRow(decided, 2)]
    assert ledger.grants.redeem("east", EAST, 60), "that of another cluster"


def test_open_invitations_are_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "INVITATIONS_MAX", 1)
    assert bounds.INVITATIONS_MAX > 1
    ledger.grants.invite(Invitation("one", GRANT, 100), 1)
    with pytest.raises(RequestError, match="1 invitations are open"):
        ledger.grants.invite(Invitation("two", GRANT, 100), 1)
    ledger.grants.invite(Invitation("two", GRANT, 200), 100)
