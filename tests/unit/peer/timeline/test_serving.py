"""The timeline's server: its answers, its errors, and where it listens."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from peer.timeline.serving.server import TimelineServer
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.views import Views
from replication.core.timeline.instants import Action, Changes, Instant, InstantState
from replication.errors import ConfigError
from replication.settings import TimelineSection, TlsSection
from tests.datasets_made import OUT, Dataset

pytestmark = pytest.mark.heavy

LISTEN = TimelineSection(listen="127.0.0.1:0", service=True)


class Known:
    """A cluster with one job and one table."""

    def job(self, name: str) -> Mapping[str, Any] | None:
        if name == "broken":
            raise OSError("the disk is gone")
        if name == "leaking":
            raise RuntimeError("no answer of postgresql://walship:geheim@db/catalog")
        return {"name": name, "source": "file:///in", "target": "file:///out"} if name == "nightly/copy" else None

    def table_instants(self, name: str) -> list[Instant] | None:
        if name != "ops.flights":
            return None
        return [Instant(7, Action.FOLD, InstantState.COMPLETED, name, key="up to commit 3", completed=7)]


KNOWN = Known()


@pytest.fixture
def dataset() -> Dataset:
    made = Dataset({"p/a@0": 1, "p/b@0": 1})
    made.publish("p/a@1", replaces=("p/a@0",))
    return made


@pytest.fixture
def server(dataset: Dataset, tmp_path: Path) -> Iterator[TimelineServer]:
    views = Views(dataset.timeline, MemoryViews(), dataset.listings())
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection(), tmp_path / "run" / "server") as made:
        yield made


@pytest.fixture
def ask(server: TimelineServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.address}", timeout=30) as client:
        yield client


def test_slices_are_served_latest_as_of_and_all(ask: httpx.Client, dataset: Dataset) -> None:  # 003-5
    second = dataset.publish("p/a@2", "p/c@2", replaces=("p/a@1",))

    def files(kind: str, **asked: Any) -> list[str]:
        found = ask.get(f"/v1/slices/{kind}", params={"dataset": OUT, "partition": "p", **asked}).json()
        return [each["whole"]["path"] for each in found["slices"]]

    assert files("latest") == ["p/a@2", "p/b@0", "p/c@2"]
    assert files("latest", file="p/a") == ["p/a@2"]
    assert files("as-of", time=second.completed - 1) == ["p/a@1", "p/b@0"]
    assert files("all") == ["p/a@0", "p/a@1", "p/a@2", "p/b@0", "p/c@2"]
    assert dataset.calls == ["p"]


def test_large_answers_come_in_pages(ask: httpx.Client) -> None:
    asked = {"dataset": OUT, "partition": "p", "limit": 1}
    first = ask.get("/v1/slices/latest", params=asked).json()
    assert ([each["file"] for each in first["slices"]], first["next"]) == (["p/a"], "p/a")
    last = ask.get("/v1/slices/latest", params={**asked, "after": "p/a"}).json()
    assert ([each["file"] for each in last["slices"]], last["next"]) == (["p/b"], None)


def test_a_dataset_whose_name_is_no_utf_8_is_listed_beside_the_others(ask: httpx.Client, dataset: Dataset) -> None:
    dataset.timeline.record(Action.COPY, "file:///caf\udce9", Changes())
    assert ask.get("/v1/datasets").json()["names"] == ["file:///caf\udce9", OUT]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_file_with_more_slices_than_a_page_comes_whole(ask: httpx.Client, dataset: Dataset, limit: int) -> None:
    dataset.publish("p/a@2", replaces=("p/a@1",))
    asked: dict[str, Any] = {"dataset": OUT, "partition": "p", "limit": limit}
    first = ask.get("/v1/slices/all", params=asked).json()
    rest = {} if first["next"] is None else ask.get("/v1/slices/all", params={**asked, "after": first["next"]}).json()
    found = [each["whole"]["path"] for each in first["slices"] + rest.get("slices", [])]
    assert found == ["p/a@0", "p/a@1", "p/a@2", "p/b@0"]


@pytest.mark.parametrize("kind", ["latest", "all", "as-of"])
def test_a_page_names_the_state_that_its_slices_are_of(
    server: TimelineServer, ask: httpx.Client, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    views = server._views
    views.sync()
    name = kind.replace("-", "_")
    read = getattr(views, name)

    def publish_first(*asked: Any) -> Any:
        monkeypatch.setattr(views, name, read)
        dataset.publish("p/c@2")
        views.sync()  # as another request does
        return read(*asked)

    monkeypatch.setattr(views, name, publish_first)
    found = ask.get(f"/v1/slices/{kind}", params={"dataset": OUT, "partition": "p", "time": 1000}).json()
    assert [each["file"] for each in found["slices"]][-1] == "p/c"
    assert found["hash"] == dataset.timeline.state().hash


def test_instants_pending_operations_hash_and_names_are_served(ask: httpx.Client, dataset: Dataset) -> None:
    asked = dataset.timeline.request(Action.FOLD, OUT)  # 003-4
    instants = ask.get("/v1/timeline", params={"dataset": OUT}).json()["instants"]
    assert [(each["action"], each["state"]) for each in instants] == [
        ("copy", "requested"),
        ("copy", "inflight"),
        ("copy", "completed"),
        ("fold", "requested"),
    ]
    assert [each["time"] for each in ask.get("/v1/pending", params={"dataset": OUT}).json()] == [asked.time]
    state = dataset.timeline.state()
    assert ask.get("/v1/timeline/hash").json() == {
        "number": state.number,
        "instant": state.instant,
        "hash": state.hash,
    }
    assert ask.get(f"/v1/timeline/instants/{asked.time}").json()["action"] == "fold"
    assert ask.get("/v1/timeline/instants/12345").status_code == 404
    assert ask.get("/v1/datasets").json()["names"] == [OUT]
    assert ask.get("/v1/partitions", params={"dataset": OUT}).json()["names"] == ["p"]
    assert ask.get("/v1/health").json()["status"] == "ok"


def test_instants_are_served_whatever_bytes_the_names_of_their_folders_have(
    ask: httpx.Client, dataset: Dataset
) -> None:
    odd = "no utf-8 \udce9"
    instant, _ = dataset.begin(f"{odd}/a@0")
    (pending,) = ask.get("/v1/pending").raise_for_status().json()
    one = ask.get(f"/v1/timeline/instants/{instant.time}").raise_for_status().json()
    last = ask.get("/v1/timeline").raise_for_status().json()["instants"][-1]
    assert pending == one == last and last["partitions"] == [odd]


def test_a_client_that_knows_a_newer_instant_makes_the_server_catch_up(ask: httpx.Client, dataset: Dataset) -> None:
    before = dataset.timeline.state()
    ask.get("/v1/slices/latest", params={"dataset": OUT, "partition": "p"})
    dataset.publish("p/c@2")
    known = {"dataset": OUT, "partition": "p", "instant": before.instant, "hash": before.hash}
    dataset.records.reads = 0
    stale = ask.get("/v1/slices/latest", params=known).json()  # 003-14
    assert (stale["hash"], dataset.records.reads) == (before.hash, 0), "the same is known here: nothing is read"
    newer = dataset.timeline.state()
    found = ask.get(
        "/v1/slices/latest",
        params={**known, "instant": newer.instant, "hash": newer.hash},
    ).json()
    assert [each["file"] for each in found["slices"]] == ["p/a", "p/b", "p/c"]
    news = ask.get("/v1/timeline", params={"hash": before.hash}).json()
    assert ({each["completed"] for each in news["instants"]} - {0}, news["complete"]) == ({newer.instant}, True)
    other = ask.get("/v1/datasets", params={"instant": 10**18, "hash": "of another history"})
    assert other.status_code == 409


def test_refresh_lists_a_partition_again(ask: httpx.Client, dataset: Dataset) -> None:
    asked = {"dataset": OUT, "partition": "p"}
    ask.get("/v1/slices/latest", params=asked)
    dataset.files["p/found@0"] = 1
    assert ask.post("/v1/refresh", params=asked).status_code == 200
    assert len(ask.get("/v1/slices/latest", params=asked).json()["slices"]) == 3
    assert dataset.calls == ["p", "p"]


def test_a_jobs_specification_is_found_missing_or_failing(ask: httpx.Client) -> None:  # 001-26
    found = ask.get("/v1/jobs/nightly/copy")
    assert (found.status_code, found.json()["target"]) == (200, "file:///out")
    missing = ask.get("/v1/jobs/none")
    assert (missing.status_code, missing.json()["error"]) == (404, "there is no job none")
    broken = ask.get("/v1/jobs/broken")
    assert (broken.status_code, broken.json()["error"]) == (500, "OSError: the disk is gone")
    assert broken.headers["connection"] == "close"  # the server closes it; the next request must take another
    assert ask.get("/v1/jobs/leaking").json()["error"].endswith("postgresql://walship:***@db/catalog")


def test_the_instants_of_a_table_are_served(ask: httpx.Client) -> None:
    found = ask.get("/v1/tables/ops.flights/instants")
    (fold,) = found.json()
    assert [fold[name] for name in ("action", "dataset", "key")] == ["fold", "ops.flights", "up to commit 3"]
    missing = ask.get("/v1/tables/ops.none/instants")
    assert (missing.status_code, missing.json()["error"]) == (404, "there is no table ops.none")


def test_unknown_datasets_gone_files_and_a_lost_store_are_told_apart(ask: httpx.Client, dataset: Dataset) -> None:
    assert ask.get("/v1/slices/latest", params={"dataset": "file:///etc"}).status_code == 404
    outside = ask.get("/v1/slices/latest", params={"dataset": OUT, "partition": "p", "limit": 0})
    assert outside.status_code == 422
    second = dataset.publish("p/a@2", replaces=("p/a@1",))
    dataset.clean("p/a@0", "p/a@1", retained=second.completed)
    gone = ask.get("/v1/slices/as-of", params={"dataset": OUT, "partition": "p", "time": 1})
    assert (gone.status_code, "a later instant" in gone.json()["hint"]) == (400, True)
    dataset.records.lost = True
    lost = ask.get("/v1/health")
    assert (lost.status_code, lost.json()["error"]) == (503, "the timeline's store does not answer")


def test_the_interface_is_documented_in_openapi(ask: httpx.Client) -> None:
    document = ask.get("/openapi.json").json()
    paths = document["paths"]
    for path in ("latest", "as-of", "all"):
        answers = paths[f"/v1/slices/{path}"]["get"]["responses"]
        assert answers["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Slices")
        assert {"400", "404", "409", "500", "503"} <= answers.keys()
    slice_ = document["components"]["schemas"]["Slice"]["properties"]
    assert slice_["base"]["description"] == "the time of the instant that began the slice"
    assert "200" in paths["/v1/jobs/{job}"]["get"]["responses"]


def test_names_that_are_not_utf_8_are_served(ask: httpx.Client, dataset: Dataset) -> None:
    dataset.files["p/\udce9@0"] = 1
    found = ask.get("/v1/slices/latest", params={"dataset": OUT, "partition": "p"}).json()
    assert "p/\udce9@0" in [each["whole"]["path"] for each in found["slices"]]


def test_the_address_is_in_a_file_while_the_server_runs(dataset: Dataset, tmp_path: Path) -> None:
    views = Views(dataset.timeline, MemoryViews(), dataset.listings())
    with TimelineServer("east", views, KNOWN, LISTEN, TlsSection(), tmp_path / "server") as server:
        assert (tmp_path / "server").read_text().strip() == server.address
        assert server.address.startswith("127.0.0.1:")
    assert not (tmp_path / "server").exists()


def test_a_port_that_is_taken_does_not_keep_the_server_from_running(dataset: Dataset) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        section = TimelineSection(listen=f"127.0.0.1:{taken.getsockname()[1]}")
        views = Views(dataset.timeline, MemoryViews(), dataset.listings())
        with TimelineServer("east", views, KNOWN, section, TlsSection()) as server:
            assert server.address != section.listen
            assert httpx.get(f"http://{server.address}/v1/health").status_code == 200


def test_off_loopback_without_tls_is_refused(dataset: Dataset) -> None:
    views = Views(dataset.timeline, MemoryViews(), dataset.listings())
    section = TimelineSection(listen="0.0.0.0:0")
    with pytest.raises(ConfigError, match="no TLS"), TimelineServer("east", views, KNOWN, section, TlsSection()):
        pass


def test_without_fastapi_the_error_names_the_extra(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    views = Views(dataset.timeline, MemoryViews(), dataset.listings())
    with (
        pytest.raises(ConfigError, match=r"walship\[timeline\]"),
        TimelineServer("east", views, KNOWN, LISTEN, TlsSection()),
    ):
        pass
