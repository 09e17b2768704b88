"""A drill's report: one HTML file that needs nothing else, and the same as JSON."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from peer.drill.chart import lag_chart
from peer.drill.probes import ProbeResult, ProbeStep
from peer.drill.report import DrillReport
from peer.failover.failover import FailoverPlan
from peer.failover.switchover import SwitchoverPlan
from peer.page_style import STYLE
from replication.core.clock import moment_text
from replication.error_text import counted
from replication.errors import StorageError
from replication.ledger.drills import HISTORY_MAX

_ID = re.compile(r"\d{8}t\d{6}_[0-9a-f]{4}")  # of a drill; begins with its time
_MEASURED = (
    "RPO is how old the fork's instant was when it was forked: rows acked later would not have been in the tables."
    " RTO is the time to plan the failover, to have in the tables what had landed when the drill began, and to read"
    " from every table of the fork; changing the role itself is not carried out. The fork was made of tagged snapshots:"
    " no data was copied, and shipping and replay went on."
)


def save_report(report: DrillReport, folder: Path) -> Path:
    """Write ``report.html`` and ``report.json`` into a drill's folder; the path of the first.

    Of the host's drills the folders of the newest ones are kept, as many as the ledger remembers.

    Raises:
        StorageError: they cannot be written.
    """
    page = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
        page.write_text(to_html(report), encoding="utf-8")
        for old in sorted(each for each in folder.parent.iterdir() if _ID.fullmatch(each.name))[:-HISTORY_MAX]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"the report {page} cannot be written: {error}", "Make room, then drill again") from error
    return page


def to_html(report: DrillReport) -> str:
    """The page."""
    drill = report.drill
    verdict = "passed" if drill.passed else "failed"
    passed = sum(probe.passed for probe in report.probes)
    is_ahead = drill.instant > 0 and drill.rpo_s is None
    tiles = (
        (
            "Recovery point (RPO)",
            _seconds(drill.rpo_s),
            "not known: a clock is ahead" if is_ahead else "age of the tested instant",
        ),
        ("Recovery time (RTO)", _seconds(drill.rto_s), "until all tables answer"),
        (
            "Tables",
            str(len(report.tables)),
            f"{len(report.left_out)} left out" if report.left_out else "all at one time",
        ),
        (
            "Probes",
            f"{passed} of {len(report.probes)}" if report.probes else "none",
            "passed" if report.probes else "given",
        ),
    )
    shown = "".join(
        f'<div class="tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b>'
        f'<span class="soft">{escape(note)}</span></div>'
        for name, value, note in tiles
    )
    instant = f" &middot; tables as of {moment_text(drill.instant)}" if drill.instant else ""
    parts = [
        f"<header><div><h1>Drill of {escape(report.cluster)}</h1>"
        f'<span class="soft">{moment_text(drill.begun)}{instant}</span></div>'
        f'<span class="verdict {verdict}">{verdict.capitalize()}</span></header>',
        f'<div class="tiles">{shown}</div>',
        _section("Why it did not pass", _list(report.problems)) if report.problems else "",
        _section("Lag while the drill ran", lag_chart(report.samples, report.phases) + _rounds(report)),
        "".join(_probe(probe) for probe in report.probes),
        _failover(report.failover, report.failover_note),
        _switchover(report.switchover, report.switchover_note),
        _tables(report),
        f'<p class="soft">{escape(_MEASURED)} {_kept(report)}</p>',
        f'<p class="soft">Drill {escape(drill.id)} &middot; walship {escape(report.version)}</p>',
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Drill of {escape(report.cluster)}: {verdict}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>\n'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _list(items: Iterable[str], kind: str = "ul") -> str:
    return f"<{kind}>{''.join(f'<li>{escape(item)}</li>' for item in items)}</{kind}>"


def _rounds(report: DrillReport) -> str:
    samples = report.samples
    if not samples:
        return '<p class="soft">It ended before the lag was measured.</p>'
    rounds = max(sample.rounds for sample in samples) - samples[0].rounds
    most = max(sample.lag_s for sample in samples)
    first, last = _seconds(samples[0].lag_s), _seconds(samples[-1].lag_s)
    text = f"At most {_seconds(most)}, {first} at the beginning, {last} at the end."
    return f'<p class="soft">{text} Replay applied {counted(rounds, "round")} of new rows meanwhile.</p>'


def _probe(probe: ProbeResult) -> str:
    mark = '<span class="ok">passed</span>' if probe.passed else '<span class="no">failed</span>'
    body = f'<h2>Probe {escape(probe.name)} &middot; {mark} <span class="soft">{_seconds(probe.seconds)}</span></h2>'
    if probe.steps:
        rows = "".join(_step(step) for step in probe.steps)
        head = '<tr><th>statement</th><th>result</th><th class="number">time</th></tr>'
        body += f"<table>{head}{rows}</table>"
    if probe.not_run:
        body += f'<p class="soft">Not run: {counted(probe.not_run, "later statement")}.</p>'
    if probe.why and not probe.steps:
        body += f"<p>{escape(probe.why)}</p>"
    if probe.output:
        opened = "" if probe.passed else " open"
        body += f"<details{opened}><summary>output</summary><pre>{escape(probe.output)}</pre></details>"
    return f"<section>{body}</section>"


def _step(step: ProbeStep) -> str:
    answered = step.answered
    if step.why:
        result = f'<span class="no">{escape(step.why)}</span>'
    elif answered.checked:
        result = '<span class="ok">true</span>'
    elif answered.changed is not None:
        result = f"{counted(answered.changed, 'row')} changed"
    else:
        result = (
            '<span class="ok">done</span>' if not answered.columns else f"{counted(len(answered.rows), 'row')} shown"
        )
    if answered.columns and answered.checked is None:
        result += _rows(answered.columns, answered.rows)
    title = f"<details><summary>{escape(step.title)}</summary><pre>{escape(step.statement)}</pre></details>"
    return f'<tr><td>{title}</td><td>{result}</td><td class="number">{_seconds(step.seconds)}</td></tr>'


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(columns), *(" | ".join(value[:80] for value in row) for row in rows)]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _failover(plan: FailoverPlan | None, note: str) -> str:
    if plan is None:
        return _section("Failover", f'<p class="soft">{escape(note)}</p>') if note else ""
    loss = plan.loss
    known = ", ".join(f"{each.table}: {counted(each.frames, 'frame')}" for each in loss.tables if each.frames)
    lost = f"Known to be missing: {known}." if known else "Nothing is known to be missing."
    if loss.seconds is None:
        lost += f" How much of what {plan.origin} acked would be lost is not known."
    else:
        lost += f" What {plan.origin} acked in the last {_seconds(loss.seconds)} would be lost, or is not known here."
    body = f"<p>{escape(lost)} Landed and not replayed yet: {plan.to_replay_bytes:,} bytes.</p>"
    return _section(f"A failover from {plan.origin} would", body + _list(plan.steps, "ol"))


def _switchover(plan: SwitchoverPlan | None, note: str) -> str:
    if plan is None:
        return _section("Switchover", f'<p class="no">{escape(note)}</p>') if note else ""
    body = (
        f"<p>No acked row would be lost, and no writes would be taken for about {_seconds(plan.outage_s)}."
        f" {plan.pending_bytes:,} bytes were missing at {escape(plan.successor)}.</p>"
    )
    refused = _list(f"Not possible now: {refusal}" for refusal in plan.refusals) if plan.refusals else ""
    return _section(
        f"A switchover from {plan.origin} to {plan.successor} would", body + _list(plan.steps, "ol") + refused
    )


def _tables(report: DrillReport) -> str:
    if not report.tables and not report.left_out:
        return ""
    body = _list(f"{name} is left out: {why}" for name, why in sorted(report.left_out.items()))
    names = ", ".join(f"<code>{escape(name)}</code>" for name in report.tables)
    return _section("Tables of the fork", f"<p>{names or 'none'}</p>{body if report.left_out else ''}")


def _kept(report: DrillReport) -> str:
    if not report.drill.kept_until:
        return ""
    tag, until = escape(report.drill.tag), moment_text(report.drill.kept_until)
    return f"The tested instant stays tagged as <code>{tag}</code> until {until}."


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"
