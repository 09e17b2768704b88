"""A ledger in memory for tests: ``SqlLedger`` over an in-memory SQLite, with faults that tests inject.

Calls can fail before or after they take effect, be delayed, or run twice, as when a reply is lost and the caller
retries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from replication.core.ids import ClusterId
from replication.ledger.sql.ledger import SqlLedger
from replication.ledger.sql.store.store import SqlStore
from tests.ledgers import fill_ledger

if TYPE_CHECKING:
    _Typed = SqlLedger  # whose parts come from ``__getattr__``
else:
    _Typed = object

Fault = Callable[[str], None]


class MemoryLedger(_Typed):
    """A ledger that loses everything when closed.

    Attributes:
        fault: called with ``part.method`` before a call takes effect. To fail the call, raise CoordinationError or
            LedgerBusyError in it; to delay the call, block in it.
        fault_after: the same after the transaction has committed: the caller does not know the outcome.
        repeats: called with ``part.method``; whether the call runs twice. The second result is returned.
    """

    def __init__(self, cluster: ClusterId) -> None:
        """Create an empty ledger for ``cluster``."""
        self.fault: Fault | None = None
        self.fault_after: Fault | None = None
        self.repeats: Callable[[str], bool] | None = None
        self.cluster = cluster
        store = SqlStore("sqlite://")
        fill_ledger(store, cluster)
        self._real = SqlLedger(store, cluster)
        self.former: tuple[ClusterId, ...] = ()

    def __getattr__(self, part: str) -> Any:
        """A part of ``Ledger``, with the faults around its calls."""
        return _Part(self, part, getattr(self._real, part))

    def decided(self) -> object | None:
        return self._real.decided()

    def close(self) -> None:
        """Close the store and lose everything."""
        self._real.close()


class _Part:
    """One part of the ledger, with the faults around its calls."""

    def __init__(self, ledger: MemoryLedger, name: str, real: object) -> None:
        self._ledger = ledger
        self._name = name
        self._real = real

    def __getattr__(self, method: str) -> Callable[..., Any]:
        real = getattr(self._real, method)
        call = f"{self._name}.{method}"
        ledger = self._ledger

        @wraps(real)
        def faulty(*args: Any, **named: Any) -> Any:
            if ledger.fault is not None:
                ledger.fault(call)
            answer = real(*args, **named)
            if ledger.repeats is not None and ledger.repeats(call):
                answer = real(*args, **named)
            if ledger.fault_after is not None:
                ledger.fault_after(call)
            return answer

        return faulty
