"""What a two-way sync leaves alone and tells: clashing paths, and too many removals."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import RelativePath
from replication.core.copying.two_way import Agreed, SideState, SyncAction, sync_action
from replication.datasets.stores.local import LocalStore
from replication.datasets.two_way.state import SyncState
from replication.errors import RequestError
from shell.main import run
from tests.copying import read_tree, write_tree
from tests.two_sides import LATER, both, sync


def test_a_file_and_a_folder_of_one_name_stay_and_are_told(pair: Path) -> None:
    write_tree(pair / "a", {"z": b"file", "new": b"n"}, LATER)
    write_tree(pair / "b", {"z/1": b"1", "z/2/3": b"3", "z-": b"beside"}, LATER)
    before = both(pair)
    shown = sync(pair, dry_run=True)
    clash = dict.fromkeys(("z", "z/1", "z/2/3"), "its path is a file on one side and a folder on the other: rename one")
    assert shown.failures == clash and both(pair) == before
    for actions in ({"same": 3, "copied to the second": 1, "copied to the first": 1}, {"same": 5}):
        result = sync(pair)
        assert (result.failures, result.actions) == (clash, actions)
    first, second = both(pair)
    assert first["z"] == b"file" and (second["z/1"], second["z/2/3"]) == (b"1", b"3")
    assert second["new"] == b"n" and first["z-"] == b"beside"
    (pair / "a/z").rename(pair / "a/renamed")
    assert not sync(pair).failures and both(pair)[0] == both(pair)[1]


def test_a_file_that_the_other_side_has_an_empty_folder_of_is_told(pair: Path) -> None:
    write_tree(pair / "a", {"z": b"file", "new": b"n"}, LATER)
    (pair / "b/z").mkdir()
    assert sync(pair).failures == {"z": "the target has a folder of that name"}
    assert both(pair)[1]["new"] == b"n"


class Unreadable(LocalStore):
    """May not read ``x/1``."""

    def reread(self, path: RelativePath, begin: int, size: int) -> bytes:
        if path == "x/1":
            raise PermissionError("ftp://ann:hush@server/x/1")  # as drivers quote the address of a file
        return super().reread(path, begin, size)


def test_of_files_that_changed_on_both_sides_one_that_cannot_be_read_fails_alone(pair: Path) -> None:
    for side in "ab":
        write_tree(pair / side, {"x/1": side.encode(), "x/2": b"same"}, LATER)
    write_tree(pair / "a", {"new": b"n"})
    result = sync(pair, second=Unreadable(str(pair / "b")))
    assert result.failures == {"x/1": "PermissionError: ftp://ann:***@server/x/1"}
    assert both(pair)[1]["new"] == b"n" and [tree["x/1"] for tree in both(pair)] == [b"a", b"b"]
    assert len(sync(pair).conflicts) == 1 and both(pair)[0] == both(pair)[1]


def test_a_dry_run_of_a_sync_that_would_remove_too_much_says_so(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(pair / "a/x")
    line = ["sync", str(pair / "a"), str(pair / "b"), "-n", "--max-delete"]
    assert run([*line, "1"]) == 4
    shown = capsys.readouterr()
    assert "removed from the second x/1\nremoved from the second x/2\n2 removed from the second" in shown.out
    assert "more than --max-delete 1 allows" in shown.err
    write_tree(pair / "a", {"y/3": b"three", "n": b"new"}, LATER)
    assert run([*line, "2"]) == 0
    shown = capsys.readouterr()
    assert "copied to the second    n\ncopied to the second    y/3\n" in shown.out
    assert "x/1" in read_tree(pair / "b")


def test_nothing_is_removed_from_one_side_if_too_much_would_be_from_the_other(pair: Path) -> None:
    for path in ("a/x/1", "b/x/2", "b/y/3"):
        (pair / path).unlink()
    sides = both(pair)
    with pytest.raises(RequestError, match="2 files would be removed, more than --max-delete 1 allows"):
        sync(pair, delete_max=1)
    assert both(pair) == sides
    assert not sync(pair, delete_max=2).failures and both(pair) == ({}, {})


def test_names_that_are_refused_fail_and_links_are_counted(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pair / "a/new\nline").write_text("lost?")
    (pair / "b/link").symlink_to("y/3")
    write_tree(pair / "a", {"n": b"new"}, LATER)
    assert run(["sync", str(pair / "a"), str(pair / "b")]) == 12
    shown = capsys.readouterr()
    assert "1 copied to the second, 3 same, 1 symbolic link skipped" in shown.out
    assert "1 file failed; the first: new\\nline: the name 'new\\nline' is refused" in shown.err
    assert run(["sync", str(pair / "a"), str(pair / "b"), "--exclude", "new*"]) == 0


def test_clashes_of_many_files_are_found_without_comparing_each_with_all_others(tmp_path: Path) -> None:
    state = SyncState(tmp_path / "state.db")
    for side, name in enumerate(("old", "new")):
        files = [FileAttributes(RelativePath(f"{name}-{number}"), 1, 1) for number in range(3000)]
        state.listed(side, files, ())
        state.change({file.path: Agreed(SideState.of(file), SideState.of(file)) for file in files if not side}, ())
    state.decide(sync_action, lambda path: True)
    state._db._db.set_progress_handler(lambda: 1, 2_000_000)  # steps of SQLite that one statement may take
    assert state.leave_clashes() == ([], Counter())
    assert state.in_the_way(SyncAction.TO_FIRST, SyncAction.REMOVE_FIRST, 0) == []
    state.close()


def test_sides_that_are_exchanged_are_refused_since_a_removal_that_one_order_notes_the_other_takes_for_its_own(
    pair: Path,
) -> None:
    first, second = LocalStore(str(pair / "a")), LocalStore(str(pair / "b"))
    for dry_run in (True, False):
        with pytest.raises(RequestError, match="synced before, in that order"):
            sync(pair, second, first, dry_run=dry_run)
    (pair / "a/x/1").unlink()
    assert sync(pair).actions == {"same": 2, "removed from the second": 1}
