"""Verbs that only read while ZooKeeper accepts connections and says nothing, as a frozen one does."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replication.errors import CoordinationError
from shell import main
from tests.sites import Site, table

pytestmark = pytest.mark.heavy

_BOUND_S = 7.0  # status waits for two seconds; a session's ten would be too long


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The configuration of a cluster with a table, and the address of its ZooKeeper."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        site = Site(tmp_path, "east", zookeeper={"port": port, "listen": "127.0.0.1"})
        site.ledger.tables.create(table())
        site.close()
        (tmp_path / "walship.toml").write_text(
            f'[cluster]\nname = "east"\ndata_dir = "{site.config.data_dir}"\n'
            f'[ledger]\nurl = "{site.config.ledger_url}"\n[zookeeper]\nport = {port}\nlisten = "127.0.0.1"\n'
        )
        yield str(tmp_path / "walship.toml"), f"127.0.0.1:{port}"


def test_status_says_soon_that_zookeeper_does_not_answer_and_what_the_ledger_knows(
    cluster: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    config, address = cluster
    began = time.monotonic()
    assert main.run(["status", "-c", config]) == 0
    assert time.monotonic() - began < _BOUND_S
    out, err = capsys.readouterr()
    [line] = [line for line in err.splitlines() if "ZooKeeper does not tell what runs" in line]
    assert f"ZooKeeper at {address} did not answer within 2 s" in " ".join(err.split())
    assert "kill its process, and another is started" in " ".join(err.split())
    assert "ops.flights" in out


def test_a_verb_that_needs_zookeeper_says_how_to_start_it(
    cluster: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.client.opened._CONNECT_TIMEOUT_S", 1.0)
    assert main.run(["readonly", "-c", cluster[0], "--json"]) == CoordinationError.exit_code
    assert json.loads(capsys.readouterr().err)["hint"].startswith("Start the cluster: walship up. If it runs")


def test_lists_of_tables_and_peers_do_not_ask_zookeeper(
    cluster: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    config, _ = cluster
    began = time.monotonic()
    for verb in (["listtables"], ["describetable", "ops.flights"], ["listclusters"]):
        assert main.run([*verb, "-c", config, "--json"]) == 0
    assert time.monotonic() - began < _BOUND_S
    assert json.loads(capsys.readouterr().out.splitlines()[0])[0]["name"] == "ops.flights"
