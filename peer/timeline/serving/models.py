"""The messages of the timeline's server, as OpenAPI documents them. Times are microseconds since 1970."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from replication.core.timeline.instants import FileVersion, Instant, TimelineState
from replication.core.timeline.view import FileSlice


class StoredVersion(BaseModel):
    """One version of a file."""

    path: str = Field(description="below the dataset's root")
    size: int = Field(description="bytes")
    digest: str = Field(description="of its content; empty when unknown")
    added: int = Field(description="the instant from which on it can be seen; 0: before the timeline")
    requested: int = Field(description="when that instant was requested")
    removed: int = Field(description="the instant that replaced it; 0: none")

    @staticmethod
    def of(version: FileVersion) -> dict[str, Any]:
        """As JSON. Made by hand: for 1,000 files a model takes ten times as long."""
        return {name: getattr(version, name) for name in _OF_VERSION}


_OF_VERSION = tuple(StoredVersion.model_fields)


class Slice(BaseModel):
    """A file as a reader sees it: a whole version, and deltas to apply to it."""

    file: str
    base: int = Field(description="the time of the instant that began the slice")
    whole: StoredVersion | None = Field(description="null while a pending fold has not written it")
    deltas: list[StoredVersion]

    @staticmethod
    def of(found: FileSlice) -> dict[str, Any]:
        """As JSON."""
        return {
            "file": found.file,
            "base": found.base,
            "whole": StoredVersion.of(found.whole) if found.whole is not None else None,
            "deltas": [StoredVersion.of(delta) for delta in found.deltas],
        }


class Slices(BaseModel):
    """File slices of a partition, sorted by file, and the state of the timeline that they are of."""

    partition: str
    slices: list[Slice]
    next: str | None = Field(description="ask again after this file; null at the end")
    instant: int = Field(description="the last completed instant")
    hash: str = Field(description="of the timeline")


class InstantAnswer(BaseModel):
    """An instant."""

    time: int = Field(description="when it was requested")
    action: str
    state: str = Field(description="requested, inflight or completed")
    dataset: str = Field(description="or table")
    key: str = Field(description="the caller's name for it; of a table: the commit, fold, peer or drill")
    completed: int = Field(description="0 while it is pending")
    adds: int = Field(description="how many files it adds")
    replaces: int
    removes: int
    undone: list[int]
    retained: int = Field(description="of a clean: the oldest instant that can still be read")
    partitions: list[str]

    @staticmethod
    def of(instant: Instant) -> dict[str, Any]:
        """As JSON."""
        changes = instant.changes
        return {
            "time": instant.time,
            "action": instant.action.value,
            "state": instant.state.value,
            "dataset": instant.dataset,
            "key": instant.key,
            "completed": instant.completed,
            "adds": len(changes.adds),
            "replaces": len(changes.replaces),
            "removes": len(changes.removes),
            "undone": list(changes.undone),
            "retained": changes.retained,
            "partitions": sorted(changes.partitions()),
        }


class TimelineReply(BaseModel):
    """Instants, oldest first. ``complete`` is false when a client must read the timeline from its beginning."""

    instants: list[InstantAnswer]
    complete: bool
    instant: int
    hash: str


class TimelineHash(BaseModel):
    """What stands for the timeline up to its last event."""

    number: int = Field(description="of events")
    instant: int = Field(description="the last completed instant")
    hash: str

    @staticmethod
    def of(state: TimelineState) -> dict[str, Any]:
        """As JSON."""
        return {"number": state.number, "instant": state.instant, "hash": state.hash}


class Names(BaseModel):
    """Names of datasets or partitions, and the state of the timeline that they are of."""

    names: list[str]
    instant: int
    hash: str


class Health(BaseModel):
    """Whether the server answers, and what it has done."""

    status: str
    number: int
    instant: int
    hash: str
    listed: int = Field(description="partitions that it has listed since it started")


class Problem(BaseModel):
    """Why a request failed."""

    error: str
    hint: str
