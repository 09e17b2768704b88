"""What lagged over the last hour, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from peer.drill.chart import round_up
from shell.cli.render import seconds_text
from shell.monitor.sampling import Lags
from shell.monitor.sections import text_html

_WIDTH, _HEIGHT = 920, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 28, 26
_COLOURS = ("#2463a8", "#c2571a", "#14733f", "#8a3ffc", "#b3261e", "#0f7f8c")


def lag_svg(history: Sequence[Lags], now: float) -> str:
    """A line for each of those that were the furthest behind; "" before the second sample.

    ``now`` is of the monotonic clock.
    """
    if len(history) < 2:
        return ""
    highest: dict[str, float] = {}
    for sample in history:
        for name, lag_s in sample.lag_s.items():
            highest[name] = max(highest.get(name, 0.0), lag_s)
    names = sorted(sorted(highest, key=lambda name: -highest[name])[: len(_COLOURS)])
    if not names:
        return ""
    span_s = max(60.0, now - history[0].at)
    top_s, base = round_up(max(highest.values())), _HEIGHT - _BOTTOM
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="lag over time">']
    for part in range(3):
        y = base - (base - _TOP) * part / 2
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        label = seconds_text(top_s * part / 2) if part else "0"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{seconds_text(span_s)} ago</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">now</text>')
    for number, (name, colour) in enumerate(zip(names, _COLOURS, strict=False)):
        points = " ".join(
            f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * (1 - (now - sample.at) / span_s):.1f},"
            f"{base - (base - _TOP) * sample.lag_s[name] / top_s:.1f}"
            for sample in history
            if name in sample.lag_s
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + 140 * number}" y="14" style="fill:{colour}">{text_html(name[:20])}</text>')
    return "".join(parts) + "</svg>"
