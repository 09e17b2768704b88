"""The errors that walship raises, in one tree.

::

    ReplicationError(what, retryable, hint)
      ConfigError                 the configuration or the machine does not fit; correct it and start again
      FormatError                 bytes or values that do not fit proto/wal_format.md or a table's schema
        CorruptFrameError           a checksum or hash does not match; carries file, offset and bytes lost
        VersionError                written by a newer, unknown format version
        SchemaError                 a column or value the table cannot hold, by name
        NullKeyError                NULL in a key column
      RequestError                the request cannot be carried out; nothing was changed
        UnknownTableError  UnknownPeerError  TableExistsError  PeerExistsError
        BatchConflictError          a repeated batch id with other content
        ConditionalMutationError    conditional mutations cannot be replicated
        HistoryError                a user timestamp older than the table's history_s
        UnfinishedSequenceError     an earlier operation on the same thing has to be finished first
        SuspendedSequenceError      an operation that failed too often; carries on after walship ops retry
      CoordinationError           ZooKeeper or the ledger could not be reached or refused
        NotLeaderError  StaleTermError  StaleEpochError  ReadOnlyClusterError  LeaseLostError  NoWorkerError
        SequenceHeldError           another process runs this operation
        SuccessionError             two clusters claim to have taken over, or one cannot take over now
        LedgerBusyError             the ledger stayed locked past the timeout
      TransferError               between clusters
        PeerUnavailableError        could not be reached; retried with backoff
        PeerRefusedError(reason)    a typed refusal: wrong cluster, table, term, corruption, full disk, ...
      StorageError                files
        MissingFileError  NoSpaceError  PoisonedFileError  LockedFileError  BadSectorError
        ClosedFileError             something grew after it was CLOSED
      StepFailedError             a step of a commit sequence failed; carries the step's number and its error
      CopyError                   files between stores; what is published stays, and the next run goes on from there
        UnsafeNameError             a name that leaves its folder, or would break a store's protocol
        ChangedFileError            a file that changed while it was copied
        CopyIncompleteError         some files were not copied or published; the others are in place
        CopyDifferenceError         a comparison found differences
      BackpressureError           a bounded queue stayed full past the timeout; part of a large append may be written
      WaitTimeoutError            the data is safe, but did not arrive in time
      ReplayError                 from landed frames to tables
        GapError  DivergenceError  CommitConflictError  ForeignMaintenanceError  SparkMissingError
        SupersededError             a replayer of a newer epoch has the table; this one stops
        EngineLostError             the Spark session is gone; start replay again
        HookError                   a hook failed, or returned rows that do not fit the derived table, which waits
        PoisonFrameError            a frame that cannot be decoded; carries path, begin and reason
        HostAwayError               files of another host of this cluster cannot be read now; carries the host

Raise or log, never both. Programmer mistakes are assertions.
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of the tree.

    Args:
        what: one line: what failed, on which cluster, table, file or offset.
        hint: one line: what a person should do; empty when there is nothing to do.

    ``is_partial`` says, of an append, that earlier frames of it are durable.
    """

    retryable = False
    exit_code = 1
    is_partial = False

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        """The failure and, when there is one, the remedy."""
        return f"{self.what}. {self.hint}" if self.hint else self.what


class ConfigError(ReplicationError):
    """The configuration or the machine does not fit."""

    exit_code = 2


class FormatError(ReplicationError):
    """Bytes or values that do not fit the format or a schema."""

    exit_code = 3


class CorruptFrameError(FormatError):
    """A checksum or hash that does not match; says where in the file."""


class VersionError(FormatError):
    """Written by a newer, unknown format version."""


class SchemaError(FormatError):
    """A column or value the table cannot hold."""


class NullKeyError(SchemaError):
    """NULL in a key column."""


class RequestError(ReplicationError):
    """The request cannot be carried out; nothing was changed."""

    exit_code = 4


class UnknownTableError(RequestError):
    """No such table."""


class UnknownPeerError(RequestError):
    """No such peer."""


class TableExistsError(RequestError):
    """A table of that name exists already, or one with another uuid."""


class PeerExistsError(RequestError):
    """A peer of that name exists already."""


class BatchConflictError(RequestError):
    """A repeated batch id with other content."""


class ConditionalMutationError(RequestError):
    """Conditional mutations cannot be replicated."""


class HistoryError(RequestError):
    """A user timestamp older than the table's history."""


class UnfinishedSequenceError(RequestError):
    """An earlier commit sequence of the same URN has to be finished or abandoned first."""


class SuspendedSequenceError(RequestError):
    """A commit sequence that failed too often."""


class CoordinationError(ReplicationError):
    """ZooKeeper or the ledger could not be reached, or refused the request."""

    retryable = True
    exit_code = 5


class NotLeaderError(CoordinationError):
    """This master is not, or no longer, the elected one."""


class StaleTermError(CoordinationError):
    """A decision of an older term than the ledger's."""

    retryable = False


class StaleEpochError(CoordinationError):
    """An older role or replay epoch than the one in force."""

    retryable = False


class ReadOnlyClusterError(CoordinationError):
    """The cluster is STANDBY: its rows and tables are changed on the ACTIVE one."""

    retryable = False


