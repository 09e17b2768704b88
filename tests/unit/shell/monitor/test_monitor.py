"""The monitor's page, JSON and metrics over HTTP, with a real ledger."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from peer.client.cluster import Cluster
from peer.status.collect import ClusterStatus, collect
from peer.status.members import Members, members_of
from replication import config as configuration
from replication.core.ids import ClusterId
from replication.core.succession import Succession
from replication.errors import ConfigError, StorageError
from replication.settings import MonitorSection
from shell.cli.render import to_json
from shell.main import run
from shell.monitor import server as serving
from shell.monitor.metrics import metrics_text
from shell.monitor.page import status_html
from shell.monitor.sampling import Lags, SampledStatus, lags
from shell.monitor.server import MonitorServer
from shell.processes.roles import make_ledger, run_role
from shell.processes.up import chosen_roles
from tests.sites import Site, rows, table
from tests.waiting import wait_until

HOSTILE = '<script>alert("x")</script>'


class Pages:
    """A monitor of a cluster that sends a table to a peer which is away."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.site = Site(folder, "east")
        stack.callback(self.site.close)
        self.west = Site(folder, "west")
        stack.callback(self.west.close)
        spec = table()
        self.site.ledger.tables.create(spec)
        self.site.send_to(self.west, spec)
        self.site.wal().append(spec, rows(0, 10))
        self.failure: Exception | None = None
        self.sampled = stack.enter_context(SampledStatus(self.read))
        self.server = MonitorServer(self.sampled, 0, "Choose another")
        stack.enter_context(self.server.serving())

    def read(self) -> ClusterStatus:
        if self.failure:
            raise self.failure
        return collect(self.site.config, self.site.ledger, members_of(self.site.coordination))

    def get(self, path: str, host: str = "") -> tuple[int, str, str]:
        """The code, the kind and the body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        found = answer.status, answer.headers["Content-Type"].partition(";")[0], answer.read().decode()
        connection.close()
        return found


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with ExitStack() as stack:
        yield Pages(tmp_path, stack)


class Balanced(HTMLParser):
    """Fails on a tag that is not closed."""

    open: list[str]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "rect", "line", "path", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def check_html(page: str) -> None:
    parser = Balanced()
    parser.open = []
    parser.feed(page)
    assert parser.open == []


def test_the_page_the_json_and_the_metrics_have_the_same_status(pages: Pages) -> None:  # 004-35
    code, kind, page = pages.get("/")
    assert (code, kind) == (200, "text/html")
    check_html(page)
    assert "<h1>east</h1>" in page and "ops.flights" in page and "west" in page
    code, kind, text = pages.get("/status.json")
    assert (code, kind) == (200, "application/json")
    (row,) = json.loads(text)["peers"]
    code, kind, text = pages.get("/metrics")
    assert (code, kind) == (200, "text/plain")
    labels = '{peer="west",table="' + row["table"] + '",group="default"}'
    assert f"walship_lag_bytes{labels} {row['lag_bytes']}\n" in text and row["lag_bytes"] > 0
    assert 'walship_info{cluster="east",' in text
    assert pages.get("/monitor.js")[0] == 200
    code, _, text = pages.get("/walship.toml")
    assert code == 404 and "/metrics" in text


def test_every_metric_is_described_once_and_every_line_can_be_parsed(pages: Pages) -> None:
    lines = metrics_text(pages.read()).splitlines()
    described = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(described) == len(set(described)) and len(described) > 10
    for line in lines:
        if line.startswith("# HELP") and "since 1970" in line:
            assert line.split()[2].endswith("_timestamp_seconds"), "Prometheus' name for a point in time"
    sample = re.compile(r'([a-z_]+)(\{([a-z_]+="(\\.|[^"\\\n])*",?)*\})? -?[0-9.e+-]+\Z')
    for line in lines:
        match = sample.match(line)
        assert line.startswith("# ") or match and match[1] in described, line


def test_a_dropped_table_and_another_of_its_name_are_one_sample_of_each_metric(pages: Pages) -> None:
    (old,) = pages.read().peers
    made = table()
    pages.site.ledger.tables.drop(pages.site.ledger.tables.all()[0].uuid)
    pages.site.ledger.tables.create(made)
    pages.site.send_to(pages.west, made)
    pages.site.wal().append(made, rows(0, 10))
    found = pages.read()
    assert [row.dropped for row in found.peers] == [False, True]
    samples = [line.rpartition(" ")[0] for line in metrics_text(found).splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    both = sum(row.lag_bytes for row in found.peers)
    assert f'table="{old.table}",group="default"}} {both}\n' in metrics_text(found) and both > old.lag_bytes


def test_names_cannot_break_the_page_or_the_metrics(pages: Pages) -> None:
    found = pages.read()
    (row,) = found.peers
    (peer,) = found.sending
    hostile = replace(
        found,
        peers=(replace(row, peer=HOSTILE, table='a"b\n\\', last_error=HOSTILE + "\x1b[2J"),),
        sending=(replace(peer, peer=HOSTILE, retries=3, state="failing", last_error=HOSTILE),),
    )
    page = status_html(hostile, [Lags(1.0, lags(hostile)), Lags(6.0, lags(hostile))], 7.0)
    check_html(page)
    assert "<script>alert" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert 'table="a\\"b\\n\\\\"' in metrics_text(hostile)
    json.loads(to_json(hostile))


def test_of_many_tables_those_furthest_behind_are_shown(pages: Pages) -> None:
    found = pages.read()
    (row,) = found.peers
    many = tuple(replace(row, table=f"ops.t{number:05}", lag_s=float(number)) for number in range(10_000))
    page = status_html(replace(found, peers=many), [], 0.0)
    assert "ops.t09999" in page and "ops.t00000" not in page and "9,800 more: walship status" in page
    assert len(page) < 200_000


def test_what_needs_a_person_is_at_the_top(pages: Pages) -> None:
    assert ">All well<" in status_html(pages.read(), [], 0.0)
    west = ClusterId("west", uuid4())
    pages.site.ledger.successions.record(Succession(pages.site.cluster, west, 2, 7, is_planned=False))
    found = pages.read()
    page = status_html(found, [], 0.0)
    assert ">1 note<" in page and page.index("two clusters take writes") < page.index("<h2>Clusters</h2>")
    (peer,) = found.sending
    failing = replace(peer, state="failing", retries=3, last_error="nobody answers")
    page = status_html(replace(found, sending=(failing,)), [], 0.0)
    assert ">2 notes<" in page and "sending to west fails: nobody answers" in page


def test_lags_of_the_last_hour_are_drawn(pages: Pages) -> None:
    wait_until(pages.sampled.history)
    assert pages.sampled.history()[0].lag_s.keys() == {"to west"}
    history = [Lags(at, {"to west": at / 10, "from north": 1.0}) for at in (0.0, 30.0, 60.0)]
    page = status_html(pages.read(), history, 60.0)
    check_html(page)
    assert page.count("<polyline") == 2 and "to west" in page and "60 s ago" in page


def test_of_two_ids_of_a_cluster_the_one_that_is_further_behind_is_drawn(pages: Pages) -> None:
    found = pages.read()
    (origin, *_) = found.origins
    ages = {f"north:{uuid4()}": age_s for age_s in (5.0, 900.0, 7.0)}
    both = tuple(replace(origin, origin=each, age_s=age_s) for each, age_s in ages.items())
    assert lags(replace(found, origins=both))["from north"] == 900.0


def test_only_this_user_is_answered_and_only_under_a_name_of_this_host(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = pages.server.server_port
    assert pages.get("/", f"localhost:{port}")[0] == 200
    code, _, text = pages.get("/status.json", f"evil.example:{port}")
    assert code == 403 and "localhost" in text and "peers" not in text
    asked = []

    def is_own(peer: str, here: int) -> bool:
        asked.append((peer.rpartition(":")[0], here))
        return False

    monkeypatch.setattr(serving, "is_own", is_own)
    code, _, text = pages.get("/status.json")
    assert code == 403 and "peers" not in text and asked == [("ipv4:127.0.0.1", port)]


def test_another_user_s_connection_that_says_nothing_has_no_thread(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "is_own", lambda *_: False)
    for _ in range(3):
        address = "127.0.0.1", pages.server.server_port
        with socket.create_connection(address, timeout=serving._TIMEOUT_S / 2) as silent:
            assert silent.recv(1 << 16).startswith(b"HTTP/1.0 403 Forbidden\r\n")


def test_a_status_that_cannot_be_read_is_told_and_comes_back(pages: Pages) -> None:
    pages.failure = StorageError("the ledger <is> locked", "Wait")
    wait_until(lambda: pages.get("/")[0] == 503)
    page = pages.get("/")[2]
    check_html(page)
    assert "the ledger &lt;is&gt; locked" in page and "Wait" in page
    assert pages.get("/metrics")[0] == pages.get("/status.json")[0] == 503
    pages.failure = None
    assert pages.get("/")[0] == 200


def test_an_unforeseen_error_ends_one_request(pages: Pages) -> None:
    def is_cut() -> bool:
        try:
            return pages.get("/")[0] != 200
        except http.client.RemoteDisconnected:
            return True

    pages.failure = ValueError("unforeseen")
    wait_until(is_cut)
    pages.failure = None
    assert pages.get("/")[0] == 200


def test_one_status_serves_all_who_ask_within_a_second() -> None:
    calls = []

    def read() -> ClusterStatus:
        calls.append(time.monotonic())
        return cast(ClusterStatus, "the status")

    sampled = SampledStatus(read)
    threads = [threading.Thread(target=sampled.status) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gaps = [later - sooner for sooner, later in zip(calls, calls[1:], strict=False)]
    assert all(gap >= 1.0 for gap in gaps)


def test_up_serves_the_page_where_a_port_is_configured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, nobody = one.getsockname()[1], other.getsockname()[1]
    file = tmp_path / "walship.toml"
    text = configuration.default_toml("east", ".", zookeeper={"port": nobody}, monitor={"port": port})
    file.write_text(text, encoding="utf-8")
    config = configuration.load(file)
    assert "monitor" in chosen_roles(config, "") and chosen_roles(config, "monitor") == ("monitor",)
    unset = config.model_copy(update={"monitor": MonitorSection()})
    assert "monitor" not in chosen_roles(unset, "")
    make_ledger(config)
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=run_role, args=("monitor", config, stop, ready.set))
    thread.start()
    assert ready.wait(60)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert "walship_coordination_answers 0\n" in answer.read().decode()
    stop.set()
    thread.join()


def test_a_monitor_that_was_stopped_leaves_sigterm_to_the_interactive_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(configuration.default_toml("east"), encoding="utf-8")
    make_ledger(configuration.load(file))
    monkeypatch.setattr(Cluster, "status", lambda cluster: collect(cluster.config, cluster.ledger, Members()))

    def handler(*_: object) -> None:
        """As the shell has one of its own."""

    def stop() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not handler)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        thread = threading.Thread(target=stop)
        thread.start()
        assert run(["--cluster", str(file), "monitor", "--port", "0"]) == 0
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_port_that_is_taken_is_told(pages: Pages) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened on: Address already in use"):
            MonitorServer(pages.sampled, port, "Choose another: --port PORT")
