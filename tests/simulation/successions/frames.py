"""Frames as the simulation of successions keeps them: where they came from, which were acked, which version wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from replication.core.frame import FrameView
from replication.core.ids import ClusterId, StreamId
from replication.ledger.base import Claim

Order = tuple[int, str, int, int]
Versions = dict[int, tuple[Order, tuple[StreamId, int]]]


@dataclass(frozen=True)
class Stored:
    """A frame that is registered at a cluster, its origin first in ``provenance``."""

    view: FrameView
    provenance: tuple[ClusterId, ...]

    @property
    def key(self) -> tuple[StreamId, int]:
        """Its identity."""
        return self.view.header.stream, self.view.header.sequence


@dataclass(frozen=True)
class Acked:
    """A write that a caller was told is durable."""

    stream: StreamId
    sequence: int
    commit: int
    epoch: int


def newest(frames: Iterable[Stored], keys: Mapping[bytes, int]) -> Versions:
    """The version of each key that wins; ``keys`` has the key of a row by its payload's hash."""
    found: Versions = {}
    for stored in frames:
        header = stored.view.header
        order = header.commit_hi, header.wal.cluster.name, header.wal.number, header.sequence
        key = keys[header.payload_sha256]
        if key not in found or order > found[key][0]:
            found[key] = order, stored.key
    return found


def claim(view: FrameView, begin: int = -1, end: int = -1) -> Claim:
    """What registration claims of a frame."""
    header = view.header
    at, to = (view.begin, view.end) if begin < 0 else (begin, end)
    return Claim(header.stream, header.sequence, header.previous, view.hash, at, to, header.commit_hi)


def address(name: str) -> str:
    """The ZooKeeper address of a cluster."""
    return f"zk:2181/walship/{name}"
