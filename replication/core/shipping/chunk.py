"""Chunks, and the assignments of chunks to workers. Pure; the JSON form is the content of an assignment node.

A chunk is needed while the peer does not have all of it. The planner assigns it to a worker, or waits while the peer's
backoff runs. It revokes the chunks of a lost worker. A chunk is finished when it is durable at the peer by the ledger,
whichever worker shipped it. It is needed again when the peer loses it. A file is retired once the peer has applied all
of it. A chunk's state follows from the ledger's statuses and the assignments; nothing else is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replication.core.ids import MALFORMED, ClusterId, FileId
from replication.errors import FormatError


@dataclass(frozen=True, slots=True, order=True)
class ChunkAssignment:
    """Part of a large CLOSED file, for one peer.

    The worker ships the frames that *start* in ``[begin, end)``. So chunks tile the file, though the planner does not
    know the frames' offsets. The receivers are those of the same assignment's tail for ``peer``.
    """

    file: FileId
    begin: int
    end: int
    peer: str


@dataclass(frozen=True, slots=True, order=True)
class Tail:
    """All files of the worker's host, present and future, for one peer. OPEN files are shipped as they grow.

    ``chunked_files`` are the exceptions: files that this worker ships as chunks. ``receivers`` are ``host:port``.
    """

    peer: str
    peer_cluster: ClusterId
    receivers: tuple[str, ...]
    chunked_files: tuple[FileId, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The work of one worker, decided under ``term``. The worker sends the term to receivers."""

    term: int
    tails: tuple[Tail, ...] = ()
    chunks: tuple[ChunkAssignment, ...] = ()

    def tail(self, peer: str) -> Tail | None:
        """Return the tail for a peer, or None."""
        return next((tail for tail in self.tails if tail.peer == peer), None)

    def same_work(self, other: Assignment) -> bool:
        """Return whether both have the same tails and chunks; terms are not compared."""
        return self.tails == other.tails and self.chunks == other.chunks

    def encode(self) -> bytes:
        """Return the JSON form, for ZooKeeper; equal assignments give equal bytes."""
        fields = {
            "term": self.term,
            "tails": [
                {
                    "peer": tail.peer,
                    "cluster": str(tail.peer_cluster),
                    "receivers": list(tail.receivers),
                    "chunked_files": [str(file) for file in tail.chunked_files],
                }
                for tail in self.tails
            ],
            "chunks": [[str(chunk.file), chunk.begin, chunk.end, chunk.peer] for chunk in self.chunks],
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(content: bytes) -> Assignment:
        """Read the JSON form. Raises FormatError."""
        try:
            fields = json.loads(content)
            return Assignment(
                int(fields["term"]),
                tuple(_tail(tail) for tail in fields["tails"]),
                tuple(
                    ChunkAssignment(FileId.parse(file), int(begin), int(end), str(peer))
                    for file, begin, end, peer in fields["chunks"]
                ),
            )
        except MALFORMED as error:
            raise FormatError(f"an assignment node holds {content[:80]!r}: {error}") from None


def _tail(fields: Mapping[str, Any]) -> Tail:
    return Tail(
        str(fields["peer"]),
        ClusterId.parse(fields["cluster"]),
        tuple(map(str, fields["receivers"])),
        tuple(FileId.parse(file) for file in fields["chunked_files"]),
    )