class LeaseLostError(CoordinationError):
    """The writer could not prove its role lease after fdatasync; the outcome of the append is unknown."""

    retryable = False


class SuccessionError(CoordinationError):
    """Two clusters claim to be ACTIVE in place of one, or a cluster cannot take over now."""

    retryable = False


class NoWorkerError(CoordinationError):
    """No worker runs on this host, so nothing that is written here would be shipped."""


class SequenceHeldError(CoordinationError):
    """Another process has the lease of a commit sequence."""


class LedgerBusyError(CoordinationError):
    """The ledger stayed locked past the timeout."""


class TransferError(ReplicationError):
    """A transfer between clusters failed."""

    retryable = True
    exit_code = 6


class PeerUnavailableError(TransferError):
    """The peer could not be reached."""


class PeerRefusedError(TransferError):
    """The peer answered with a typed refusal.

    Args:
        what: the peer's message.
        reason: one of the ``Refusal`` names of ``proto/walship.proto``.
        expected: the offset the peer expects next, for ``HOLE``; else -1.
    """

    def __init__(self, what: str, hint: str = "", *, reason: str = "", expected: int = -1) -> None:
        super().__init__(what, hint)
        self.reason = reason
        self.expected = expected


class StorageError(ReplicationError):
    """A file operation failed."""

    exit_code = 7


class MissingFileError(StorageError):
    """A file that is in the ledger does not exist."""


class NoSpaceError(StorageError):
    """The disk is full or over its budget."""

    retryable = True


class PoisonedFileError(StorageError):
    """An fsync or lease check failed on this file; it is never written again."""


class BadSectorError(StorageError):
    """The disk does not give some bytes of a file; those around them may be whole."""


class LockedFileError(StorageError):
    """Another process holds the file or directory."""

    retryable = True


class ClosedFileError(StorageError):
    """A file grew, or would grow, after it was CLOSED."""


class StepFailedError(ReplicationError):
    """Step ``number`` (from 0) of a commit sequence failed by ``cause``; the sequence is kept and can be resumed."""

    exit_code = 11

    def __init__(self, what: str, hint: str = "", *, number: int = 0, cause: Exception | None = None) -> None:
        super().__init__(what, hint)
        self.number = number
        self.cause = cause
        self.retryable = isinstance(cause, ReplicationError) and cause.retryable


class CopyError(ReplicationError):
    """A copy of files between stores failed; what is published stays, and the next run goes on from there."""

    exit_code = 12


class UnsafeNameError(CopyError):
    """A name that leaves its folder, or would break a store's protocol."""


class ChangedFileError(CopyError):
    """A file changed while it was copied; no part of the copy was published."""

    retryable = True


class CopyIncompleteError(CopyError):
    """Some files were not copied or published; the others are in place."""

    retryable = True


class CopyDifferenceError(CopyError):
    """A comparison of two stores found differences."""

    exit_code = 13


class BackpressureError(ReplicationError):
    """A bounded queue stayed full past the timeout; part of a large append may be written."""

    retryable = True
    exit_code = 8


class WaitTimeoutError(ReplicationError):
    """The data is safe, but did not arrive in time."""

    retryable = True
    exit_code = 9


class ReplayError(ReplicationError):
    """Replay of landed frames into tables failed."""

    exit_code = 10


class GapError(ReplayError):
    """Bytes or sequences are missing."""


class DivergenceError(ReplayError):
    """The same sequence has other content: two histories of one stream."""


class CommitConflictError(ReplayError):
    """Another replayer committed first; this one stops."""


class ForeignMaintenanceError(ReplayError):
    """A table's positions were lost by maintenance of another program."""


class SparkMissingError(ReplayError):
    """PySpark or Java is not installed."""


class SupersededError(ReplayError):
    """A replayer of a newer epoch has taken the table."""


class EngineLostError(ReplayError):
    """The Spark session is gone; the table shows whether a commit in progress took effect."""

    retryable = True


class HookError(ReplayError):
    """A hook failed, or returned rows that do not fit its derived table; none was written."""


class PoisonFrameError(ReplayError):
    """The frame that begins at offset ``begin`` of a file cannot be decoded, for the ``reason`` given."""

    def __init__(self, path: str, begin: int, reason: str) -> None:
        super().__init__(
            f"the frame at offset {begin} of {path} cannot be decoded: {reason}",
            "If the file is damaged (walship wal verify), restore it, or salvage it: walship wal salvage",
        )
        self.path = path
        self.begin = begin
        self.reason = reason

    def __reduce__(self) -> tuple[type[PoisonFrameError], tuple[str, int, str]]:
        """So that it can be raised in an executor's process."""
        return PoisonFrameError, (self.path, self.begin, self.reason)


class HostAwayError(ReplayError):
    """Files of another host of this cluster, named by its slot, cannot be read now."""

    retryable = True

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            f"the files of host {host} cannot be read: {reason}",
            "They are applied when its receiver is up again: walship up",
        )
        self.host, self.reason = host, reason

    def __reduce__(self) -> tuple[type[HostAwayError], tuple[str, str]]:
        """So that it can be raised in an executor's process."""
        return HostAwayError, (self.host, self.reason)
