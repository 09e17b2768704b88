"""The chart of a drill's report, as SVG: the tables' lag while the drill ran, over its phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from peer.drill.measure import LagSample
from peer.drill.report import DrillPhase

_WIDTH, _HEIGHT = 920, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 34, 34
_SHADES = ("#e8eef7", "#dbe6f4")
_LABEL_PX = 6.6  # of one letter


def lag_chart(samples: Sequence[LagSample], phases: Sequence[DrillPhase]) -> str:
    """The chart; "" without samples."""
    if not samples:
        return ""
    last_s = max([samples[-1].at_s, *(phase.end_s for phase in phases), 0.1])
    top_s = round_up(max(sample.lag_s for sample in samples))

    def x(at_s: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at_s / last_s

    def y(lag_s: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * lag_s / top_s

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="lag during the drill">']
    base = _HEIGHT - _BOTTOM
    for number, phase in enumerate(phases):
        left, width = x(phase.begin_s), max(0.0, x(phase.end_s) - x(phase.begin_s))
        shade = _SHADES[number % 2]
        parts.append(f'<rect x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{base - _TOP}" fill="{shade}"/>')
        if width > _LABEL_PX * len(phase.name) + 8:
            parts.append(f'<text x="{left + 6:.1f}" y="{_TOP - 10}" class="phase">{escape(phase.name)}</text>')
    for part in range(5):
        value = top_s * part / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g} s</text>')
    step = round_up(last_s / 8, least=0.1)
    for number in range(int(last_s / step) + 1):
        value = number * step
        parts.append(f'<text x="{x(value):.1f}" y="{base + 20}" text-anchor="middle">{value:.3g} s</text>')
    points = " ".join(f"{x(sample.at_s):.1f},{y(sample.lag_s):.1f}" for sample in samples)
    area = f"{x(samples[0].at_s):.1f},{base} {points} {x(samples[-1].at_s):.1f},{base}"
    parts.append(f'<polygon points="{area}" class="area"/><polyline points="{points}" class="line"/>')
    if len(samples) < 60:
        parts += [f'<circle cx="{x(s.at_s):.1f}" cy="{y(s.lag_s):.1f}" r="2.5" class="dot"/>' for s in samples]
    parts.append("</svg>")
    return "".join(parts)


def round_up(value: float, least: float = 1.0) -> float:
    """The next of 1, 2 or 5 times a power of ten, and no less than ``least``."""
    if value <= least:
        return least
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 1.001 or step == 10)
