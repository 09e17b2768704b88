"""The page: what needs a person, the clusters, their lag, and all sections of ``walship status``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peer.page_style import STYLE
from peer.status.collect import ClusterStatus
from replication.error_text import counted
from shell.cli.render import bytes_text, moment_text, seconds_text
from shell.monitor.chart import lag_svg
from shell.monitor.graph import graph_svg
from shell.monitor.sampling import Lags, peer_lags
from shell.monitor.sections import HtmlPrinter, text_html
from shell.status.page import show_status

#: Replaces what is shown every two seconds; says so when nobody answers.
SCRIPT = """
const refresh = async () => {
  const lost = document.getElementById("lost");
  try {
    const answer = await fetch("/");
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.title = page.title;
    lost.hidden = true;
  } catch { lost.hidden = false; }
  setTimeout(refresh, 2000);
};
setTimeout(refresh, 2000);
"""
_STYLE = """
main { max-width: 1180px; }
p { margin: 0 0 6px; } table { white-space: nowrap; } .notes { border-left: 4px solid var(--bad); }
#lost { margin: 0; padding: 10px 20px; background: var(--bad); color: #fff; text-align: center; }
"""


def status_html(status: ClusterStatus, history: Sequence[Lags], now: float) -> str:
    """The page of a status, as of ``now`` on the monotonic clock."""
    printer = HtmlPrinter()
    show_status(printer, _furthest_behind_first(status))
    notes, lags = [*_failures(status), *printer.notes], peer_lags(status)
    verdict = counted(len(notes), "note") if notes else "All well"
    pictures = {
        "Clusters": graph_svg(status, lags),
        "Lag of peers, and age of what origins sent": lag_svg(history, now),
    }
    parts = [
        f'<header><div><h1>{text_html(status.cluster)}</h1><span class="soft">{text_html(status.id)}</span></div>'
        f'<span class="verdict {"failed" if notes else "passed"}">{verdict}</span></header>',
        f'<div class="tiles">{"".join(_tiles(status, lags))}</div>',
    ]
    if notes:
        listed = "".join(f"<li>{note}</li>" for note in notes)
        parts.append(f'<section class="notes"><h2>Needs attention</h2><ul>{listed}</ul></section>')
    parts += [f"<section><h2>{title}</h2>{picture}</section>" for title, picture in pictures.items() if picture]
    return _page(f"{status.cluster}: {verdict}", "".join([*parts, printer.sections()]))


def _failures(status: ClusterStatus) -> list[str]:
    """Peers that cannot be sent to, which ``walship status`` has among its lines."""
    failing = (peer for peer in status.sending if peer.state == "failing")
    return [text_html(f"sending to {peer.peer} fails: {peer.last_error}") for peer in failing]


def error_html(error: str, hint: str) -> str:
    """The page when the status cannot be read."""
    body = f'<section class="notes"><h2>{text_html(error)}</h2><p>{text_html(hint)}</p></section>'
    return _page("walship: no status", body)


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f"<title>{text_html(title)}</title><style>{STYLE}{_STYLE}</style>"
        '<script src="/monitor.js" defer></script></head><body>'
        '<p id="lost" hidden>walship monitor does not answer. What follows is its last answer.</p>'
        f"<main>{body}</main></body></html>"
    )


def _furthest_behind_first(status: ClusterStatus) -> ClusterStatus:
    """Of long tables only the first rows are shown."""
    by_age = sorted(status.tables, key=lambda row: row.replicated)
    return replace(status, peers=tuple(sorted(status.peers, key=lambda row: -row.lag_s)), tables=tuple(by_age))


def _tiles(status: ClusterStatus, lags: dict[str, float]) -> list[str]:
    members, disk, good = status.members, status.disk, status.drills.good
    slowest = max(lags, key=lambda peer: lags[peer], default="")
    full = "" if disk.full_s is None else f"full in {seconds_text(disk.full_s)}"
    lost = len(status.lost_writes)
    return [
        _tile("Role", members.role or "not known", f"epoch {members.role_epoch}" if members.role else "no ZooKeeper"),
        _tile("Lag", seconds_text(lags[slowest]) if lags else "–", f"of {slowest}" if slowest else "no peers"),
        _tile("To replay here", bytes_text(status.replay_backlog_bytes), f"{counted(len(status.origins), 'origin')}"),
        _tile("Quarantined", f"{len(status.quarantined):,}", f"{counted(lost, 'frame')} of lost writes"),
        _tile("Workers", str(len(members.workers)), f"{counted(len(members.receivers), 'receiver')}"),
        _tile("Tables", f"{len(status.tables):,}", f"{counted(len(status.sending), 'peer')}"),
        _tile("Disk free", bytes_text(disk.free), full or f"on {disk.host}"),
        _tile(
            "Last good drill",
            "none" if good is None else moment_text(good.ended).split("T")[0],
            "walship drill" if good is None else moment_text(good.ended),
        ),
    ]


def _tile(name: str, value: str, note: str) -> str:
    return (
        f'<div class="tile"><span class="soft">{text_html(name)}</span><b>{text_html(value)}</b>'
        f'<span class="soft">{text_html(note)}</span></div>'
    )
