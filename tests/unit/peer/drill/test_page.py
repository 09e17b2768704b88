"""A drill's report shows what tables, probes and other clusters said, and runs none of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peer.drill import page
from peer.drill.page import to_html
from peer.drill.probes import ProbeResult, ProbeStep
from peer.drill.report import DrillReport
from peer.drill.session import Answered
from replication.ledger.base import Drill

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=x"


def test_what_others_wrote_is_text(tmp_path) -> None:  # issue 23
    answered = Answered(columns=(EVIL,), rows=((EVIL,),))
    steps = (ProbeStep(EVIL, EVIL, True, 0.1, "", answered), ProbeStep(EVIL, EVIL, False, 0.1, EVIL))
    probes = (
        ProbeResult(EVIL, "SQL", False, 0.1, EVIL, steps),
        ProbeResult(EVIL, "script", False, 0.1, EVIL, (), 0, EVIL),
    )
    drill = Drill("a1", EVIL, EVIL, 1, 2, instant=3, why=EVIL)
    report = DrillReport(
        drill, EVIL, EVIL, (EVIL,), (EVIL,), {EVIL: EVIL}, failover_note=EVIL, switchover_note=EVIL, probes=probes
    )
    shown = to_html(report)
    assert "<script" not in shown and "<img" not in shown and shown.count("&lt;script&gt;") >= 12
    assert not re.search(r"<[^>]*onload", shown)
    assert re.search(r"body \{[^}]*overflow-wrap: anywhere", shown), (
        "a long name is cut into lines, and widens no table"
    )


def test_the_reports_of_drills_that_the_ledger_has_forgotten_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "HISTORY_MAX", 2)
    for day in range(1, 5):
        id = f"2026110{day}t030000_00ff"
        page.save_report(DrillReport(Drill(id, "h0", "", day, 9), "west", "0.1.0"), tmp_path / id)
        (tmp_path / "00-probes").mkdir(exist_ok=True)  # a person's own
    assert sorted(each.name[:9] for each in tmp_path.iterdir()) == ["00-probes", "20261103t", "20261104t"]
