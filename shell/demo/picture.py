"""A graph of clusters drawn in a terminal: a box for a cluster, an arrow with its lag for a route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from peer.status.at_peers import TableAtPeer
from shell.cli.render import bytes_text, seconds_text

BOX_WIDTH, BOX_HEIGHT = 28, 5
_LEFT_WIDTH = 10
_BEAT_BYTES, _BEAT_S = 4096, 2.0
Point = tuple[int, int]  # column, row
_TURNS = {
    ("right", "down"): "╮",
    ("up", "left"): "╮",
    ("left", "down"): "╭",
    ("up", "right"): "╭",
    ("right", "up"): "╯",
    ("down", "left"): "╯",
    ("left", "up"): "╰",
    ("down", "right"): "╰",
}
_BADGES = {"ACTIVE": "bold white on green", "STANDBY": "bold black on cyan", "LOST": "bold white on red"}
_HEADS = {"right": "▶", "left": "◀", "up": "▲", "down": "▼"}


@dataclass(frozen=True, slots=True)
class Arrow:
    """A route as it is drawn: its corner points from tail to head, and where its lag is written."""

    corners: tuple[Point, ...]
    label: Point


@dataclass(frozen=True, slots=True)
class Shape:
    """A graph: its clusters with the upper left corners of their boxes, and its routes, (source, peer)."""

    title: str
    boxes: Mapping[str, Point]
    routes: Mapping[tuple[str, str], Arrow]

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        ends = [(x + BOX_WIDTH, y + BOX_HEIGHT) for x, y in self.boxes.values()]
        ends += [(x + 1, y + 1) for arrow in self.routes.values() for x, y in (*arrow.corners, arrow.label)]
        return max(x for x, _ in ends), max(y for _, y in ends)


_SIDE_BY_SIDE = {"east": (0, 0), "west": (48, 0)}
_EAST_WEST = {("east", "west"): Arrow(((28, 1), (47, 1)), (31, 0))}
_WEST_EAST = {("west", "east"): Arrow(((47, 3), (28, 3)), (31, 4))}
ONE_WAY = Shape("east → west", _SIDE_BY_SIDE, _EAST_WEST)
MASTERS = Shape("east ⇄ west", _SIDE_BY_SIDE, _EAST_WEST | _WEST_EAST)
#: By the names that ``--graph`` takes.
SHAPES = {
    "ring": Shape(
        "east → west → north → east",
        {"east": (22, 0), "west": (44, 9), "north": (0, 9)},
        {
            ("east", "west"): Arrow(((50, 2), (61, 2), (61, 8)), (63, 5)),
            ("west", "north"): Arrow(((43, 11), (28, 11)), (28, 10)),
            ("north", "east"): Arrow(((11, 8), (11, 2), (21, 2)), (0, 5)),
        },
    ),
    "diamond": Shape(
        "north → east and west → south",
        {"north": (22, 0), "west": (0, 9), "east": (44, 9), "south": (22, 18)},
        {
            ("north", "east"): Arrow(((50, 2), (61, 2), (61, 8)), (63, 5)),
            ("north", "west"): Arrow(((21, 2), (11, 2), (11, 8)), (0, 5)),
            ("east", "south"): Arrow(((61, 14), (61, 20), (50, 20)), (63, 17)),
            ("west", "south"): Arrow(((11, 14), (11, 20), (21, 20)), (0, 17)),
        },
    ),
    "master-master": MASTERS,
}


@dataclass(frozen=True, slots=True)
class RouteLag:
    """How far a route is behind; ``error`` is why nothing goes, or empty."""

    lag_bytes: int
    lag_s: float
    error: str = ""

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing is behind but heartbeats, which go along every route about once a second."""
        return not self.error and self.lag_bytes < _BEAT_BYTES and self.lag_s < _BEAT_S

    @staticmethod
    def of(tables: Iterable[TableAtPeer]) -> RouteLag:
        """Of all tables that go by a route."""
        rows = list(tables)
        return RouteLag(
            max((row.lag_bytes for row in rows), default=0),
            max((row.lag_s for row in rows), default=0.0),
            next((row.last_error for row in rows if row.state == "failing"), ""),
        )


@dataclass(frozen=True, slots=True)
class NodeState:
    """A cluster: whether each process is up, rows written there, and bytes that are not in its tables yet.

    ``badge`` is ACTIVE, STANDBY or LOST, or "" where roles do not matter.
    """

    roles: Mapping[str, bool]
    written: int
    unapplied_bytes: int
    is_starting: bool = False
    badge: str = ""


@dataclass(frozen=True, slots=True)
class GraphFlow:
    """The lag of each route that is in use, the state of each cluster, and the most of all routes."""

    routes: Mapping[tuple[str, str], RouteLag]
    nodes: Mapping[str, NodeState]
    lag_bytes: int
    lag_s: float

    @staticmethod
    def of(routes: Mapping[tuple[str, str], RouteLag], nodes: Mapping[str, NodeState]) -> GraphFlow:
        """With the most of all routes."""
        most_bytes = max((lag.lag_bytes for lag in routes.values()), default=0)
        most_s = max((lag.lag_s for lag in routes.values()), default=0.0)
        return GraphFlow(routes, nodes, most_bytes, most_s)


