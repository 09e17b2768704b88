"""A ledger in memory for tests: ``SqlLedger`` over an in-memory SQLite, with faults that tests inject.

Calls can fail before or after they take effect, be delayed, or run twice, as when a reply is lost and the caller
retries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from replication.core.ids import ClusterId
from replication.ledger.base import (
    Batches,
    Bootstraps,
    CommitStepStore,
    Derivations,
    Drills,
    FileRecords,
    Grants,
    LandingRecords,
    Ledger,
    Registration,
    Replay,
    Rules,
    Salvage,
    Sending,
    SuccessionRecords,
    TableRecords,
    Terms,
    Time,
)
from replication.ledger.sql.ledger import SqlLedger, prepare
from replication.ledger.sql.store.store import SqlStore

Fault = Callable[[str], None]


class MemoryLedger:
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
        prepare(store, cluster)
        self._real: Ledger = SqlLedger(store, cluster)
        self.former: tuple[ClusterId, ...] = ()

    @property
    def terms(self) -> Terms:
        """See ``Ledger``."""
        return cast(Terms, _Part(self, "terms", self._real.terms))

    @property
    def tables(self) -> TableRecords:
        """See ``Ledger``."""
        return cast(TableRecords, _Part(self, "tables", self._real.tables))

    @property
    def rules(self) -> Rules:
        """See ``Ledger``."""
        return cast(Rules, _Part(self, "rules", self._real.rules))

    @property
    def files(self) -> FileRecords:
        """See ``Ledger``."""
        return cast(FileRecords, _Part(self, "files", self._real.files))

    @property
    def registration(self) -> Registration:
        """See ``Ledger``."""
        return cast(Registration, _Part(self, "registration", self._real.registration))

    @property
    def salvage(self) -> Salvage:
        """See ``Ledger``."""
        return cast(Salvage, _Part(self, "salvage", self._real.salvage))

    @property
    def grants(self) -> Grants:
        """See ``Ledger``."""
        return cast(Grants, _Part(self, "grants", self._real.grants))

    @property
    def landing(self) -> LandingRecords:
        """See ``Ledger``."""
        return cast(LandingRecords, _Part(self, "landing", self._real.landing))

    @property
    def batches(self) -> Batches:
        """See ``Ledger``."""
        return cast(Batches, _Part(self, "batches", self._real.batches))

    @property
    def bootstraps(self) -> Bootstraps:
        """See ``Ledger``."""
        return cast(Bootstraps, _Part(self, "bootstraps", self._real.bootstraps))

    @property
    def derivations(self) -> Derivations:
        """See ``Ledger``."""
        return cast(Derivations, _Part(self, "derivations", self._real.derivations))

    @property
    def drills(self) -> Drills:
        """See ``Ledger``."""
        return cast(Drills, _Part(self, "drills", self._real.drills))

    @property
    def steps(self) -> CommitStepStore:
        """See ``Ledger``."""
        return cast(CommitStepStore, _Part(self, "steps", self._real.steps))

    @property
    def replay(self) -> Replay:
        """See ``Ledger``."""
        return cast(Replay, _Part(self, "replay", self._real.replay))

    @property
    def time(self) -> Time:
        """See ``Ledger``."""
        return cast(Time, _Part(self, "time", self._real.time))

    @property
    def successions(self) -> SuccessionRecords:
        """See ``Ledger``."""
        return cast(SuccessionRecords, _Part(self, "successions", self._real.successions))

    @property
    def sending(self) -> Sending:
        """See ``Ledger``."""
        return cast(Sending, _Part(self, "sending", self._real.sending))

    def decided(self) -> object | None:
        """See ``Ledger``."""
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
