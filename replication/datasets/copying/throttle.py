"""A limit of bytes per second over all threads of a copy; it may change while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from replication.core.copying.rates import RateTable, parse_rates
from replication.error_text import one_line
from replication.errors import CopyError, MissingFileError, ReplicationError, RequestError
from replication.log import get

_BURST_S = 0.1
_TAKEN_S = 1.0  # at most this much is taken at once, so that a new limit soon counts
_ASKED_EVERY_S = 1.0
_HINT = "Write a limit into it: 10MB, or off"
_log = get(__name__)


class CopyThrottle:
    """Bytes per second. ``rate`` is the limit now, None for none.

    ``stopped`` ends every wait, by an error: what is left would go without a limit.
    """

    def __init__(self, rate: Callable[[], float | None], stopped: threading.Event) -> None:
        self._rate = rate
        self._stopped = stopped
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Wait until that many more bytes may go. CopyError if the copy is stopped, and has a limit."""
        left = float(count)
        while left > 0 and (rate := self._rate()) is not None:
            part = min(left, rate * _TAKEN_S)
            with self._lock:
                now = time.monotonic()
                begin = max(self._free_at, now - _BURST_S)
                self._free_at = begin + part / rate
                wait_s = self._free_at - now
            left -= part
            if self._stopped.wait(max(wait_s, 0.0)):
                raise CopyError("the copy was stopped", "Run it again: it goes on where it was")


class CurrentRate:
    """The limit of this minute, by a table or by a file that holds one and that may change meanwhile.

    Args:
        limit: the table as text, or ``@FILE``. The file is asked again each second; what cannot be read is as before.

    Raises:
        MissingFileError: there is no such file.
        FormatError, RequestError: it holds no limit.
    """

    def __init__(self, limit: str) -> None:
        self._file = Path(limit[1:]) if limit.startswith("@") else None
        try:
            self._text = self._file.read_text() if self._file is not None else limit
        except FileNotFoundError:
            raise MissingFileError(f"there is no file {self._file} with a limit", _HINT) from None
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{self._file} holds no limit: {one_line(error)}", _HINT) from None
        self._table = parse_rates(self._text)
        self._asked_s = time.monotonic()

    def __call__(self) -> float | None:
        """The bytes per second; None for no limit."""
        if not self._table.steps and self._file is None:
            return None
        now_s = time.monotonic()
        if self._file is not None and now_s - self._asked_s >= _ASKED_EVERY_S:
            self._asked_s = now_s
            self._table = self._read(self._file)
        return self._table.at(minute_of_day())

    def _read(self, file: Path) -> RateTable:
        try:
            text = file.read_text()
            if text == self._text:
                return self._table
            table = parse_rates(text)
        except (OSError, UnicodeDecodeError, ReplicationError) as error:
            _log.warning("limit_not_read", file=str(file), error=str(error))
            return self._table
        self._text = text
        _log.info("limit_changed", limit=text.strip())
        return table


def minute_of_day() -> int:
    """Minutes since midnight, by the clock of this host."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min
