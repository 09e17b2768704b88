"""What replay says of itself for ``status``, in the ledger, where every host finds it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field

from replication.ledger.base import Replay

SILENT_S = 15.0  # it tells every two seconds, between rounds


@dataclass(slots=True)
class ReplayReport:
    """What the replay process says of itself; times in seconds."""

    host: str = ""
    pid: int = 0
    at: float = 0.0
    round_interval_s: float = 0.0
    round_s: float = 0.0
    fold_interval_s: float = 0.0
    held: dict[str, str] = field(default_factory=dict)
    fold_errors: dict[str, str] = field(default_factory=dict)
    bootstraps: dict[str, str] = field(default_factory=dict)  # "peer table": what it waits for
    away: dict[str, str] = field(default_factory=dict)  # other hosts whose files it cannot read now: why

    def silence(self, now_s: float) -> str:
        """How long it has told nothing, since it is frozen, dead or in a long round; "" when it speaks."""
        for_s = now_s - self.at
        return f"silent for {for_s:.0f} s" if for_s >= SILENT_S else ""

    def save(self, ledger: Replay) -> None:
        """Replace the report."""
        ledger.tell(json.dumps(asdict(self)))

    @staticmethod
    def load(ledger: Replay) -> ReplayReport | None:
        """The last report; None when replay has never run."""
        try:
            return ReplayReport(**json.loads(ledger.told()))
        except (ValueError, TypeError):
            return None


def silence(ledger: Replay) -> str:
    """What to say of a replay that has told nothing for a while by now, or has never run; "" when it speaks."""
    report = ReplayReport.load(ledger)
    if report is None:
        return "has never run"
    said = report.silence(time.time())
    return said and f"is {said}"
