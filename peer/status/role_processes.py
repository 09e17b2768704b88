"""The processes of this host's roles, by the state files that they write: ``run/<role>.json``."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_IN_ZOOKEEPER = ("master", "worker", "receiver")
_SOON_S = 5.0  # a master is ready a moment before it stands for election


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a role: ``starting``, ``ready``, ``stopped``, or ``failed`` with ``what`` and ``hint``."""

    role: str
    pid: int
    state: str
    what: str = ""
    hint: str = ""
    exit_code: int = 0
    at: float = 0.0

    def write(self, run_dir: Path) -> None:
        """Replace the state file atomically."""
        run_dir.mkdir(parents=True, exist_ok=True)
        made = run_dir / f".{self.role}.{self.pid}"
        try:
            made.write_text(json.dumps(asdict(self)))
            made.replace(run_dir / f"{self.role}.json")
        except OSError:  # a full disk
            made.unlink(missing_ok=True)
            raise

    @staticmethod
    def read(run_dir: Path, role: str) -> ProcessState | None:
        """The last state; None when there is none."""
        try:
            return ProcessState(**json.loads((run_dir / f"{role}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


def roles_without_session(run_dir: Path, present: Collection[str], now_s: float) -> tuple[str, ...]:
    """Roles whose process runs here but has no session with ZooKeeper, as ``worker (process 7)``.

    ``run_dir`` has their state files. ``present`` are the roles that ZooKeeper knows to run here, as ``Host.roles``.
    """
    found = []
    for role in _IN_ZOOKEEPER:
        state = ProcessState.read(run_dir, role)
        if state is None or state.state != "ready" or any(each.startswith(role) for each in present):
            continue
        if now_s < state.at + _SOON_S:
            continue
        import psutil  # deferred: it takes a while to import

        with suppress(psutil.Error):
            if psutil.Process(state.pid).create_time() < state.at + 1.0:  # else another has the process id now
                found.append(f"{role} (process {state.pid})")
    return tuple(found)
