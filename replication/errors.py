"""Every error walship raises on purpose, in one tree.

::

    ReplicationError(what, retryable, hint)
      ConfigError                 the configuration or the machine is not fit; fix it and start again
      FormatError                 bytes or values that break proto/wal_format.md or a table's schema
        CorruptFrameError           a checksum or hash does not match; carries file, offset and bytes lost
        VersionError                written by a newer, unknown format version
        SchemaError                 a column or value the table cannot hold, by name
        NullKeyError                NULL in a key column
      RequestError                the caller asked for something that cannot be done; nothing was changed
        UnknownTableError  UnknownPeerError  TableExistsError  PeerExistsError
        BatchConflictError          a repeated batch id with other content
        ConditionalMutationError    conditional mutations do not go with replication
        HistoryError                a user timestamp older than the table's history_s
      CoordinationError           ZooKeeper or the ledger could not be reached or refused
        NotLeaderError  StaleTermError  StaleEpochError  ReadOnlyClusterError  LeaseLostError  NoWorkerError
        LedgerBusyError             the ledger stayed locked past the time-out
      TransferError               between clusters
        PeerUnavailableError        could not be reached; retried with back-off
        PeerRefusedError(reason)    a typed refusal: wrong cluster, table, term, corruption, full disk, ...
        OutcomeUnknownError         sent, but no answer: the same request again is harmless
      StorageError                files
        MissingFileError  NoSpaceError  PoisonedFileError  LockedFileError
        ClosedFileError             something grew after it was CLOSED
      BackpressureError           a bounded queue stayed full past the time-out; a large append may be partly there
      WaitTimeoutError            the data is safe, but did not get where it was waited for in time
      ReplayError                 from landed frames to tables
        GapError  DivergenceError  CommitConflictError  ForeignMaintenanceError  SparkMissingError
        SupersededError             a replayer of a newer epoch has the table; this one stops
        EngineLostError             the Spark session is gone; start replay again
        HookError                   a hook failed, or gave rows that do not fit its derived table, which waits
        PoisonFrameError            a frame that cannot be decoded; carries path, begin and reason
        HostAwayError               files on another host of this cluster cannot be read now; carries the host

Raise or log, never both. Programmer mistakes are assertions.
"""

from __future__ import annotations


def one_line(error: BaseException, chars_max: int = 500) -> str:
    """Somebody else's error as one line; of Java's what it says and its causes, without where they were raised."""
    cause = getattr(error, "orig", None)  # SQLAlchemy tells what the database said with the statement and its values
    error = cause if isinstance(cause, BaseException) else error
    return f"{type(error).__name__}: {said(error)}"[:chars_max]


def said(error: BaseException) -> str:
    """Its message in one line."""
    lines = (line.strip().removeprefix(": ") for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith(("at ", "... ")))


class ReplicationError(Exception):
    """Root of the tree.

    Args:
        what: one line: what failed, on which cluster, table, file or offset.
        hint: one line: what a person should do; empty when there is nothing to do.
    """

    retryable = False
    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        """The failure and, when there is one, the remedy."""
        return f"{self.what}. {self.hint}" if self.hint else self.what


class ConfigError(ReplicationError):
    """The configuration or the machine is not fit."""

    exit_code = 2


class FormatError(ReplicationError):
    """Bytes or values that break the format or a schema."""

    exit_code = 3


class CorruptFrameError(FormatError):
    """A checksum or hash that does not match.

    Args:
        what: what failed.
        offset: where the bad frame starts, in bytes.
        lost_bytes: how many bytes from there cannot be trusted; -1 when unknown.
    """

    def __init__(self, what: str, hint: str = "", *, offset: int = -1, lost_bytes: int = -1) -> None:
        super().__init__(what, hint)
        self.offset = offset
        self.lost_bytes = lost_bytes


class VersionError(FormatError):
    """Written by a newer, unknown format version."""


class SchemaError(FormatError):
    """A column or value the table cannot hold."""


class NullKeyError(SchemaError):
    """NULL in a key column."""


class RequestError(ReplicationError):
    """The caller asked for something that cannot be done; nothing was changed."""

    exit_code = 4


class UnknownTableError(RequestError):
    """No such table."""


class UnknownPeerError(RequestError):
    """No such peer."""


class TableExistsError(RequestError):
    """A table of that name is there already, or its name with another uuid."""


