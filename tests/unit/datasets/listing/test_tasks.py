"""A big tree is listed by tasks: they find what threads find, in bounded answers, and what they cannot, threads do."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.finders.recursive import RecursiveDataset
from replication.datasets.listing import tasks as listing
from replication.datasets.listing.compare import Comparison
from replication.datasets.stores.base import Store
from replication.datasets.stores.local import LocalStore
from tests.copying import Sink, write_tree

pytestmark = pytest.mark.heavy


@dataclass
class Tasks:
    """Runs each task in the thread that asks; what goes there and back is pickled. The first ones may fail."""

    failing: int = 0
    parallel: int = 3
    is_ready: bool = True
    answers: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, function: Callable[[Iterable[Any]], Iterable[Any]], rows: Sequence[Any]) -> list[Any]:
        with self._lock:
            self.failing -= 1
            if self.failing >= 0:
                raise OSError("the executor is gone")
        answer = list(pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(rows))))
        with self._lock:
            self.answers.append(sum(len(given[0]) if name == "copy" else 1 for name, given in answer))
        return pickle.loads(pickle.dumps(answer))


@pytest.fixture
def stores(tmp_path: Path) -> tuple[LocalStore, LocalStore]:
    """A tree of 200 folders with new, changed, equal and hostile names, and a target that has some of it and more."""
    files = {f"{n % 20}/{n}/{m}": b"%d" % m for n in range(200) for m in range(5)}
    write_tree(tmp_path / "src", files | {"3/é\u202ebad": b"1", "4/line\nfeed": b"2", "5/44\x7f/in": b"3"})
    (tmp_path / "src/7/empty/below").mkdir(parents=True)
    (tmp_path / "src/7/out.tmp").write_bytes(b"")
    os.symlink("/etc/passwd", tmp_path / "src/8/link")
    same = {name: data for n, (name, data) in enumerate(files.items()) if n % 3 == 0}
    write_tree(tmp_path / "dst", same | {"0/0/extra": b"x", "only/there": b"y", "1/1/1": b"changed"})
    return LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))


def listed(stores: tuple[Store, Store], tasks: Tasks | None = None, **given: Any) -> list[tuple[Any, ...]]:
    sink = Sink(tasks)
    filters = Filters((FilterRule(False, "*.tmp"),))
    configuration = CopyConfiguration(delete=True, filters=filters, **given)
    RecursiveDataset(stores[0]).list_into(stores[1], configuration, sink)
    return sorted(sink.told, key=repr)


def test_tasks_tell_what_threads_tell(stores: tuple[LocalStore, LocalStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ENTRIES", 40)  # 000-40
    tasks, expected = Tasks(), listed(stores)
    assert {event[0] for event in expected} == {"copy", "ended", "skipped", "failed", "extra", "empty"}
    assert sum(event[0] == "failed" for event in expected) == 3, "hostile names are refused"
    assert listed(stores, tasks) == expected
    assert len(tasks.answers) > 5 and max(tasks.answers) <= 80


def test_what_tasks_fail_at_is_listed_by_the_driver(stores: tuple[LocalStore, LocalStore]) -> None:
    tasks = Tasks(failing=3)
    assert listed(stores, tasks) == listed(stores)
    assert tasks.failing <= 0


def test_a_folder_with_more_than_an_answer_holds_is_streamed_by_the_driver(
    stores: tuple[LocalStore, LocalStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(10):
        write_tree(Path(stores[0].root), {f"big{n}/{m}": b"" for m in range(70)})
    monkeypatch.setattr(listing, "ENTRIES", 40)
    tasks = Tasks()
    assert listed(stores, tasks) == listed(stores)
    assert max(tasks.answers) <= 80


def test_few_folders_are_listed_without_tasks(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {f"{n}/1": b"1" for n in range(5)})
    tasks = Tasks()
    found = listed((LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))), tasks)
    assert len(found) == 11 and not tasks.answers


def test_files_that_cannot_travel_are_listed_by_threads(stores: tuple[LocalStore, LocalStore]) -> None:
    configuration, sink = CopyConfiguration(), Sink(Tasks())
    build = partial(CopyableFile.build, stores[0].url, configuration=configuration)
    Comparison(*stores, configuration, lambda origin: build(origin), sink).run(ROOT)
    assert sink.tasks is not None and not sink.tasks.answers
    assert sum(event[0] == "copy" for event in sink.told) > 600


@pytest.mark.parametrize("tasks", [None, Tasks()])
def test_of_folders_that_the_target_lacks_few_are_remembered_and_all_are_listed(
    stores: tuple[LocalStore, LocalStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: Tasks | None
) -> None:
    stores = stores[0], LocalStore(str(tmp_path / "none"))
    expected = listed(stores)
    monkeypatch.setattr(listing, "MISSING_MAX", 3)
    monkeypatch.setattr(listing, "ENTRIES", 40)
    made: list[Comparison] = []
    run = Comparison.run
    monkeypatch.setattr(Comparison, "run", lambda self, *given: (made.append(self), run(self, *given)))
    assert listed(stores, tasks) == expected
    assert 0 < len(made[0].missing) <= 3


def test_a_stopped_sink_asks_for_no_more_tasks(stores: tuple[LocalStore, LocalStore]) -> None:
    tasks, sink = Tasks(), Sink(is_stopped=True)
    made = listing.FolderTasks(tasks, stores, partial(Comparison, *stores, CopyConfiguration(), str), set(), sink)
    assert made([RelativePath("1")]) == ([], []) and not tasks.answers
