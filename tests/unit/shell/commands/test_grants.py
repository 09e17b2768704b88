"""grants and invite: what is granted to other clusters is seen and changed by persons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from peer.grants.rights import digest_of
from replication.core.ids import ClusterId
from replication.core.routes.carried import InboundRoute
from replication.errors import FormatError, RequestError
from replication.ledger.base import Peer
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.grants import grants_add, grants_list, grants_remove, invite
from tests.contract.ledger_stores import EAST, WEST, table
from tests.fakes.ledger import MemoryLedger

NORTH = ClusterId("north", uuid4())


@pytest.fixture
def ledger() -> Iterator[MemoryLedger]:
    made = MemoryLedger(WEST)
    yield made
    made.close()


@pytest.fixture
def walship(ledger: MemoryLedger, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a verb with --json at west; what it printed."""
    config = SimpleNamespace(zookeeper_servers="zk:2181", zookeeper_root="/walship/west")

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(name="west", ledger=ledger, config=config), Printer(as_json=True)

    def run(verb: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        capfd.readouterr()
        verb(cast(Invocation, SimpleNamespace(connect=connect)), *arguments, **options)
        out, err = capfd.readouterr()
        return json.loads(out) | {"note": err} if verb is invite else json.loads(out)

    return run


def test_a_grant_is_added_listed_and_removed(ledger: MemoryLedger, walship: Callable[..., Any]) -> None:
    assert walship(grants_list) == []
    walship(grants_add, "east", tables=["ops.*", "flights"], origins=["@carried", "north"], defines=False)
    (row,) = walship(grants_list)
    assert (row["name"], row["id"], row["tables"], row["defines"]) == ("east", "", "ops.*, default.flights", False)
    assert row["origins"] == "@carried, north" and row["by"] == "person" and row["since"]
    walship(grants_add, "east", cluster_id=str(EAST))
    (row,) = walship(grants_list)
    assert (row["id"], row["tables"], row["origins"]) == (str(EAST), "*", "@carried")
    walship(grants_remove, "east")
    (row,) = walship(grants_list)
    assert row["tables"] == "none", "which also denies what policy would grant"


def test_what_policy_grants_is_listed_too(ledger: MemoryLedger, walship: Callable[..., Any]) -> None:
    ledger.rules.define(Peer("north", "zk:2181/n", NORTH), 0)
    spec = table()
    ledger.tables.create(spec)
    ledger.landing.declare_routes([InboundRoute(EAST, spec.uuid, "default", 1)])
    assert [(row["name"], row["by"]) for row in walship(grants_list)] == [("east", "same user"), ("north", "peer")]


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("west", {}, RequestError),
        ("east", {"cluster_id": str(NORTH)}, RequestError),
        ("no name", {}, FormatError),
        ("east", {"origins": ["no name"]}, FormatError),
        ("east", {"tables": ["ops.[a"]}, RequestError),
        ("east", {"tables": [""]}, RequestError),
        ("east", {"tables": ["ops.x\ny"]}, RequestError),
    ],
)
def test_what_cannot_be_granted_changes_nothing(
    ledger: MemoryLedger, walship: Callable[..., Any], name: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        walship(grants_add, name, **options)
    assert ledger.grants.all() == []


def test_an_invitation_is_shown_once_and_only_its_digest_is_kept(
    ledger: MemoryLedger, walship: Callable[..., Any]
) -> None:
    secret, note = map(walship(invite, "east", tables=["ops.*"]).get, ("invitation", "note"))
    assert note.split(": ", 1)[1].split(", ")[0] == "walship definecluster west zk:2181/walship/west --invitation TEXT"
    assert len(secret) >= 32 and walship(invite, "east")["invitation"] != secret
    assert ledger.grants.redeem(digest_of(secret), EAST, 1)
    (row,) = ledger.grants.all()
    assert (row.grant.cluster, row.grant.tables, row.grant.by) == (EAST, ("ops.*",), "invitation")