class _Canvas:
    """Characters with styles on a grid."""

    def __init__(self, columns: int, rows: int) -> None:
        self._cells: list[list[tuple[str, str]]] = [[(" ", "")] * columns for _ in range(rows)]

    def put(self, at: Point, text: str, style: str = "") -> None:
        x, y = at
        row = self._cells[y]
        for offset, character in enumerate(text):
            if 0 <= x + offset < len(row):
                row[x + offset] = (character, style)

    def text(self) -> Text:
        made = Text()
        for row in self._cells:
            for character, style in row:
                made.append(character, style=style)
            made.append("\n")
        made.rstrip()
        return made


def draw(shape: Shape, nodes: Mapping[str, NodeState], routes: Mapping[tuple[str, str], RouteLag]) -> Text:
    """The graph as it is now; clusters and routes without a report yet are dim."""
    columns, rows = shape.size
    canvas = _Canvas(max(columns, 76), rows)
    for route, arrow in shape.routes.items():
        _arrow(canvas, arrow, routes.get(route))
    for name, at in shape.boxes.items():
        _box(canvas, at, name, nodes.get(name))
    return canvas.text()


def _box(canvas: _Canvas, at: Point, name: str, state: NodeState | None) -> None:
    x, y = at
    inner = BOX_WIDTH - 2
    starting = state is None or state.is_starting
    down = state is not None and not all(state.roles.values())
    edge = "dim" if starting else "bold red" if down else "cyan"
    canvas.put((x, y), f"╭─ {name} {'─' * (inner - len(name) - 3)}╮", edge)
    for row in range(1, BOX_HEIGHT - 1):
        canvas.put((x, y + row), f"│{' ' * inner}│", edge)
    canvas.put((x, y + BOX_HEIGHT - 1), f"╰{'─' * inner}╯", edge)
    canvas.put((x + 3, y), name, "dim" if starting else "bold")
    if state is not None and state.badge:
        canvas.put((x + BOX_WIDTH - 4 - len(state.badge), y), f" {state.badge} ", _BADGES[state.badge])
    if state is None or state.is_starting:
        roles = {} if state is None else state.roles
        for number, is_up in enumerate(roles.values()):
            canvas.put((x + 2 + 2 * number, y + 1), "●" if is_up else "○", "green" if is_up else "dim")
        canvas.put((x + 2, y + 2), "starting …", "dim")
        return
    at_x = x + 2
    is_lost = not any(state.roles.values())
    for role, is_up in state.roles.items():
        canvas.put((at_x, y + 1), "●" if is_up else "○", "green" if is_up else "bold red")
        at_x += 2
        if not is_up and not is_lost:
            canvas.put((at_x, y + 1), f"{role} ", "bold red")
            at_x += len(role) + 1
    canvas.put((x + 2, y + 2), f"wrote     {state.written:>9,} rows")
    behind = state.unapplied_bytes > 0
    canvas.put((x + 2, y + 3), f"to apply  {bytes_text(state.unapplied_bytes):>9}", "yellow" if behind else "")


def _arrow(canvas: _Canvas, arrow: Arrow, lag: RouteLag | None) -> None:
    style = "dim" if lag is None else "bold red" if lag.error else "green" if lag.is_caught_up else "yellow"
    corners = arrow.corners
    paths = [_direction(one, two) for one, two in zip(corners, corners[1:], strict=False)]
    for (one, two), direction in zip(zip(corners, corners[1:], strict=False), paths, strict=True):
        for point in _between(one, two):
            canvas.put(point, "─" if direction in ("left", "right") else "│", style)
    for at, before, after in zip(corners[1:-1], paths, paths[1:], strict=False):
        canvas.put(at, _TURNS[before, after], style)
    canvas.put(corners[-1], _HEADS[paths[-1]], style)
    x, y = arrow.label
    lines = _label(lag)
    if len(corners) == 2:
        canvas.put((x, y), " ".join(lines), style)
        return
    for row, line in enumerate(lines):  # beside an upright line; left of one it ends at the line
        canvas.put((x, y + row), line if x else line.rjust(_LEFT_WIDTH), style)


def _label(lag: RouteLag | None) -> Sequence[str]:
    if lag is None:
        return ()
    if lag.is_caught_up:
        return ("caught up",)
    return ("✗ " if lag.error else "") + bytes_text(lag.lag_bytes), seconds_text(lag.lag_s)


def _direction(one: Point, two: Point) -> str:
    if one[1] == two[1]:
        return "right" if two[0] > one[0] else "left"
    return "down" if two[1] > one[1] else "up"


def _between(one: Point, two: Point) -> list[Point]:
    (x, y), (to_x, to_y) = one, two
    if y == to_y:
        return [(at, y) for at in range(min(x, to_x), max(x, to_x) + 1)]
    return [(x, at) for at in range(min(y, to_y), max(y, to_y) + 1)]
