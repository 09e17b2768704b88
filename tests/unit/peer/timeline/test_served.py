"""The server as a cluster's configuration has it: a role of up, the specifications of datasets, and a SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from peer.timeline.client import TimelineAddress, TimelineClient, address_file
from replication import config as configuration
from replication.config import Config
from replication.datasets.declared.definitions import DatasetDefinition, DatasetFile
from replication.datasets.publication.recording import RecordedDataset
from replication.datasets.stores.local import LocalStore
from shell.processes.roles import run_role
from shell.processes.up import chosen_roles
from tests.copying import job, write_tree
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "walship.toml"
    section = {"service": True, "retry_min_s": 0.01, "retry_max_s": 0.05}
    file.write_text(configuration.default_toml("east", str(tmp_path / "data"), timeline=section))
    return configuration.load(file)


def copy(config: Config, at: Path, **files: bytes) -> None:
    write_tree(at / "src", {f"p/{name}": content for name, content in files.items()})
    made = job(LocalStore(str(at / "src")), LocalStore(str(at / "dst")))
    made.recorded = RecordedDataset(config.timeline_url, "lake")
    made.run()


def paths(client: TimelineClient) -> list[str]:
    return [each.whole.path for each in client.latest("lake", "p") if each.whole is not None]


@contextmanager
def as_role(config: Config) -> Iterator[str]:
    """The address of the server, which runs as a role does."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=run_role, args=("timeline", config, stop, ready.set))
    thread.start()
    try:
        wait_until(ready.is_set, timeout_s=60)
        yield f"http://{address_file(config).read_text().strip()}"
    finally:
        stop.set()
        thread.join()


def test_the_server_is_a_role_of_up_where_a_service_of_this_host_is_asked_for(config: Config) -> None:
    assert "timeline" in chosen_roles(config, "")  # 003-5, 003-21
    assert chosen_roles(config, "timeline") == ("timeline",), "it needs no ZooKeeper"
    plain = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(config.data_dir)}})
    assert "timeline" not in chosen_roles(plain, "")


def test_a_declared_datasets_specification_is_served_without_its_secrets(config: Config) -> None:
    config.data_dir.mkdir(parents=True)
    options = {"username": "ann", "password": "secret", "token": "$TOKEN"}
    DatasetFile(config.datasets_file).add(DatasetDefinition("nightly", "/in", "/out", source_options=options))
    with as_role(config) as url:
        found = httpx.get(f"{url}/v1/jobs/nightly")  # 001-26
        assert (found.status_code, found.json()["target"], found.json()["finder"]) == (200, "/out", "folder")
        assert found.json()["source_options"] == {"username": "…", "password": "…", "token": "$TOKEN"}
        assert httpx.get(f"{url}/v1/jobs/weekly").status_code == 404
        assert httpx.get(f"{url}/v1/tables/ops.flights/instants").status_code == 404, "no cluster was made"
        config.datasets_file.write_text("this is no TOML")
        broken = httpx.get(f"{url}/v1/jobs/nightly")
        assert (broken.status_code, "cannot be read" in broken.json()["error"]) == (500, True)


@contextmanager
def as_process(config: Config) -> Iterator[subprocess.Popen[bytes]]:
    """``walship timeline serve`` as a process, which answers; it is killed at the end, if it is still there."""
    command = [
        sys.executable,
        "-m",
        "shell.main",
        "timeline",
        "serve",
        "--cluster",
        str(config.data_dir.parent / "walship.toml"),
    ]
    address_file(config).unlink(missing_ok=True)  # a killed one leaves it
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
    try:
        wait_until(lambda: address_file(config).exists(), timeout_s=60)
        yield server
    finally:
        server.kill()
        server.wait()


def test_after_a_sigkill_clients_answer_the_same_and_go_back_to_the_next_server_which_lists_nothing_again(
    config: Config, tmp_path: Path
) -> None:
    copy(config, tmp_path, a=b"1")
    with closing(TimelineClient(TimelineAddress.of(config))) as client:
        with as_process(config) as server:
            assert paths(client) == ["p/a"]
            assert not client.is_away
            server.send_signal(signal.SIGKILL)
            server.wait()
            assert paths(client) == ["p/a"]  # 003-8, 003-13
            assert client.is_away
            copy(config, tmp_path, b=b"2")
            assert paths(client) == ["p/a", "p/b"]
        (tmp_path / "dst/p/stray").write_bytes(b"only a listing sees this")
        with as_process(config):  # 003-14, 003-15, 003-18
            wait_until(lambda: paths(client) == ["p/a", "p/b"] and not client.is_away, timeout_s=60)
            with closing(TimelineClient(TimelineAddress.of(config))) as other:
                assert paths(other) == ["p/a", "p/b"], "the checkpoint of the killed server has the partition"
                assert not other.is_away
