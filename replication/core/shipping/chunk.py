"""Chunks: what is shipped, by whom, and the life of one. Pure; the JSON here is what stands in an assignment node.

::

    NEEDED ──assign──▶ ASSIGNED ──finish──▶ FINISHED ──apply──▶ APPLIED ──retire──▶ RETIRED
      ▲  │                 │                   │
      │  └──fail─▶ WAITING │                   │
      ├───due────────┘     │                   │
      ├──────revoke────────┘                   │
      └──────────────release───────────────────┘

A chunk is NEEDED while the peer has not all of it; ASSIGNED to a worker; WAITING while its peer is left alone after
failures; FINISHED when the peer reported it durable; APPLIED when the peer replayed it; RETIRED with its file.
``release``: the peer gave up its landing file before applying it (rule 2). Progress is a fact, so ``finish`` and
``apply`` may come in any state before them: a worker that was revoked may still have got its bytes across.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from replication.core.ids import ClusterId, FileId
from replication.errors import FormatError


class ChunkState(StrEnum):
    """Where a chunk is in its life."""

    NEEDED = "needed"
    ASSIGNED = "assigned"
    WAITING = "waiting"
    FINISHED = "finished"
    APPLIED = "applied"
    RETIRED = "retired"


class ChunkEvent(StrEnum):
    """What may happen to one."""

    ASSIGN = "assign"
    REVOKE = "revoke"
    FAIL = "fail"
    DUE = "due"
    FINISH = "finish"
    APPLY = "apply"
    RELEASE = "release"
    RETIRE = "retire"


_S, _E = ChunkState, ChunkEvent
TRANSITIONS: Mapping[tuple[ChunkState, ChunkEvent], ChunkState] = MappingProxyType(
    {
        (_S.NEEDED, _E.ASSIGN): _S.ASSIGNED,
        (_S.NEEDED, _E.FAIL): _S.WAITING,
        (_S.NEEDED, _E.FINISH): _S.FINISHED,
        (_S.NEEDED, _E.APPLY): _S.APPLIED,
        (_S.ASSIGNED, _E.REVOKE): _S.NEEDED,
        (_S.ASSIGNED, _E.FINISH): _S.FINISHED,
        (_S.ASSIGNED, _E.APPLY): _S.APPLIED,
        (_S.WAITING, _E.DUE): _S.NEEDED,
        (_S.WAITING, _E.FINISH): _S.FINISHED,
        (_S.WAITING, _E.APPLY): _S.APPLIED,
        (_S.FINISHED, _E.APPLY): _S.APPLIED,
        (_S.FINISHED, _E.RELEASE): _S.NEEDED,
        (_S.FINISHED, _E.RETIRE): _S.RETIRED,
        (_S.APPLIED, _E.RETIRE): _S.RETIRED,
    }
)


def step(state: ChunkState, event: ChunkEvent) -> ChunkState:
    """The state after ``event``; AssertionError when a chunk in ``state`` cannot meet it."""
    after = TRANSITIONS.get((state, event))
    assert after is not None, f"a chunk that is {state} cannot meet {event}"
    return after


@dataclass(frozen=True, slots=True, order=True)
class ChunkAssignment:
    """Part of a large CLOSED file, for one peer.

    The worker ships the frames that *start* in ``[begin, end)``, so chunks planned without knowing where frames lie
    tile the file all the same. Receivers are those of the same assignment's tail for ``peer``.
    """

    file: FileId
    begin: int
    end: int
    peer: str


@dataclass(frozen=True, slots=True, order=True)
class Tail:
    """All files of the worker's host to one peer, OPEN ones as they grow and their successors, but for ``elsewhere``.

    ``elsewhere`` names files that are shipped as chunks, by this worker or others; ``receivers`` are ``host:port``.
    """

    peer: str
    peer_cluster: ClusterId
    receivers: tuple[str, ...]
    elsewhere: tuple[FileId, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that one worker is to ship, decided under ``term``, which it tells the receivers."""

    term: int
    tails: tuple[Tail, ...] = ()
    chunks: tuple[ChunkAssignment, ...] = ()

    def tail(self, peer: str) -> Tail | None:
        """The tail for a peer."""
        return next((tail for tail in self.tails if tail.peer == peer), None)

    def same_work(self, other: Assignment) -> bool:
        """Whether both ask for the same, whatever their terms."""
        return self.tails == other.tails and self.chunks == other.chunks

    def encode(self) -> bytes:
        """JSON, as it stands in ZooKeeper; equal assignments give equal bytes."""
        fields = {
            "term": self.term,
            "tails": [
                {
                    "peer": tail.peer,
                    "cluster": str(tail.peer_cluster),
                    "receivers": list(tail.receivers),
                    "elsewhere": [str(file) for file in tail.elsewhere],
                }
                for tail in self.tails
            ],
            "chunks": [[str(chunk.file), chunk.begin, chunk.end, chunk.peer] for chunk in self.chunks],
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(content: bytes) -> Assignment:
        """Read the JSON form; FormatError when it is none."""
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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"an assignment node holds {content[:80]!r}: {error}") from None


def _tail(fields: Mapping[str, Any]) -> Tail:
    return Tail(
        str(fields["peer"]),
        ClusterId.parse(fields["cluster"]),
        tuple(map(str, fields["receivers"])),
        tuple(FileId.parse(file) for file in fields["elsewhere"]),
    )
