"""Who may ask the timeline's server, and what questions that are not questions cost it."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path

import httpx
import pytest

from peer.polling import polls
from peer.timeline.client import TimelineAddress, TimelineClient
from peer.timeline.listing import FolderListings
from peer.timeline.serving.server import TimelineServer
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.views import Views
from replication import config as configuration
from replication.errors import ConfigError, ReplicationError, RequestError
from replication.settings import TimelineSection, TlsSection, split_address
from tests.certificates import tls_section
from tests.datasets_made import OUT, Dataset
from tests.hostile import NOBODY, memory_below, run_as_nobody
from tests.integration.test_link_tls import AUTHORITY
from tests.unit.peer.timeline.test_serving import KNOWN, LISTEN

pytestmark = pytest.mark.heavy

ASK = f"""
import encodings.idna
import os
import sys
from http.client import HTTPConnection
os.setuid({NOBODY})
asked = HTTPConnection(sys.argv[1], timeout=20)
asked.request("GET", sys.argv[2])
answer = asked.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.fixture
def dataset() -> Dataset:
    made = Dataset({"p/a@0": 1})
    made.publish("p/a@1", replaces=("p/a@0",))
    return made


@pytest.fixture
def views(dataset: Dataset) -> Views:
    return Views(dataset.timeline, MemoryViews(), dataset.listings())


@pytest.fixture
def server(views: Views) -> Iterator[TimelineServer]:
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection()) as made:
        yield made


@pytest.mark.parametrize("path", ["/v1/datasets", "/v1/jobs/nightly/copy", "/openapi.json", "/../etc/passwd"])
def test_without_tls_another_user_of_the_machine_is_told_nothing(server: TimelineServer, path: str) -> None:
    said = run_as_nobody(ASK, server.address, path)
    assert said.startswith("403 Without TLS only the user of the server is answered") and "tls.ca" in said
    assert httpx.get(f"http://{server.address}/v1/health", timeout=30).json()["status"] == "ok"


def test_plain_text_that_is_allowed_is_for_everybody(views: Views) -> None:
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection(allow_plaintext=True)) as server:
        assert run_as_nobody(ASK, server.address, "/v1/datasets").startswith("200 ")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("host", "evil.example"),
        ("host", "127.0.0.1.evil.example:80"),
        ("host", "localhost.:80"),
        ("host", "10.0.0.7"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
    ],
)
def test_web_pages_that_the_user_opens_are_told_nothing(server: TimelineServer, header: str, value: str) -> None:
    """A page's own name may resolve to this machine, and a page may send a form to any address."""
    with httpx.Client(base_url=f"http://{server.address}", headers={header: value}, timeout=30) as page:
        for answer in (page.get("/v1/datasets"), page.post("/v1/refresh", params={"dataset": OUT})):
            assert answer.status_code == 403 and OUT not in answer.text
    for name in (server.address, "127.0.0.1", "localhost:1", "[::1]:80"):
        assert httpx.get(f"http://{server.address}/v1/datasets", headers={"host": name}, timeout=30).status_code == 200


def test_no_page_of_the_server_loads_scripts_from_elsewhere(server: TimelineServer) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert httpx.get(f"http://{server.address}{path}", timeout=30).status_code == 404


def test_a_certificate_of_another_cluster_is_hung_up_on_and_leaves_no_error(
    views: Views, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {name: tls_section(tmp_path, AUTHORITY.issue(name), f"{name}-") for name in ("east", "west")}
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection(**files["east"])) as server:
        for name, others in files.items():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(others["ca"])
            context.check_hostname = False
            context.load_cert_chain(others["cert"], others["key"])
            with httpx.Client(base_url=f"https://{server.address}", verify=context, timeout=30) as ask:
                if name == "east":
                    assert ask.get("/v1/health").json()["status"] == "ok"
                else:
                    with pytest.raises(httpx.TransportError):
                        ask.get("/v1/health")
        section = TimelineSection(service=True, server=server.address)
        client = TimelineClient(TimelineAddress("east", "", section, TlsSection(**files["east"]), ""))
        assert client.partitions(OUT) == ["p"] and not client.is_away
    assert not [each for each in caplog.records if each.name == "asyncio"]


def test_a_revoked_certificate_of_the_cluster_itself_is_hung_up_on(views: Views, tmp_path: Path) -> None:
    stolen, good = (tls_section(tmp_path, AUTHORITY.issue("east"), f"{name}-") for name in ("stolen", "good"))
    fingerprint = sha256(ssl.PEM_cert_to_DER_cert(Path(stolen["cert"]).read_text())).hexdigest()
    (tmp_path / "deny").write_text(f"{fingerprint}\n")
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection(**good, deny=tmp_path / "deny")) as server:
        section = TimelineSection(service=True, server=server.address)
        for files, is_answered in ((stolen, False), (good, True)):
            client = TimelineClient(TimelineAddress("east", "", section, TlsSection(**files), ""))
            found = client._ask("/v1/partitions", {"dataset": OUT}, lambda raw: raw["names"])
            assert (found == ["p"], client.is_away) == (is_answered, not is_answered)


