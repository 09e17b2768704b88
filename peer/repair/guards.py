"""Who must not be at work while a file is salvaged, or the cluster gets another id: replay, writers, other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from peer.polling import polls
from peer.replay.loop import replay_lock
from replication.config import Config
from replication.coordination.paths import Election, MemberKind
from replication.coordination.session import Coordination
from replication.errors import LockedFileError, MissingFileError, RequestError
from replication.files.base import AppendFile, Files
from replication.ledger.base import FileKind, FileRow
from replication.writer.wal.registration import lock_path

_LOCK_S = 1.0


def check_unused(files: Files, *folders: str) -> None:
    """RequestError while a program has a lock in one of these folders: a writer, a receiver or replay on this host."""
    for path in (f"{folder}/{name}" for folder in folders for name in files.names(folder) if name.endswith(".lock")):
        with closing(files.open(path)) as lock:
            try:
                lock.lock()
            except LockedFileError:
                raise RequestError(
                    f"a program here still uses the cluster, and has locked {path}",
                    "End it: a writer's lock has its process id. What a killed walship up ran ends in some seconds",
                ) from None


def check_host(row: FileRow, here: str, coordination: Coordination | None) -> None:
    """RequestError unless the file is this host's, or lies on one that is gone."""
    if row.host == here:
        if row.source is not None and not row.closed:
            raise RequestError(
                f"{row.file} is still OPEN", "Its receiver closes it when it restarts, or after an idle minute"
            )
        return
    kinds = (MemberKind.WORKERS, MemberKind.RECEIVERS)
    if coordination is None or any(member.name == row.host for kind in kinds for member in coordination.members(kind)):
        raise RequestError(f"{row.file} lies on host {row.host}, which is up", "Salvage it there")


def check_growing(files: Files, row: FileRow, here: str) -> None:
    """RequestError when the worker of this host writes this control log."""
    if row.kind is FileKind.CONTROL and not row.closed and row.host == here and files.exists(row.path):
        raise RequestError(
            f"the worker of this host writes {row.file}, or will close it", "Restart it: walship down, walship up"
        )


@contextmanager
def without_replay(run_dir: Path, coordination: Coordination | None) -> Iterator[None]:
    """While the own replay runs nowhere; LockedFileError when it does."""
    leader = None if coordination is None else coordination.leader(Election.REPLAYERS)
    if leader is not None:
        raise LockedFileError(
            f"Replay is running on host {leader}, and might be applying some of the file right now",
            "Stop the replay role on every host, salvage the file, and start them again",
        )
    try:
        with replay_lock(run_dir):
            yield
    except LockedFileError:
        raise LockedFileError(
            "the own replay is running, and might be applying some of the file right now",
            "Stop the cluster on this host (walship down), salvage the file, and start it again",
        ) from None


@contextmanager
def without_writer(config: Config, files: Files, row: FileRow) -> Iterator[None]:
    """While nobody writes an OPEN file of this host, or recovers it; RequestError when a writer does."""
    if row.closed or row.host != config.cluster.host or not row.writer:
        yield
        return
    lock: AppendFile | None = None
    with suppress(MissingFileError):
        lock = files.open(lock_path(str(config.wal_dir), row.writer))
    try:
        if lock is not None:
            _take(lock, row)
        yield
    finally:
        if lock is not None:
            lock.close()


def _take(lock: AppendFile, row: FileRow) -> None:
    """Take a writer's lock, which the worker has for a moment whenever it tries to recover the file."""
    for _ in polls(_LOCK_S, 0.02):
        with suppress(LockedFileError):
            lock.lock()
            return
    raise RequestError(f"{row.file} is still written by {row.writer}", "Close that writer first")
