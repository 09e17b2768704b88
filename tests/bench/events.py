"""What a role of a cluster has logged since some moment: its log's lines are facts with a time."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path


class Events:
    """Lines of ``log/<role>.log`` written after this was made.

    Args:
        home: the cluster's folder.
        role: whose log.
        table: only lines about this table or its parts; all when empty.
    """

    def __init__(self, home: Path, role: str, table: str = "") -> None:
        self._file = home / "log" / f"{role}.log"
        self._table = table
        self._begin = self._file.stat().st_size if self._file.exists() else 0

    def counts(self) -> Counter[str]:
        """How often each event came."""
        return Counter(str(line["event"]) for line in self._lines())

    def first(self, event: str) -> float | None:
        """When an event first came (monotonic), or None."""
        for line in self._lines():
            if line["event"] == event:
                ago = time.time() - datetime.fromisoformat(str(line["timestamp"])).timestamp()
                return time.monotonic() - ago
        return None

    def _lines(self) -> Iterator[dict[str, object]]:
        if not self._file.exists():
            return
        with self._file.open("rb") as log:
            log.seek(self._begin)
            for raw in log:
                if not raw.endswith(b"\n"):
                    return
                line: dict[str, object] = json.loads(raw)
                name = str(line.get("table", ""))
                if not self._table or name == self._table or name.startswith(f"{self._table}__"):
                    yield line
