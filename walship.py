"""walship keeps tables the same on several clusters by shipping write-ahead logs between them.

::

    import walship

    with walship.connect("east.toml") as east:
        east.create_table("ops.flights", schema, key=["time_hour", "carrier", "flight"])
        position = east.upsert("ops.flights", rows)
        east.wait(position, cluster="west", until="visible", timeout_s=30)

This module re-exports the public API and nothing else; everything not named here may change.
"""

from peer.client.cluster import Cluster
from peer.client.connect import connect
from peer.drill.opening import drill
from peer.timeline.reading.dataset import DatasetSnapshot, dataset
from peer.verify.verdict import Verdict
from replication import __version__
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.rows.mutation import Mutation
from replication.errors import (
    BackpressureError,
    BatchConflictError,
    ConditionalMutationError,
    ConfigError,
    CoordinationError,
    CorruptFrameError,
    FormatError,
    HistoryError,
    HookError,
    LeaseLostError,
    NoSpaceError,
    NoWorkerError,
    NullKeyError,
    PeerExistsError,
    PeerRefusedError,
    PeerUnavailableError,
    ReadOnlyClusterError,
    ReplayError,
    ReplicationError,
    RequestError,
    SchemaError,
    StorageError,
    TableExistsError,
    TransferError,
    UnknownPeerError,
    UnknownTableError,
    WaitTimeoutError,
)

__all__ = [
    "BackpressureError",
    "BatchConflictError",
    "Cluster",
    "ClusterId",
    "ConditionalMutationError",
    "ConfigError",
    "CoordinationError",
    "CorruptFrameError",
    "DatasetSnapshot",
    "FormatError",
    "HistoryError",
    "HookError",
    "LeaseLostError",
    "Mutation",
    "NoSpaceError",
    "NoWorkerError",
    "NullKeyError",
    "PeerExistsError",
    "PeerRefusedError",
    "PeerUnavailableError",
    "Position",
    "ReadOnlyClusterError",
    "ReplayError",
    "ReplicationError",
    "RequestError",
    "SchemaError",
    "StorageError",
    "TableExistsError",
    "TableSpec",
    "TransferError",
    "UnknownPeerError",
    "UnknownTableError",
    "Verdict",
    "WaitTimeoutError",
    "__version__",
    "connect",
    "dataset",
    "drill",
]

if __name__ == "__main__":  # python -m walship
    from shell.entry import main

    main()
