"""Replay's own report for ``status``, in the ledger, where every host reads it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field

from replication.ledger.base import Replay

SILENT_S = 15.0  # it reports every five to seven seconds, between rounds
AWAITS = "a bootstrap waits until frames that landed before are replayed"
TAKING = "its bootstrap is being applied"


@dataclass(slots=True)
class ReplayReport:
    """The replay process's report; times in seconds."""

    host: str = ""
    pid: int = 0
    since: float = 0.0
    at: float = 0.0
    rounds: int = 0  # that applied something
    work: dict[str, int] = field(default_factory=dict)  # as tables.base.WorkDone
    spark: str = ""  # what Spark waits for or lacks
    spark_ui: str = ""
    round_interval_s: float = 0.0
    round_s: float = 0.0
    fold_interval_s: float = 0.0
    held: dict[str, str] = field(default_factory=dict)
    fold_errors: dict[str, str] = field(default_factory=dict)
    bootstraps: dict[str, str] = field(default_factory=dict)  # "peer table": what it waits for
    away: dict[str, str] = field(default_factory=dict)  # other hosts whose files it cannot read now: why

    def silence(self, now_s: float) -> str:
        """How long it has not reported, being frozen, dead or in a long round; "" when it has."""
        for_s = now_s - self.at
        return f"silent for {for_s:.0f} s" if for_s >= SILENT_S else ""

    def save(self, ledger: Replay) -> None:
        """Replace the report."""
        ledger.keep_report(json.dumps(asdict(self)))

    @staticmethod
    def load(ledger: Replay) -> ReplayReport | None:
        """The last report; None when replay has never run."""
        try:
            return ReplayReport(**json.loads(ledger.last_report()))
        except (ValueError, TypeError):
            return None


def silence(ledger: Replay) -> str:
    """The message about a replay that has not reported for a while, or has never run; "" otherwise."""
    report = ReplayReport.load(ledger)
    if report is None:
        return "has never run"
    silence = report.silence(time.time())
    return silence and f"is {silence}"
