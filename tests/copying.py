"""What tests of copies share: trees of files, a job over them, and a store that dies as a killed process does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import STAGING
from replication.datasets.converters.plugins import conversions_of
from replication.datasets.finders.recursive import OneDataset, RecursiveDataset
from replication.datasets.job import CopyJob
from replication.datasets.stores.base import Store
from replication.datasets.stores.local import LocalStore


def write_tree(root: Path, files: dict[str, bytes], time_s: int = 1_700_000_000) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (time_s, time_s))


def read_tree(root: Path) -> dict[str, bytes]:
    """Every file but those of a copy that is not done."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and STAGING not in path.relative_to(root).parts
    }


def job(source: Store, target: Store, *, conversions: Sequence[str] = (), **given: Any) -> CopyJob:
    given["conversions"] = conversions_of(conversions)
    return CopyJob(source, target, OneDataset(RecursiveDataset(source)), CopyConfiguration(**given))


def copied(source: Path, target: Path, **given: Any) -> CopyJob:
    """A copy from folder to folder that has run."""
    made = job(LocalStore(str(source)), LocalStore(str(target)), **given)
    made.run()
    return made


@dataclass
class Sink:
    """A sink of a listing that keeps what it is told."""

    tasks: Any = None
    told: list[tuple[Any, ...]] = field(default_factory=list)
    is_stopped: bool = False

    def copy(self, files: Sequence[CopyableFile]) -> None:
        self.told += [("copy", file.origin, file.guid, file.destination, file.file_set) for file in files]

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in ("ended", "skipped", "failed", "unlisted", "extra", "empty"):
            raise AttributeError(name)
        return lambda *given: self.told.append((name, *given))


class Killed(BaseException):
    """What a dead process would not see."""


class DyingStore(LocalStore):
    """Does so many changes and then none: what a later run finds is what a process leaves that is killed there."""

    def __init__(self, root: str, changes: int) -> None:
        super().__init__(root)
        self.left = changes
        self._counted = threading.Lock()

    def _count(self) -> None:
        with self._counted:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def write_small(self, *given: Any) -> None:
        self._count()
        super().write_small(*given)

    def create(self, *given: Any) -> Any:
        self._count()
        return super().create(*given)

    def make_folder(self, *given: Any) -> None:
        self._count()
        super().make_folder(*given)

    def move(self, *given: Any) -> None:
        self._count()
        super().move(*given)

    def remove_files(self, paths: Iterable[Any]) -> None:
        for path in paths:
            self._count()
            super().remove_files([path])

    def remove_folder(self, *given: Any) -> None:
        self._count()
        super().remove_folder(*given)

    def sync(self, paths: Iterable[Any]) -> None:
        self._count()
        super().sync(paths)

    def sync_all(self) -> None:
        self._count()
        super().sync_all()
