"""The whole ledger. Each part has a protocol, in a file with its records; this module re-exports the records.

Facts (files, lengths, progress, landings, claims, applied) are monotone joins: any process may report them, in any
order and more than once. Decisions (rules, retire) are conditional on the master's term; they raise StaleTermError
when a newer term exists. Every method is one SQL transaction and is durable when it returns. Every method raises
LedgerBusyError when the store stays locked past its timeout, and CoordinationError when the store is unreachable.
"""

from __future__ import annotations

from typing import Protocol

from replication.core.ids import ClusterId
from replication.core.phase import Phase
from replication.ledger.batches import Batches, BatchPart
from replication.ledger.bootstraps import Bootstrap, Bootstraps, PassedOn
from replication.ledger.commit_steps import CommitStepStore, StoredSequence
from replication.ledger.derivations import Derivation, Derivations
from replication.ledger.drills import Drill, Drills
from replication.ledger.files import KEEP, Backlog, FileKind, FileRecords, FileRow, PeerProgress, Released
from replication.ledger.grants import GrantRow, Grants, Invitation
from replication.ledger.landing import LandingRecords
from replication.ledger.registration import Claim, Divergence, Landed, LandedPart, Registration
from replication.ledger.replay import Pending, Quarantined, Replay, ReplayCheckpoint
from replication.ledger.rules import Gap, PatternRule, Peer, Rule, Rules
from replication.ledger.salvage import Readable, Salvage, SalvagePlan, SenderKeeps
from replication.ledger.sending import Attempt, HeldTable, Sending
from replication.ledger.successions import SuccessionRecords
from replication.ledger.tables import TableRecords
from replication.ledger.terms import Terms
from replication.ledger.time import Grown, SkewedClock, Time, WriterRow

__all__ = ["Attempt", "Backlog", "BatchPart", "Bootstrap", "Claim", "Derivation", "Divergence", "Drill"]
__all__ += ["FileKind", "FileRow", "Gap", "GrantRow", "Grown", "HeldTable", "Invitation", "KEEP", "Landed"]
__all__ += ["LandedPart", "LandingRecords", "Ledger", "PassedOn", "PatternRule", "Peer", "PeerProgress"]
__all__ += ["Pending", "Phase", "Quarantined", "Readable", "Released", "Replay", "ReplayCheckpoint", "Rule"]
__all__ += ["SalvagePlan", "SenderKeeps", "SkewedClock", "StoredSequence", "WriterRow"]


class Ledger(Protocol):
    """The whole ledger of one cluster."""

    cluster: ClusterId
    former: tuple[ClusterId, ...]  # its ids before it was restored from backups

    @property
    def terms(self) -> Terms: ...  # the master's term, the cluster's role
    @property
    def tables(self) -> TableRecords: ...  # definitions
    @property
    def rules(self) -> Rules: ...  # peers and rules
    @property
    def files(self) -> FileRecords: ...  # files, and each peer's progress on them
    @property
    def registration(self) -> Registration: ...  # registering durable bytes and claiming their sequences
    @property
    def landing(self) -> LandingRecords: ...  # coverage, received ranges and routes
    @property
    def grants(self) -> Grants: ...  # what other clusters may do here
    @property
    def salvage(self) -> Salvage: ...  # lost and damaged files
    @property
    def batches(self) -> Batches: ...  # and their ids
    @property
    def bootstraps(self) -> Bootstraps: ...  # sent to peers and received from them
    @property
    def derivations(self) -> Derivations: ...  # derived tables
    @property
    def drills(self) -> Drills: ...
    @property
    def steps(self) -> CommitStepStore: ...  # commit sequences
    @property
    def replay(self) -> Replay: ...  # progress of this cluster's replay
    @property
    def time(self) -> Time: ...  # writers, closed and replicated time
    @property
    def successions(self) -> SuccessionRecords: ...  # which cluster originates in place of which
    @property
    def sending(self) -> Sending: ...  # reports of send attempts, held tables, and samples

    def decided(self) -> object | None:
        """Equal to what an earlier call returned unless something was decided in between; None where none can tell.

        Facts (bytes, progress, claims, times, reports) are not decisions. A process that is killed right after a commit
        may leave a decision untold.
        """

    def close(self) -> None:
        """Close its connections."""