class PeerExistsError(RequestError):
    """A peer of that name is there already."""


class BatchConflictError(RequestError):
    """A repeated batch id with other content."""


class ConditionalMutationError(RequestError):
    """Conditional mutations cannot be replicated."""


class HistoryError(RequestError):
    """A user timestamp older than the table's history."""


class CoordinationError(ReplicationError):
    """ZooKeeper or the ledger could not be reached or refused."""

    retryable = True
    exit_code = 5


class NotLeaderError(CoordinationError):
    """This master is not, or no longer, the elected one."""


class StaleTermError(CoordinationError):
    """A decision was taken under an older term than the ledger's."""

    retryable = False


class StaleEpochError(CoordinationError):
    """An older role or replay epoch than the one in force."""

    retryable = False


class ReadOnlyClusterError(CoordinationError):
    """The cluster is STANDBY and takes no writers."""

    retryable = False


class LeaseLostError(CoordinationError):
    """The writer could not prove its role lease after fdatasync; the outcome of the append is unknown."""

    retryable = False


class NoWorkerError(CoordinationError):
    """No live worker on this host, so nothing would ship what is written here."""


class LedgerBusyError(CoordinationError):
    """The ledger stayed locked past the time-out."""


class TransferError(ReplicationError):
    """Between clusters."""

    retryable = True
    exit_code = 6


class PeerUnavailableError(TransferError):
    """The peer could not be reached."""


class PeerRefusedError(TransferError):
    """The peer answered with a typed refusal.

    Args:
        what: the peer's words.
        reason: one of the ``Refusal`` names of ``proto/walship.proto``.
        expected: the offset the peer expects next, for ``HOLE``; else -1.
    """

    def __init__(self, what: str, hint: str = "", *, reason: str = "", expected: int = -1) -> None:
        super().__init__(what, hint)
        self.reason = reason
        self.expected = expected


class OutcomeUnknownError(TransferError):
    """Sent, but no answer came; sending the same again is harmless."""


class StorageError(ReplicationError):
    """Files."""

    exit_code = 7


class MissingFileError(StorageError):
    """A file the ledger knows is not there."""


class NoSpaceError(StorageError):
    """The disk is full or over its budget."""

    retryable = True


class PoisonedFileError(StorageError):
    """An fsync or lease check failed on this file; it is never touched again."""


class LockedFileError(StorageError):
    """Another process holds the file or directory."""

    retryable = True


class ClosedFileError(StorageError):
    """A file grew, or would grow, after it was CLOSED: two authors, or a mistake."""


class BackpressureError(ReplicationError):
    """A bounded queue stayed full past the time-out; of an append larger than a frame, some may be written."""

    retryable = True
    exit_code = 8


class WaitTimeoutError(ReplicationError):
    """The data is safe, but did not get where it was waited for in time."""

    retryable = True
    exit_code = 9


class ReplayError(ReplicationError):
    """From landed frames to tables."""

    exit_code = 10


class GapError(ReplayError):
    """Bytes or sequences that should be there are not."""


class DivergenceError(ReplayError):
    """Same sequence, other content: two histories of one stream."""


class CommitConflictError(ReplayError):
    """Another replayer committed first; this one stops."""


class ForeignMaintenanceError(ReplayError):
    """Table positions can no longer be told after somebody else's maintenance."""


class SparkMissingError(ReplayError):
    """PySpark or Java is not installed."""


class SupersededError(ReplayError):
    """A replayer of a newer epoch has taken the table."""


class EngineLostError(ReplayError):
    """The Spark session is gone; whether a commit that was under way happened is told by the table."""

    retryable = True


class HookError(ReplayError):
    """A hook failed, or gave rows that do not fit its derived table; nothing of them was written."""


class PoisonFrameError(ReplayError):
    """A frame that cannot be decoded.

    Args:
        path: the file it lies in.
        begin: where it starts there, in bytes.
        reason: why it cannot be decoded.
    """

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
    """Files on another host of this cluster cannot be read now.

    Args:
        host: its slot.
        reason: why not.
    """

    retryable = True

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            f"host {host} does not give its files: {reason}",
            "What lies there is applied when its receiver is up again: walship up",
        )
        self.host = host
        self.reason = reason

    def __reduce__(self) -> tuple[type[HostAwayError], tuple[str, str]]:
        """So that it can be raised in an executor's process."""
        return HostAwayError, (self.host, self.reason)
