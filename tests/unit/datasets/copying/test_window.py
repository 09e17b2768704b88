"""The bounds between listing and copying: largest first, small ones together, and a listing that waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.core.copying.ranges import Range
from replication.datasets.copying.window import CopyWindow
from replication.datasets.listing import walk as walking
from replication.datasets.listing.walk import walk


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
    put = threading.Event()

    def listing() -> None:
        window.put([file("c", 1)])
        put.set()

    thread = threading.Thread(target=listing)
    thread.start()
    assert not put.is_set() and thread.is_alive()
    assert names(window.take()) == ["a"]
    assert put.wait(30)
    thread.join()
    window.stop()
    window.put([file("d", 1)] * 5)
    assert window.take() is None


def test_folders_that_wait_are_bounded_and_each_is_visited_once(monkeypatch: object) -> None:
    monkeypatch.setattr(walking, "PENDING_MAX", 3)  # 000-40
    seen: list[str] = []
    lock = threading.Lock()

    def visit(folder: RelativePath) -> list[RelativePath]:
        with lock:
            seen.append(folder)
        return [folder.child(str(n)) for n in range(6)] if folder.count("/") < 2 else []

    walk([ROOT], visit, threads=3)
    assert len(seen) == len(set(seen)) == 1 + 6 + 36 + 216


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
