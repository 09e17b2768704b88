"""Two-way sync: changes and removals go both ways, and no version of a file is lost."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replication.commit.sequence import FAILURES_MAX
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import RelativePath
from replication.datasets.publication.steps import PublishFileSet
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.two_way.sync import TwoWaySync
from replication.errors import RequestError, StorageError, UnsafeNameError
from shell.cli.render import Printer
from shell.main import run
from tests.copying import DyingStore, Killed, read_tree, write_tree
from tests.two_sides import LATER, both, sync

pytestmark = pytest.mark.heavy


def test_changes_and_removals_go_both_ways(pair: Path) -> None:
    write_tree(pair / "a", {"x/1": b"1, changed", "new": b"n"}, LATER)
    write_tree(pair / "b", {"y/4": b"4"}, LATER)
    (pair / "a/y/3").unlink()
    (pair / "b/x/2").unlink()
    assert sync(pair).actions == {
        "copied to the second": 2,
        "copied to the first": 1,
        "removed from the second": 1,
        "removed from the first": 1,
    }
    assert both(pair) == ({"x/1": b"1, changed", "new": b"n", "y/4": b"4"},) * 2
    assert set(sync(pair).actions) == {"same"}


def test_of_a_conflict_both_versions_are_kept_on_both_sides(pair: Path) -> None:
    write_tree(pair / "a", {"x/1": b"of a"}, LATER)
    write_tree(pair / "b", {"x/1": b"of b, newer", "x/2": b"2"}, LATER + 1)
    write_tree(pair / "a", {"x/2": b"2"}, LATER)
    result = sync(pair)
    assert result.conflicts == ["x/1.conflict-first-20231114T221500Z"]
    assert both(pair) == ({"x/1": b"of b, newer", result.conflicts[0]: b"of a", "x/2": b"2", "y/3": b"3"},) * 2
    assert set(sync(pair).actions) == {"same"}, "the same content on both sides is not a conflict"


def test_a_version_that_is_kept_replaces_no_file_that_filters_leave_out(pair: Path) -> None:
    earlier = "x/1.conflict-second-20231114T221320Z"
    write_tree(pair / "a", {"x/1": b"newer"}, LATER)
    write_tree(pair / "b", {"x/1": b"older version", earlier: b"oldest"})
    assert not sync(pair, filters=Filters((FilterRule(False, "*.conflict-*"),))).failures
    assert read_tree(pair / "b") == both(pair)[0] | {earlier: b"oldest", f"{earlier}-1": b"older version"}


def test_a_change_is_not_lost_to_a_removal(pair: Path) -> None:
    (pair / "a/x/1").unlink()
    write_tree(pair / "b", {"x/1": b"changed"}, LATER)
    sync(pair)
    assert [tree["x/1"] for tree in both(pair)] == [b"changed"] * 2


def test_a_side_that_is_empty_or_cannot_be_listed_removes_nothing(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(LocalStore):
        def scan(self, folder: Any) -> Any:
            if folder == "x":
                raise PermissionError(13, "no")
            return super().scan(folder)

    with pytest.raises(StorageError, match="cannot be used: PermissionError"):
        sync(pair, first=Failing(str(pair / "a")))
    (pair / "a").rename(pair / "unmounted")
    with pytest.raises(RequestError, match="none of the files"):
        sync(pair)
    assert len(read_tree(pair / "b")) == 3


def test_what_a_filter_leaves_out_on_one_side_is_left_as_it_is(pair: Path) -> None:
    write_tree(pair / "a", {"x/1": b"larger than the filter has it"}, LATER)
    sync(pair, filters=Filters(size_max=5))
    assert [tree["x/1"] for tree in both(pair)] == [b"larger than the filter has it", b"1"]
    (pair / "a/x/2").unlink()
    sync(pair, filters=Filters((FilterRule(False, "x/**"),)))
    assert "x/2" in read_tree(pair / "b")


@pytest.mark.parametrize(
    "few",
    [
        {"filters": Filters((FilterRule(True, "*.csv"), FilterRule(False, "**")))},
        {"filters": Filters((FilterRule(False, "x/"),))},
        {"filters": Filters((FilterRule(False, "x/1"), FilterRule(False, "x/2")))},
        {"recursive": False},
    ],
)
def test_a_sync_of_few_files_forgets_nothing_of_the_others(pair: Path, few: dict[str, Any]) -> None:
    assert not sync(pair, **few).failures
    write_tree(pair / "a", {"x/1": b"1, changed"}, LATER)
    (pair / "b/x/2").unlink()
    assert sync(pair).conflicts == []
    assert both(pair) == ({"x/1": b"1, changed", "y/3": b"3"},) * 2


def test_a_folder_that_became_a_link_removes_nothing_on_the_other_side(pair: Path) -> None:
    (pair / "a/x").rename(pair / "moved")
    (pair / "a/x").symlink_to(pair / "moved")
    sync(pair)
    assert read_tree(pair / "b") == {"x/1": b"1", "x/2": b"2", "y/3": b"3"}


def test_files_that_were_the_same_on_both_sides_before_the_first_run_are_no_change(tmp_path: Path) -> None:
    for side in "ab":
        write_tree(tmp_path / side, {"x": b"same"})
    write_tree(tmp_path / "b", {"y": b"1"})
    assert sync(tmp_path).actions == {"same": 1, "copied to the first": 1}


def test_killed_after_any_change_the_next_run_has_every_version_on_both_sides(tmp_path: Path) -> None:
    for changes in range(200):
        at = tmp_path / f"{changes}"
        write_tree(at / "a", {"x/1": b"of a", "x/2": b"2"}, LATER)
        write_tree(at / "b", {"x/1": b"of b, newer"}, LATER + 1)
        killed = False
        try:
            sync(at, DyingStore(str(at / "a"), changes))
        except Killed:
            killed = True
        assert not sync(at).failures
        first, second = both(at)
        assert first == second and sorted(first.values()) == [b"2", b"of a", b"of b, newer"]
        assert not (at / "a/.walship").exists(), "nothing stays that the killed one had staged"
        if not killed:
            return
    raise AssertionError("the store never had enough")


def test_the_verb_tells_what_it_did(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(pair / "a", {"x/1": b"1, changed"}, LATER)
    given = ["sync", str(pair / "a"), str(pair / "b")]
    assert run([*given, "-n"]) == 0
    assert read_tree(pair / "b")["x/1"] == b"1"
    assert run(given) == 0
    assert "1 copied to the second, 2 same" in capsys.readouterr().out
    assert read_tree(pair / "b")["x/1"] == b"1, changed"


@pytest.mark.parametrize("content", [b"no database at all" * 99, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_state_that_no_sync_wrote_is_refused_and_removes_nothing(pair: Path, content: bytes) -> None:
    (state,) = (pair / "b").rglob("state.db")
    before = both(pair)
    state.write_bytes(content)
    with pytest.raises(StorageError, match=r"the state of the sync in .*state\.db cannot be used"):
        sync(pair)
    assert both(pair) == before
    state.unlink()
    assert not sync(pair).conflicts and both(pair) == before


def test_paths_outside_that_a_forged_state_names_are_not_touched(pair: Path) -> None:
    (state,) = (pair / "b").rglob("state.db")
    (pair / "secret").write_bytes(b"s")
    with closing(sqlite3.connect(state)) as forged, forged:
        for path in ("../secret", str(pair / "secret"), "x/../../secret", "..", ""):
            forged.execute("INSERT INTO agreed VALUES (?, 1, 1, 1, 1)", (path,))
    with pytest.raises(UnsafeNameError, match="may lead out of its folder"):
        sync(pair)
    assert (pair / "secret").read_bytes() == b"s"
    assert both(pair) == ({"x/1": b"1", "x/2": b"2", "y/3": b"3"},) * 2


def test_what_a_sync_does_is_to_be_seen_meanwhile_and_a_dry_run_leaves_nothing(tmp_path: Path) -> None:
    seen: dict[str, tuple[int, int]] = {}

    class Watched(LocalStore):
        def scan(self, folder: Any) -> Any:
            stage, view = syncing.view()
            seen[stage.partition(":")[0]] = view.counts.files_listed, view.counts.files_published
            return super().scan(folder)

        def reread(self, *given: Any) -> bytes:
            stage, view = syncing.view()
            seen[stage] = view.counts.files_listed, view.counts.files_published
            return super().reread(*given)

        def move(self, *given: Any) -> None:
            stage, view = syncing.view()
            seen[stage.partition(":")[0]] = view.counts.files_listed, view.counts.files_published
            super().move(*given)

    write_tree(tmp_path / "a", {"x/1": b"1", "x/2": b"2", "z": b"same"})
    write_tree(tmp_path / "b", {"z": b"SAME", "u/v": b"3"}, LATER)
    syncing = TwoWaySync(Watched(str(tmp_path / "a")), Watched(str(tmp_path / "b")), CopyConfiguration())
    assert syncing.run(dry_run=True).actions["copied to the second"] == 2
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["u", "z"]
    syncing.run()
    assert seen["comparing what changed on both sides"] == (1, 0)
    assert seen["listing file"] == (1, 0), "the second side's root had one file when its folder was listed"
    assert seen["copying to file"][0] == 2


def test_a_side_need_not_exist_also_in_a_store_that_is_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tree(tmp_path / "a", {"x/1": b"1"})
    with open_store(f"memory://{tmp_path.name}/b") as far:
        assert sync(tmp_path, second=far).actions == {"copied to the second": 1}
        assert sync(tmp_path, second=far).actions == {"same": 1}
        assert sync(tmp_path / "new", LocalStore(str(tmp_path / "new/a")), far).actions == {"copied to the first": 1}
    assert read_tree(tmp_path / "new/a") == {"x/1": b"1"}


def test_two_addresses_at_which_nothing_is_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"nothing at .*/a, and nothing at .*/b"):
        sync(tmp_path)
    assert not list(tmp_path.iterdir())
    write_tree(tmp_path / "a", {"x": b"1"})
    assert sync(tmp_path).actions == {"copied to the second": 1}


def test_what_is_edited_while_a_sync_runs_is_neither_replaced_nor_removed(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(pair / "a", {"x/1": b"of a", "y/3": b"of a"}, LATER)
    (pair / "a/x/2").unlink()

    def edit(self: TwoWaySync, *given: Any) -> None:
        write_tree(pair / "b", edited, LATER + 1)

    with monkeypatch.context() as patch:
        patch.setattr(TwoWaySync, "_compare", edit)
        edited = {"x/2": b"edited"}
        result = sync(pair)
        assert both(pair)[1] == {"x/1": b"of a", "x/2": b"edited", "y/3": b"of a"} and set(result.failures) == {"x/2"}
        assert not sync(pair).failures
        write_tree(pair / "a", {"x/1": b"again", "x/2": b"again"}, LATER + 2)
        edited = {"x/1": b"edited, too"}
        result = sync(pair)
    assert both(pair)[1]["x/1"] == b"edited, too" and set(result.failures) == {"x/1"}
    assert both(pair)[1]["x/2"] == b"again", "the other files of the folder are copied"
    assert sync(pair).conflicts == ["x/1.conflict-second-20231114T221501Z"], "the next run decides anew"
    first, second = both(pair)
    assert first == second and sorted(first.values()) == [b"again", b"again", b"edited, too", b"of a"]


def test_an_edit_right_after_a_file_is_in_place_is_kept(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = LocalStore.move

    def moved_and_edited(store: LocalStore, origin: RelativePath, destination: RelativePath) -> None:
        moved(store, origin, destination)
        if destination == "x/1":
            write_tree(pair / "b", {"x/1": b"edit"}, LATER + 1)

    write_tree(pair / "a", {"x/1": b"copy"}, LATER)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "move", moved_and_edited)
        sync(pair)
    assert sync(pair).conflicts
    assert both(pair)[0]["x/1"] == both(pair)[1]["x/1"] == b"edit"
    assert b"copy" in both(pair)[0].values()


def test_what_a_killed_sync_left_is_finished_before_both_sides_are_listed(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(pair / "a", {"x/1": b"of a", "y/3": b"of a"}, LATER)

    def kill(self: PublishFileSet, context: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(PublishFileSet, "execute", kill)
        sync(pair)
    write_tree(pair / "b", {"x/1": b"edited after that"}, LATER + 1)
    result = sync(pair)
    assert not result.failures and result.conflicts == ["x/1.conflict-first-20231114T221500Z"]
    assert both(pair) == ({"x/1": b"edited after that", result.conflicts[0]: b"of a", "x/2": b"2", "y/3": b"of a"},) * 2
    assert set(sync(pair).actions) == {"same"} and not list((pair / "b").rglob("commits"))


def test_only_the_folder_of_backups_itself_is_left_out(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", {"p/o[l]d/f": b"1", "o[l]d": b"1", "old": b"1", "g": b"1"})
    write_tree(tmp_path / "b", {"k": b"1"})
    sides = [str(tmp_path / side) for side in "ab"]
    assert run(["sync", *sides, "--backup-dir", "o[l]d.d/", "--filter", "+ **"]) == 0
    (tmp_path / "a/p/o[l]d/f").unlink()
    assert run(["sync", *sides, "--backup-dir", "o[l]d.d/", "--filter", "+ **"]) == 0
    kept = {"o[l]d": b"1", "old": b"1", "g": b"1", "k": b"1"}
    assert both(tmp_path) == (kept, kept | {"o[l]d.d/p/o[l]d/f": b"1"})
    assert run(["sync", *sides, "--backup-dir", "o[l]d.d/", "--filter", "+ **"]) == 0
    assert read_tree(tmp_path / "a") == kept, "what is kept is not synced"


def test_a_time_that_sqlite_does_not_hold_and_a_conflict_of_a_long_name_stop_no_sync(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", {"far": b"1"}, 10_413_792_000)  # in 2300
    write_tree(tmp_path / "a", {"n" * 255: b"of a", "other": b"1"})
    write_tree(tmp_path / "b", {"n" * 255: b"of b, newer"}, LATER)
    result = sync(tmp_path)
    assert not result.failures and len(result.conflicts) == 1
    assert sync(tmp_path).actions == {"same": 4}
    first, second = both(tmp_path)
    assert first == second and sorted(first.values()) == [b"1", b"1", b"of a", b"of b, newer"]


def test_a_file_becomes_a_folder_and_a_folder_a_file_on_the_other_side_too(pair: Path) -> None:
    (pair / "a/y/3").unlink()
    shutil.rmtree(pair / "a/x")
    write_tree(pair / "a", {"y/3/below": b"of the folder", "x": b"of the file"}, LATER)
    with pytest.raises(RequestError, match="--max-delete"):
        sync(pair, delete_max=2)
    assert read_tree(pair / "b") == {"x/1": b"1", "x/2": b"2", "y/3": b"3"}
    assert not sync(pair, backup_dir=RelativePath("old")).failures
    files = {"y/3/below": b"of the folder", "x": b"of the file"}
    assert both(pair) == (files, files | {"old/x/1": b"1", "old/x/2": b"2", "old/y/3": b"3"})


def test_a_file_that_was_edited_where_a_folder_is_to_be_stays(pair: Path) -> None:
    (pair / "a/y/3").unlink()
    write_tree(pair / "a", {"y/3/below": b"of the folder"}, LATER)
    write_tree(pair / "b", {"y/3": b"edited"}, LATER)
    assert set(sync(pair).failures) == {"y/3", "y/3/below"}
    assert read_tree(pair / "b")["y/3"] == b"edited" and read_tree(pair / "a")["y/3/below"] == b"of the folder"
    (pair / "b/y/3").unlink()
    assert not sync(pair).failures, "a file that neither side has any more is in nobody's way"
    assert read_tree(pair / "b")["y/3/below"] == b"of the folder"


def test_a_side_within_the_other_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path / "t", {"s/x": b"1", "y": b"2"})
    for pair in (("t", "t/s"), ("t/s", "t")):
        assert run(["sync", *(str(tmp_path / side) for side in pair)]) == 4
        assert "within" in capsys.readouterr().err
    assert read_tree(tmp_path / "t") == {"s/x": b"1", "y": b"2"}


def test_what_failed_too_often_is_tried_again_when_a_person_says_so(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(pair / "a", {"z/new": b"n"}, LATER)

    def refusing(self: LocalStore, *given: object) -> None:
        raise PermissionError(13, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "move", refusing)
        for _ in range(FAILURES_MAX):
            assert sync(pair).failures
    assert "--retry-suspended" in sync(pair).failures["z"]
    with monkeypatch.context() as patch:
        patch.setattr(Printer, "value", _no_reader)
        assert run(["sync", str(pair / "a"), str(pair / "b")]) == 12, "though its reader has gone"
    assert run(["sync", str(pair / "a"), str(pair / "b"), "--retry-suspended"]) == 0, capsys.readouterr().err
    assert both(pair)[1]["z/new"] == b"n"


def _no_reader(*_: object) -> None:
    raise BrokenPipeError


def test_a_sync_follows_no_links(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sync", str(pair / "a"), str(pair / "b"), "--follow-links"]) == 4
    assert "sync follows no links" in capsys.readouterr().err


def test_a_folder_of_a_great_many_files_is_published_in_several_parts(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.two_way.sync.SET_FILES", 3)
    write_tree(pair / "a", {f"many/{n}": b"x" for n in range(8)}, LATER)
    sides = TwoWaySync(LocalStore(str(pair / "a")), LocalStore(str(pair / "b")), CopyConfiguration())
    assert sides.run().failures == {}
    counts = sides.view()[1].counts
    assert (counts.files_published, counts.file_sets_published) == (8, 3)
    assert both(pair)[0] == both(pair)[1]
