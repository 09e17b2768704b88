"""The schedule of a host's drills: a file in its data directory. ``walship up`` starts them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from replication.core.cron import CronTimes
from replication.errors import FormatError
from replication.files.local import write_whole
from replication.ledger.base import Drill
from replication.ledger.drills import AHEAD_US

_FILE = "schedule.json"


@dataclass(frozen=True, slots=True)
class DrillSchedule:
    """When a host's drills begin, and how.

    Args:
        cron: times in UTC, as ``CronTimes`` reads them.
        cluster: whose tables are forked.
        probes: absolute paths.
        full: whether the switchover is planned, too.
        folder: where they run.
        since: when the schedule was made, in microseconds since 1970.
        probe_timeout_s: as of ``DrillRequest``.
    """

    cron: str
    cluster: str
    probes: tuple[str, ...]
    full: bool
    folder: str
    since: int
    probe_timeout_s: float | None = None

    def save(self, folder: Path) -> None:
        """Store it in a host's folder of drills, in place of an earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _FILE, json.dumps(asdict(self)).encode())

    @staticmethod
    def load(folder: Path) -> DrillSchedule | None:
        """The stored one; None without one. Raises FormatError when it cannot be read."""
        try:
            found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            made = DrillSchedule(**{**found, "probes": tuple(found["probes"])})
            CronTimes.parse(made.cron)
            return made
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"{folder / _FILE} cannot be read: {error}", "Set it again: walship drill CLUSTER --schedule CRON"
            ) from None

    @staticmethod
    def remove(folder: Path) -> bool:
        """Remove the stored one; whether there was one."""
        was = (folder / _FILE).exists()
        (folder / _FILE).unlink(missing_ok=True)
        return was

    def due(self, drills: Iterable[Drill], host: str, tried: int = 0, now: int | None = None) -> int:
        """When the next drill is to begin, in microseconds since 1970. It may be past: a missed one is made up once.

        ``tried`` is when a drill was last begun that may not have got into the ledger. Drills, and a schedule made,
        more than a day after ``now`` do not count: the clock was wrong then.
        """
        begun = [self.since, tried, *(drill.begun for drill in drills if drill.scheduled and drill.host == host)]
        last = max((each for each in begun if now is None or each <= now + AHEAD_US), default=0)
        return int(CronTimes.parse(self.cron).after(datetime.fromtimestamp(last / 1e6, UTC)).timestamp() * 1e6)
