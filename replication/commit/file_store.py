"""Commit sequences as files, on a disk or in any store that fsspec supports: one file of JSON a sequence.

Every change writes the file anew under another name and renames it. Changes of one sequence exclude each other by a
lock; on object stores that is an object, which a killed process may leave. The ledger has no such weakness.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from urllib.parse import quote

from replication.files.owner import is_gone
from replication.files.store import RemoteStore
from replication.ledger.commit_steps import NewSequence, SequenceId, StoredSequence
from replication.ledger.decisions.leasing import can_lease, failed_once, leased_to, not_growing, unfinished, until
from replication.wall_clock import now_us

_NAME_CHARS_MAX = 150
_LOCKS = 16
_MADE = ".store"
_JSON = ".json"


class FileCommitSteps:
    """``CommitStepStore`` over files below one address. Lease times are of the hosts' clocks.

    Args:
        url: such as ``s3://bucket/commits``, or a path.
    """

    def __init__(self, url: str) -> None:
        self._files = RemoteStore(url)

    def create(self, store: str, urn: str = "") -> bool:
        if not urn:
            made = not self.exists(store)
            self._files.write(f"{_quoted(store)}/{_MADE}", b"")
            return made
        id, now = SequenceId(store, urn), now_us()
        with self._changing(id) as found:
            if found is None:
                self._write(StoredSequence(id, (), complete=False, created=now, changed=now))
        return found is None

    def exists(self, store: str, urn: str = "") -> bool:
        if urn:
            return self._read(SequenceId(store, urn)) is not None
        return self._files.load(f"{_quoted(store)}/{_MADE}") is not None

    def remove(self, store: str, urn: str = "") -> bool:
        if urn:
            with self._changing(SequenceId(store, urn)) as found:
                if found is not None:
                    self._forget(found.id)
            return found is not None
        there = self.exists(store)
        for stored in self.sequences(store):
            self.remove(store, stored.id.urn)
        self._files.remove(self._files.address(f"{_quoted(store)}/{_MADE}"))
        return there

    def put(self, store: str, urn: str, step: str, *, last: bool = False) -> None:
        with self._changing(SequenceId(store, urn)) as found:
            if found is None or found.complete:
                raise not_growing(SequenceId(store, urn))
            self._write(replace(found, steps=(*found.steps, step), complete=last))

    def put_all(self, sequences: Sequence[NewSequence], owner: str = "", lease_s: float = 0.0) -> None:
        """See ``CommitStepStore``. A sequence that another process stores meanwhile is refused after others."""
        for new in sequences:
            taken = self._read(new.id)
            if taken is not None:
                raise unfinished(taken)
        for new in sequences:
            now = now_us()
            with self._changing(new.id) as taken:
                if taken is not None:
                    raise unfinished(taken)
                stored = StoredSequence(new.id, new.steps, complete=True, created=now, changed=now)
                self._write(leased_to(stored, owner, until(now, lease_s)) if owner else stored)

    def sequences(self, store: str = "", urn: str = "") -> list[StoredSequence]:
        if store and urn:
            found = self._read(SequenceId(store, urn))
            return [] if found is None else [found]
        folders = [_quoted(store)] if store else [name.lstrip("/") for name in self._files.names("")]
        names = [name for folder in folders for name in self._files.names(folder) if name.endswith(_JSON)]
        stored = [_parsed(content) for name in names if (content := self._files.load(name)) is not None]
        return sorted((each for each in stored if urn in ("", each.id.urn)), key=lambda each: each.id)

    def lease(self, ids: Iterable[SequenceId], owner: str, lease_s: float) -> list[StoredSequence]:
        leased = []
        for id in ids:
            with self._changing(id) as found:
                now = now_us()
                if found is not None and can_lease(found, owner, now, is_gone):
                    leased.append(leased_to(found, owner, until(now, lease_s)))
                    self._write(leased[-1])
        return leased

    def renew(self, owner: str, lease_s: float, done: Mapping[SequenceId, int]) -> frozenset[SequenceId]:
        kept = set()
        for id, number in done.items():
            with self._changing(id) as found:
                if found is not None and found.owner == owner:
                    self._write(replace(found, done=number, leased_until=until(now_us(), lease_s)))
                    kept.add(id)
        return frozenset(kept)

    def release(self, owner: str, ids: Iterable[SequenceId]) -> None:
        for id in ids:
            with self._changing(id) as found:
                if found is not None and found.owner == owner:
                    self._write(leased_to(found, "", 0))

    def fail(self, failed: SequenceId, owner: str, done: int, error: str, failures_max: int) -> StoredSequence | None:
        with self._changing(failed) as found:
            if found is None or found.owner != owner:
                return None
            after = failed_once(found, done, error, failures_max, now_us())
            self._write(after)
            return after

    def finish(self, owner: str, ids: Iterable[SequenceId]) -> None:
        for id in ids:
            with self._changing(id) as found:
                if found is not None and found.owner == owner:
                    self._forget(id)

    def retry(self, store: str, urn: str) -> bool:
        with self._changing(SequenceId(store, urn)) as found:
            if found is not None:
                self._write(replace(found, failures=0, suspended=False, changed=now_us()))
        return found is not None

    @contextmanager
    def _changing(self, id: SequenceId) -> Iterator[StoredSequence | None]:
        """The sequence, locked; its store is created."""
        folder = _quoted(id.store)
        with self._files.locked(f"{folder}/.lock{sha256(id.urn.encode()).digest()[0] % _LOCKS}"):
            if not self.exists(id.store):
                self._files.write(f"{folder}/{_MADE}", b"")
            yield self._read(id)

    def _read(self, id: SequenceId) -> StoredSequence | None:
        content = self._files.load(_file(id))
        return None if content is None else _parsed(content)

    def _write(self, stored: StoredSequence) -> None:
        self._files.write(_file(stored.id), json.dumps(asdict(stored)).encode())

    def _forget(self, id: SequenceId) -> None:
        self._files.remove(self._files.address(_file(id)))


def _quoted(name: str) -> str:
    """A name as a file's name: short, without separators, and never hidden."""
    short = quote(name, safe="").replace(".", "%2E")
    if len(short) <= _NAME_CHARS_MAX:
        return short
    return f"{short[:_NAME_CHARS_MAX]}-{sha256(name.encode()).hexdigest()[:32]}"


def _file(id: SequenceId) -> str:
    return f"{_quoted(id.store)}/{_quoted(id.urn)}{_JSON}"


def _parsed(content: bytes) -> StoredSequence:
    fields = json.loads(content)
    return StoredSequence(**{**fields, "id": SequenceId(**fields["id"]), "steps": tuple(fields["steps"])})
