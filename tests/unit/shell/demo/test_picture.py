"""The demo's picture of a graph: every cluster and route is there, in the colour of how it is."""

from __future__ import annotations

import pytest

from shell.demo.picture import SHAPES, NodeState, RouteLag, draw

UP = NodeState({"master": True, "receiver": True}, 1234, 0)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_cluster_and_route_is_drawn(name: str) -> None:
    shape = SHAPES[name]
    drawn = draw(shape, dict.fromkeys(shape.boxes, UP), dict.fromkeys(shape.routes, RouteLag(0, 0.0))).plain
    assert all(f"─ {cluster} ─" in drawn for cluster in shape.boxes)
    assert sum(drawn.count(head) for head in "▶◀▲▼") == len(shape.routes)
    assert drawn.count("caught up") == len(shape.routes) and drawn.count("1,234 rows") == len(shape.boxes)
    assert max(map(len, drawn.splitlines())) <= 78
    assert {end for route in shape.routes for end in route} == set(shape.boxes)


def test_lag_trouble_and_dead_processes_show() -> None:
    shape = SHAPES["ring"]
    down = NodeState({"master": True, "receiver": False}, 0, 2048)
    lags = {("east", "west"): RouteLag(4096, 1.5), ("north", "east"): RouteLag(1 << 20, 70.0, "peer is gone")}
    drawn = draw(shape, {"east": UP, "west": down}, lags)
    assert "4.0 KiB" in drawn.plain and "1.50 s" in drawn.plain and "✗ 1.0 MiB" in drawn.plain
    assert "○ receiver" in drawn.plain and "2.0 KiB" in drawn.plain
    assert "starting" in drawn.plain, "nothing is known of north yet"
    styles = {str(span.style) for span in drawn.spans}
    assert {"green", "yellow", "bold red", "dim", "cyan"} <= styles


def test_what_tells_the_time_along_an_idle_route_is_no_lag() -> None:
    shape = SHAPES["master-master"]
    idle, behind = RouteLag(299, 0.4), RouteLag(299, 92.0)
    drawn = draw(shape, dict.fromkeys(shape.boxes, UP), {("east", "west"): idle, ("west", "east"): behind}).plain
    assert drawn.count("caught up") == 1 and "299 B" in drawn and "92 s" in drawn
    assert not RouteLag(0, 0.0, "peer is gone").is_caught_up


def test_what_is_up_already_shows_while_a_cluster_starts() -> None:
    half = NodeState({"master": True, "receiver": False}, 0, 0, is_starting=True)
    drawn = draw(SHAPES["ring"], {"east": half}, {})
    assert "● ○" in drawn.plain and "receiver" not in drawn.plain and drawn.plain.count("starting") == 3
    assert "bold red" not in {str(span.style) for span in drawn.spans}


def test_who_is_active_and_who_is_lost_stands_on_the_boxes() -> None:
    shape = SHAPES["master-master"]
    lost = NodeState({"master": False, "receiver": False}, 0, 0, badge="LOST")
    active = NodeState({"master": True, "receiver": True}, 0, 0, badge="ACTIVE")
    drawn = draw(shape, {"east": active, "west": lost}, {})
    assert "─ east ─" in drawn.plain and " ACTIVE ─╮" in drawn.plain and " LOST ─╮" in drawn.plain
    assert "receiver" not in drawn.plain, "of a lost site no single process is named"
    assert {"bold white on green", "bold white on red"} <= {str(span.style) for span in drawn.spans}
