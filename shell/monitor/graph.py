"""The picture of a cluster among the others: origins that reach it, and peers that it sends to, as SVG."""

from __future__ import annotations

from collections.abc import Mapping

from peer.status.collect import ClusterStatus
from shell.cli.render import seconds_text
from shell.monitor.sections import text_html

_WIDTH, _ROW, _BOX, _HEIGHT = 920, 58, 190, 40
_NODES_MAX = 12
_NAME_MAX = 24
_COLOURS = {"failing": "var(--bad)", "held": "var(--bad)", "paused": "var(--soft)"}


def graph_svg(status: ClusterStatus, lags: Mapping[str, float]) -> str:
    """The picture; "" when there is no other cluster."""
    origins = [each for each in status.origins if each.origin != status.id][:_NODES_MAX]
    peers = status.sending[:_NODES_MAX]
    if not origins and not peers:
        return ""
    height = _ROW * max(len(origins), len(peers), 1) + 8
    middle, centre = height / 2, (_WIDTH - _BOX) / 2
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="clusters and routes">']
    for number, origin in enumerate(origins):
        y = _y(number, len(origins), height)
        age = "no time known" if origin.age_s is None else f"{seconds_text(origin.age_s)} old"
        is_silent = bool(origin.paths) and all(path.silent_s is not None for path in origin.paths)
        parts += _edge(_BOX, y, centre, middle, age, "var(--bad)" if is_silent else "var(--blue)")
        parts += _box(0, y, origin.origin.partition(":")[0], "origin")
    for number, peer in enumerate(peers):
        y = _y(number, len(peers), height)
        state = f"lag {seconds_text(lags.get(peer.peer, 0.0))}" if peer.state == "sending" else peer.state
        colour = _COLOURS.get(peer.state, "var(--blue)")
        parts += _edge(centre + _BOX, middle, _WIDTH - _BOX, y, state, colour)
        parts += _box(_WIDTH - _BOX, y, peer.peer, "peer")
    parts += _box(centre, middle, status.cluster, status.members.role or "role not known", own=True)
    return "".join(parts) + "</svg>"


def _y(number: int, count: int, height: float) -> float:
    return height * (number + 0.5) / count


def _box(x: float, y: float, name: str, kind: str, *, own: bool = False) -> list[str]:
    fill, ink, soft = ("var(--blue)", "#fff", "#dbe6f4") if own else ("#fff", "var(--ink)", "var(--soft)")
    shown = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"
    middle, top = x + _BOX / 2, y - _HEIGHT / 2
    return [
        f'<rect x="{x + 1:.0f}" y="{top:.1f}" width="{_BOX - 2}" height="{_HEIGHT}" rx="9" fill="{fill}"'
        ' stroke="var(--blue)"/>',
        f'<text x="{middle:.0f}" y="{y - 2:.1f}" text-anchor="middle" style="fill:{ink};font-weight:600">'
        f"{text_html(shown)}</text>",
        f'<text x="{middle:.0f}" y="{y + 13:.1f}" text-anchor="middle" style="fill:{soft}">{text_html(kind)}</text>',
    ]


def _edge(x1: float, y1: float, x2: float, y2: float, label: str, colour: str) -> list[str]:
    """An arrow with its label, which stands near the outer end, where arrows are apart."""
    tip, near = x2 - 9, 0.35 if x1 < _WIDTH / 2 - _BOX else 0.65
    x, y = x1 + (tip - x1) * near, y1 + (y2 - y1) * near
    return [
        f'<line x1="{x1:.0f}" y1="{y1:.1f}" x2="{tip:.0f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="2"/>',
        f'<path d="M{x2 - 10:.0f} {y2 - 5:.1f} L{x2:.0f} {y2:.1f} L{x2 - 10:.0f} {y2 + 5:.1f} Z" fill="{colour}"/>',
        f'<text x="{x:.0f}" y="{y - 6:.1f}" text-anchor="middle">{text_html(label)}</text>',
    ]
