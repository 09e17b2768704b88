"""What a demo's display sees: clusters that start, run, are lost, and are no more looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replication.errors import CoordinationError
from shell.demo import watch
from shell.demo.watch import Watch


class _Handle:
    """A cluster that is ``role`` and sends one table to ``peer``."""

    def __init__(self, role: str, peer: str) -> None:
        self.role, self.peer = role, peer
        self.answers = True
        self.closed = False

    def status(self) -> Any:
        if not self.answers:
            raise CoordinationError("it does not answer")
        row = SimpleNamespace(peer=self.peer, lag_bytes=9000, lag_s=3.0, last_error="", state="behind")
        return SimpleNamespace(replay_backlog_bytes=7, members=SimpleNamespace(role=self.role), peers=(row,))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Handle]:
    made = {"east": _Handle("ACTIVE", "west"), "west": _Handle("STANDBY", "east")}
    monkeypatch.setattr(watch, "connect", lambda file, *, for_writing: made[file])
    return made


def watching(**options: bool) -> Watch:
    sites: Any = [
        SimpleNamespace(name=name, file=name, roles=("worker",), roles_up=lambda: {"worker": True})
        for name in ("east", "west")
    ]
    made = Watch(sites, {"east": 5}, **options)
    assert all(node.is_starting for node in seen(made).nodes.values())
    made.open("east")
    made.open("west")
    return made


def seen(watch: Watch) -> Any:
    flow = watch.observe()
    assert flow is not None
    return flow


def test_every_route_shows_where_roles_do_not_matter(handles: dict[str, _Handle]) -> None:
    flow = seen(watching())
    assert set(flow.routes) == {("east", "west"), ("west", "east")} and flow.lag_bytes == 9000
    east = flow.nodes["east"]
    assert (east.written, east.unapplied_bytes, east.badge, east.is_starting) == (5, 7, "", False)


def test_only_the_routes_of_an_active_cluster_show_where_roles_matter(handles: dict[str, _Handle]) -> None:
    flow = seen(watching(has_roles=True))
    assert set(flow.routes) == {("east", "west")}
    assert [flow.nodes[name].badge for name in ("east", "west")] == ["ACTIVE", "STANDBY"]


def test_a_cluster_that_is_lost_is_down_and_so_is_the_route_to_it(handles: dict[str, _Handle]) -> None:
    made = watching(has_roles=True)
    made.lose("west")
    flow = seen(made)
    assert handles["west"].closed and flow.nodes["west"].badge == "LOST"
    assert not any(flow.nodes["west"].roles.values()) and flow.routes["east", "west"].error == "down"
    made.open("west")
    assert seen(made).routes["east", "west"].error == ""


def test_the_last_that_was_seen_stays_once_nobody_looks(handles: dict[str, _Handle]) -> None:
    made = watching()
    handles["west"].answers = False
    assert made.observe() is None
    handles["west"].answers = True
    made.close()
    handles["east"].answers = False
    assert set(seen(made).routes) == {("east", "west"), ("west", "east")}
    assert all(handle.closed for handle in handles.values())
