"""Reads of a following handle go on while no cluster is ACTIVE: they do not wait for one, as appends do."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from peer.client import following
from peer.client.cluster import Cluster
from peer.client.following import FollowingCluster
from peer.client.search import OpenedCluster
from replication.errors import CoordinationError, ReadOnlyClusterError
from tests.waiting import wait_until


class Silent:
    """The coordination of a cluster whose ZooKeeper does not answer, which each call finds after ``takes_s``."""

    def __init__(self, clock: SimpleNamespace, takes_s: float) -> None:
        self.clock, self.takes_s = clock, takes_s
        self.asked = 0

    def role(self) -> Any:
        self.asked += 1
        self.clock.now += self.takes_s
        raise CoordinationError("ZooKeeper does not answer")


def handle(coordination: object, monkeypatch: pytest.MonkeyPatch) -> FollowingCluster:
    ledger = SimpleNamespace(cluster="east")
    parts: Any = SimpleNamespace(coordination=coordination, ledger=ledger, close=lambda: None)
    config: Any = SimpleNamespace(
        writer=SimpleNamespace(append_timeout_s=3.0), cluster=SimpleNamespace(name="east"), tls=None, zookeeper=None
    )
    monkeypatch.setattr(following.ActiveSearch, "_next", lambda *_: "")
    return FollowingCluster(OpenedCluster(config, parts), lambda _: pytest.fail("nobody leads anywhere"))


def test_a_read_does_not_wait_for_the_cluster_that_an_append_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = handle(Silent(SimpleNamespace(now=0.0), 0.0), monkeypatch)

    def append() -> None:
        with pytest.raises(ReadOnlyClusterError, match="no cluster takes writes"):
            followed.go_to_active()

    appending = threading.Thread(target=append)
    appending.start()
    wait_until(followed._moving.locked)
    began_s = time.monotonic()
    followed.follow_if_due()
    assert time.monotonic() - began_s < 1.0 and appending.is_alive()
    appending.join()


def test_a_search_that_takes_long_is_not_begun_anew_by_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    silent = Silent(clock, 6.0)
    followed = handle(silent, monkeypatch)
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: clock.now))
    followed.follow_if_due()
    asked = silent.asked
    clock.now += 5.0
    followed.follow_if_due()
    assert silent.asked == asked
    clock.now += 6.0
    followed.follow_if_due()
    assert silent.asked > asked, "later it is looked for again"


class Moves(Cluster):
    """A handle that moves to the next cluster each time that its parts are asked for."""

    def __init__(self) -> None:
        self.places = [self.parts(name) for name in ("north", "west") * 4 + ("east",)]

    @staticmethod
    def parts(name: str) -> Any:
        def answer(*given: Any) -> tuple[str, Any]:
            return name, given[0]

        tables = SimpleNamespace(get=lambda _: name, all=lambda: name)
        reader = SimpleNamespace(read=answer, sql=lambda _, specs: (name, specs))
        writer = SimpleNamespace(**{call: answer for call in _APPENDS})
        return SimpleNamespace(reader=reader, writer=writer, tables=tables, ledger=SimpleNamespace(tables=tables))

    @property
    def _opened(self) -> Any:  # type: ignore[override]
        return self.places.pop()


_APPENDS = ("upsert", "delete", "apply", "upsert_async", "delete_async", "apply_async")


@pytest.mark.parametrize("call", ["read", "sql", *_APPENDS])
def test_a_call_has_the_table_and_the_part_that_it_asks_of_one_cluster_though_another_thread_moves(call: str) -> None:
    given = ("ops.log", []) if call in _APPENDS else ("ops.log",)
    assert getattr(Moves(), call)(*given) == ("east", "east")


@pytest.mark.parametrize("call", ["wait", "drain", "trace", "status"])
def test_a_call_that_asks_of_several_parts_asks_those_of_one_cluster_though_another_thread_moves(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    given: dict[str, tuple[Any, ...]] = {"wait": (None,), "drain": ("south",), "trace": ("ops.log", {}), "status": ()}

    class OfMany(Moves):
        @staticmethod
        def parts(name: str) -> Any:
            def part(**more: Any) -> Any:
                return SimpleNamespace(of=name, **more)

            host = SimpleNamespace(host=name)
            config = part(wal_dir=name, cluster=host, shares_ledger=True, tls=None, zookeeper=None)
            ledger, reader = part(cluster=name, tables=part(get=lambda _: part())), part(catalog=part())
            coordination, contacts = part(), part()
            return part(
                config=config,
                ledger=ledger,
                reader=reader,
                coordination=coordination,
                contacts=contacts,
                links=part(),
                members=lambda: part(),
            )

        @property
        def config(self) -> Any:  # type: ignore[override]
            return self._opened.config

    def note(*parts: Any) -> Any:
        for each in parts:
            asked.extend([each] if each in ("north", "west", "east") else [])
            if hasattr(each, "of"):
                asked.append(each.of)
            elif callable(each):
                each()
        return SimpleNamespace(wait=lambda *_: None)

    def lengths(ledger: Any, host: str) -> None:
        note(ledger, host)

    monkeypatch.setattr("peer.client.cluster.Waiting", note)
    monkeypatch.setattr("peer.client.cluster.drain", lambda *parts: note(parts[0], parts[3], parts[6]))
    monkeypatch.setattr("peer.status.collect.durable_lengths", lengths)
    monkeypatch.setattr("peer.status.collect.collect", note)
    monkeypatch.setattr("peer.frames.host_watch.hosts_now", note)
    monkeypatch.setattr("peer.tables.trace.trace", note)
    getattr(OfMany(), call)(*given[call])
    assert len(asked) > 1 and set(asked) == {"east"}
