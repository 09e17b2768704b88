"""A drill's report shows what tables, probes and other clusters said, and runs none of it."""

from __future__ import annotations

import re

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
    page = to_html(report)
    assert "<script" not in page and "<img" not in page and page.count("&lt;script&gt;") >= 12
    assert not re.search(r"<[^>]*onload", page)