def test_a_certificate_that_is_revoked_while_its_connection_is_open_is_hung_up_on(views: Views, tmp_path: Path) -> None:
    files, deny = tls_section(tmp_path, AUTHORITY.issue("east")), tmp_path / "deny"
    deny.touch()
    section = TimelineSection(service=True)
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection(**files, deny=deny)) as server:
        client = TimelineClient(TimelineAddress("east", "", section, TlsSection(**files), ""))
        with closing(client._connection(*split_address(server.address))) as connection:

            def ask() -> int:
                connection.request("GET", "/v1/health")
                with connection.getresponse() as answer:
                    answer.read()
                    return answer.status

            assert ask() == 200
            deny.write_text(f"{sha256(ssl.PEM_cert_to_DER_cert(Path(files['cert']).read_text())).hexdigest()}\n")
            with pytest.raises((OSError, HTTPException)):
                for _ in polls(10.0, 0.2):
                    assert ask() == 200


def test_names_of_any_length_and_paths_are_refused_and_not_remembered(server: TimelineServer, views: Views) -> None:
    partitions = ["../../etc", "/etc", "a//b", "p/../../..", ".", "x" * 5000]
    with memory_below(32), httpx.Client(base_url=f"http://{server.address}", timeout=30) as ask:
        for number in range(60):
            name = f"{partitions[number % len(partitions)]}{'y' * 40_000 if number > 20 else ''}/{number}"
            asked = {"dataset": OUT, "partition": name}
            assert ask.get("/v1/slices/latest", params=asked).status_code in (200, 400, 422)
        for time in (-1, 2**63, 10**300, "x"):
            answer = ask.get("/v1/slices/as-of", params={"dataset": OUT, "partition": "p", "time": time})
            assert answer.status_code in (200, 400, 422)
        assert ask.get("/v1/slices/latest", params={"dataset": OUT, "limit": 10**9}).status_code == 422
        assert ask.get("/v1/timeline", params={"hash": "x"}).status_code == 200
        assert ask.post("/v1/refresh", params={"dataset": OUT, "partition": "z" * 5000}).status_code == 422
        for name in ("file", "after", "hash"):
            asked = {"dataset": OUT, "partition": "p", name: "z" * 5000}
            assert ask.get("/v1/slices/latest", params=asked).status_code == 422
        assert ask.get("/v1/timeline", params={"hash": "z" * 5000}).status_code == 422
        assert ask.get("/v1/health").json()["status"] == "ok"
    assert not views._listing
    assert all(len(name) <= 4096 for _, name in views._known._missing)


def test_a_partition_that_cannot_be_listed_leaves_nothing_behind(dataset: Dataset) -> None:
    class Failing:
        def partitions(self, dataset: str, root: str) -> list[str]:
            return []

        def files(self, dataset: str, root: str, partition: str) -> list[object]:
            raise RequestError(f"{partition} is not a partition", "Name another")

    views = Views(dataset.timeline, MemoryViews(), Failing())
    for number in range(10):
        with pytest.raises(RequestError):
            views.latest(OUT, f"{number}/..")
    assert not views._listing


@pytest.mark.parametrize("name", ["x::file:", "a::memory", "p::simplecache", "reference::x", "~", "$HOME", "p?x#y"])
def test_a_partition_that_looks_like_an_address_is_a_folder(tmp_path: Path, name: str) -> None:
    """No driver is loaded, and no other place is listed, because a question names it."""
    folder = tmp_path / "lake" / name
    folder.mkdir(parents=True)
    (folder / "rows").write_text("1")
    found = FolderListings().files("lake", f"file://{tmp_path}/lake", name)
    assert [each.path for each in found] == [f"{name}/rows"]
    with pytest.raises(ReplicationError):
        FolderListings().files("lake", f"file://{tmp_path}/lake", f"{name}/../../..")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_dataset_in_a_folder_with_colons_is_listed(tmp_path: Path, form: str) -> None:
    root = tmp_path / "lake::x"  # for fsspec two addresses
    (root / "p").mkdir(parents=True)
    (root / "p/a").write_text("abc")
    listings = FolderListings()
    assert listings.partitions("d", form.format(root)) == ["p"]
    assert [version.path for version in listings.files("d", form.format(root), "p")] == ["p/a"]


def test_a_server_beyond_loopback_is_asked_over_tls_or_plain_text_is_asked_for() -> None:
    given: dict[str, dict[str, object]] = {"cluster": {"name": "east"}, "timeline": {"server": "db:9000"}}
    with pytest.raises(ConfigError, match=r"timeline\.server: db:9000 is not loopback and there is no TLS"):
        configuration.load(None, given, {})
    configuration.load(None, {**given, "tls": {"allow_plaintext": True}}, {})


STRANGER = f"""
import json
import os
import socket
os.setuid({NOBODY})
port = socket.create_server(("127.0.0.1", 0))
print(port.getsockname()[1], flush=True)
answer = json.dumps(dict(names=["theirs"], instant=1 << 60, hash="x")).encode()
while True:
    asked = port.accept()[0]
    asked.recv(1 << 16)
    asked.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n%s" % (len(answer), answer))
"""


def test_another_user_that_took_the_port_of_the_server_is_not_believed(tmp_path: Path) -> None:
    """A server that was killed leaves the file with its address, and its port to anybody."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    section, asked = TimelineSection(service=True), list[object]()
    with subprocess.Popen([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        file = tmp_path / "timeline.server"
        file.write_text(f"127.0.0.1:{stranger.stdout.readline()}")
        client = TimelineClient(TimelineAddress("east", "", section, TlsSection(), str(file)))
        found = client._ask("/v1/partitions", {"dataset": OUT}, asked.append)
        stranger.kill()
    assert (found, client.is_away, asked) == (None, True, [])
