"""The bounds between listing and copying: largest first, small ones together, and a listing that waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.core.copying.ranges import Range
from replication.datasets.copying.window import CopyWindow
from replication.datasets.listing import walk as walking
from replication.datasets.listing.walk import walk
from tests.waiting import wait_until


def file(name: str, size: int) -> CopyableFile:
    return CopyableFile.build("file:///s", FileAttributes(RelativePath(name), size), CopyConfiguration())


def names(taken: object) -> list[str]:
    return [each.destination for each in taken]


def test_the_largest_file_is_taken_first_and_alone_and_small_ones_together() -> None:
    window = CopyWindow(large_bytes=100, files_per_split=3, split_bytes=50)  # 001-15, 000-41
    window.put([file("a", 10), file("big", 500), file("b", 20), file("c", 15), file("d", 30), file("e", 1)])
    window.end()
    taken = [window.take() for _ in range(3)]
    assert [names(each) for each in taken] == [["big"], ["d", "b"], ["c", "a", "e"]]
    window.begun()
    assert window.take() is None


def test_ranges_of_a_large_file_are_taken_by_whoever_asks_before_anything_else() -> None:
    window = CopyWindow(100, 3, 50)
    window.put([file("a", 10)])
    waiting = iter([Range(0, 0, 5), Range(1, 5, 9)])

    class Ranged:
        def next_range(self) -> Range | None:
            return next(waiting, None)

    window.share(Ranged())
    assert [window.take()[1].index for _ in range(2)] == [0, 1]
    assert names(window.take()) == ["a"]


def test_nobody_leaves_while_a_file_that_was_taken_alone_may_be_shared() -> None:
    window = CopyWindow(100, 3, 50)
    window.put([file("big", 500)])
    window.end()
    assert names(window.take()) == ["big"]
    waiting = iter([Range(0, 0, 250), Range(1, 250, 500)])

    class Ranged:
        def next_range(self) -> Range | None:
            return next(waiting, None)

    with ThreadPoolExecutor(2) as threads:
        taken = [threads.submit(window.take) for _ in range(2)]
        window.share(Ranged())
        assert sorted(each.result(30)[1].index for each in taken) == [0, 1]
        left = [threads.submit(window.take) for _ in range(2)]
        window.begun()
        assert [each.result(30) for each in left] == [None, None]


def test_a_listing_waits_while_the_window_is_full_and_goes_on_when_files_are_taken() -> None:
    window = CopyWindow(100, 1, 50, files_max=2)  # bounded memory
    window.put([file("a", 1), file("b", 1)])
    with ThreadPoolExecutor(1) as listing:
        put = listing.submit(window.put, [file("c", 1)])
        wait_until(lambda: put.done() or window._changed._waiters, what="the listing to wait")
        assert not put.done()
        assert names(window.take()) == ["a"]
        put.result(30)
    window.stop()
    window.put([file("d", 1)] * 5)
    assert window.take() is None


def pending(waiting: list[int]) -> type[deque[RelativePath]]:
    """A queue that notes how many wait in it."""

    class Pending(deque[RelativePath]):
        def append(self, folder: RelativePath) -> None:
            super().append(folder)
            waiting.append(len(self))

        def extend(self, folders: Iterable[RelativePath]) -> None:
            super().extend(folders)
            waiting.append(len(self))

    return Pending


def test_folders_that_wait_are_bounded_and_each_is_visited_once(monkeypatch: object) -> None:
    monkeypatch.setattr(walking, "PENDING_MAX", 3)  # 000-40
    seen: list[str] = []
    waiting: list[int] = []

    def visit(folder: RelativePath) -> list[RelativePath]:
        seen.append(folder)
        return [folder.child(str(n)) for n in range(6)] if folder.count("/") < 2 else []

    monkeypatch.setattr(walking, "deque", pending(waiting))
    walk([ROOT], visit, threads=3)
    assert len(seen) == len(set(seen)) == 1 + 6 + 36 + 216
    assert 3 <= max(waiting) <= 3 + 2, "and what each thread found at once"


def test_what_tasks_leave_to_anyone_is_bounded_too_and_each_is_visited_once(monkeypatch: object) -> None:
    monkeypatch.setattr(walking, "PENDING_MAX", 10)
    seen: list[str] = []
    waiting: list[int] = []

    class Tasks:
        parallel, is_ready, calls = 1, True, 0

        def __call__(self, folders: list[RelativePath]) -> tuple[list[RelativePath], list[RelativePath]]:
            self.calls += 1
            seen.extend(folders)
            return [each.child(str(n)) for each in folders for n in range(6) if each.count("/") < 3], []

    def visit(folder: RelativePath) -> Iterator[RelativePath]:
        seen.append(folder)
        for n in range(6 if folder else 20):
            if folder == ROOT and n == 9:
                wait_until(lambda: tasks.calls, what="a task to take some")
            if folder.count("/") < 3:
                yield folder.child(str(n))

    tasks = Tasks()
    monkeypatch.setattr(walking, "deque", pending(waiting))
    walk([ROOT], visit, threads=1, elsewhere=tasks)
    assert len(seen) == len(set(seen)) == 1 + 20 * (1 + 6 + 36 + 216)
    assert max(waiting) <= 10 + 1


def test_what_a_visit_raises_ends_the_walk() -> None:
    def visit(folder: RelativePath) -> list[RelativePath]:
        if folder:
            raise ValueError(folder)
        return [folder.child("a")]

    try:
        walk([ROOT], visit, threads=2)
    except ValueError as error:
        assert str(error) == "a"
    else:
        raise AssertionError("the walk went on")
