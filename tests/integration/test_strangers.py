"""Callers that were granted nothing: they learn who is there, and change nothing. (issue 23, attack 1)"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from peer.receive.receiver import Receiver
from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import PeerRefusedError, PeerUnavailableError
from replication.link.base import Hello, PeerLink, Route
from replication.link.grpc_client import connect
from tests.certificates import tls_section
from tests.hostile import NOBODY, calling, of_other_users, run_as_nobody
from tests.integration.test_link_tls import AUTHORITY
from tests.sites import Site, rows, table

PRINTER = ClusterId("printer", uuid4())


@pytest.fixture
def west(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A cluster with a table of rows, whose certificate is of an authority that others have certificates of."""
    of_other_users(monkeypatch)
    site = Site(tmp_path, "west", tls=tls_section(tmp_path, AUTHORITY.issue("west")))
    site.ledger.tables.create(SPEC)
    site.wal().append(SPEC, rows(0, 10))
    yield site
    site.close()


@pytest.fixture
def receiver(west: Site) -> Iterator[Receiver]:
    with west.receiver() as made:
        yield made


SPEC = table()
VERSION = next(iter(SPEC.versions.values()))
NEW = table("ops.new")


def route(spec: object = NEW) -> Route:
    return Route(NEW, "default", NEW.name, 1, {}, tuple(NEW.versions.values()))


CALLS: dict[str, Callable[[PeerLink, Site], object]] = {
    "GetTable": lambda link, west: link.get_table(SPEC.name),
    "Progress": lambda link, west: link.progress([]),
    "Reached": lambda link, west: link.reached({StreamId(west.wal().file, SPEC.uuid, "default"): 0}),
    "OpenRoute": lambda link, west: link.open_route(PRINTER, west.cluster, route()),
    "Ship": lambda link, west: link.ship(Hello(PRINTER, west.cluster, 1, "test", (route(),))),
    "Compare": lambda link, west: link.compare(PRINTER, west.cluster),
    "Read": lambda link, west: list(link.read(PRINTER, west.wal().file, [(256, 300)])),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_certificate_of_the_authority_grants_nothing(west: Site, receiver: Receiver, call: str) -> None:
    before = (west.ledger.tables.all(), west.ledger.landing.routes())
    own = AUTHORITY.issue("printer")
    with calling(receiver.port, "west", PRINTER, own) as link, pytest.raises(PeerRefusedError) as caught:
        CALLS[call](link, west)
    assert caught.value.reason in ("NOT_GRANTED", "WRONG_CLUSTER") and caught.value.hint
    assert (west.ledger.tables.all(), west.ledger.landing.routes()) == before


def test_a_stranger_learns_no_more_than_who_is_there(west: Site, receiver: Receiver) -> None:
    with calling(receiver.port, "west", PRINTER, AUTHORITY.issue("printer")) as link:
        found = link.describe()
    assert (found.cluster, found.granted, found.peers) == (west.cluster, (), {})


def test_a_certificate_lets_nobody_call_in_anothers_name(west: Site, receiver: Receiver) -> None:
    for claimed in (ClusterId("east", uuid4()), west.cluster):
        own = AUTHORITY.issue("printer")
        refused = pytest.raises(PeerRefusedError, match="the certificate is for printer")
        with calling(receiver.port, "west", claimed, own) as link, refused:
            link.describe()


def test_a_caller_that_is_defined_here_is_let_in_by_its_pinned_incarnation_only(west: Site, receiver: Receiver) -> None:
    east = ClusterId("east", uuid4())
    west.send_to_cluster(east)
    with calling(receiver.port, "west", east, AUTHORITY.issue("east")) as link:
        link.ship(Hello(east, west.cluster, 1, "test")).close()
    copy, issued = ClusterId("east", uuid4()), AUTHORITY.issue("east")
    refused = pytest.raises(PeerRefusedError, match="knows east as")
    with calling(receiver.port, "west", copy, issued) as link, refused as caught:
        link.ship(Hello(copy, west.cluster, 1, "test"))
    assert caught.value.reason == "NOT_GRANTED" and "deletecluster east" in caught.value.hint


LOCAL = f"""
import os
import sys
from uuid import uuid4
from replication.core.ids import ClusterId
from replication.errors import PeerRefusedError
from replication.link.grpc_client import connect
os.setuid({NOBODY})
link = connect("127.0.0.1:" + sys.argv[1], "west", ClusterId("east", uuid4()), timeout_s=20.0)
try:
    link.describe()
except PeerRefusedError as error:
    print(error.reason, error)
"""


def test_another_user_of_the_machine_is_refused_without_tls(tmp_path: Path) -> None:
    site = Site(tmp_path, "west")
    try:
        with site.receiver() as receiver:
            said = run_as_nobody(LOCAL, str(receiver.port))
            assert said.startswith("NOT_GRANTED east calls without TLS") and "set tls.ca" in said
            with calling(receiver.port, "west", ClusterId("east", uuid4()), None) as link:
                assert link.describe().cluster == site.cluster
    finally:
        site.close()


LISTENS = f"""
import os
import socket
os.setuid({NOBODY})
port = socket.create_server(("127.0.0.1", 0))
print(port.getsockname()[1], flush=True)
port.accept()
print("called", flush=True)
"""


def test_another_user_that_took_a_receivers_port_is_sent_nothing_without_tls() -> None:
    """It would get all rows and invitations, and files that it says it has applied would be deleted."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    here, there = ClusterId("east", uuid4()), ClusterId("west", uuid4())
    calls: tuple[Callable[[PeerLink], object], ...] = (
        lambda link: link.describe("a secret"),
        lambda link: link.progress([]),
        lambda link: link.ship(Hello(here, there, 1, "test")),
        lambda link: link.compare(here, there),
        lambda link: list(link.read(here, FileId(here, "h0", 1), [(256, 300)])),
    )
    with subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        try:
            link = connect(f"127.0.0.1:{stranger.stdout.readline().strip()}", "west", here, timeout_s=1)
            for call in calls:
                with pytest.raises(PeerUnavailableError, match="another user of this machine listens"):
                    call(link)
            link.close()
        finally:
            stranger.kill()
        assert not stranger.stdout.read()
