"""Moves and removals of a sync: a file that has changed since it was listed is neither replaced nor removed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from replication.commit.step import step_from_json, step_to_json
from replication.core.copying.names import RelativePath
from replication.datasets.publication.moves import Listed, Move, MovedFile, are_made, guarded, make_all
from replication.datasets.publication.steps import CopySite, PublishFileSet, RemoveExtras
from replication.datasets.stores.local import LocalStore
from replication.errors import ChangedFileError, CopyError, MissingFileError
from tests.copying import read_tree, write_tree


@pytest.fixture
def target(tmp_path: Path) -> LocalStore:
    write_tree(tmp_path, {"staged/x": b"new", "staged/y": b"new", "a/x": b"old", "a/y": b"old"})
    return LocalStore(str(tmp_path))


def listed(target: LocalStore, path: str) -> Listed:
    found = target.status(RelativePath(path))
    return Listed.of(found.attributes if found is not None else None)


def edit(target: LocalStore, path: str) -> None:
    write_tree(Path(target.root), {path: b"old, edited"}, 1_700_000_100)


FILE = Move("staged/x", "a/x", is_folder=False, files=(MovedFile("", 3, ""),))
FOLDER = Move("staged", "a", is_folder=True, files=(MovedFile("x", 3, ""), MovedFile("y", 3, "")))


@pytest.mark.parametrize("move", [FILE, FOLDER])
def test_a_file_that_changed_is_not_replaced(target: LocalStore, move: Move) -> None:
    expected = guarded(move, lambda path: listed(target, path))
    edit(target, "a/x")
    with pytest.raises(ChangedFileError, match="a/x was changed"):
        make_all(target, [expected], RelativePath("backup"))
    files = read_tree(Path(target.root))
    assert files["a/x"] == b"old, edited" and files["staged/x"] == b"new" and "backup/a/x" not in files


@pytest.mark.parametrize("move", [FILE, FOLDER])
def test_a_file_that_is_as_it_was_listed_or_gone_is_replaced(target: LocalStore, move: Move) -> None:
    expected = guarded(move, lambda path: listed(target, path))
    (Path(target.root) / "a/y").unlink()
    make_all(target, [expected], None)
    assert read_tree(Path(target.root))["a/x"] == b"new"
    assert are_made(target, [expected], read=False, range_bytes=1)


@pytest.mark.parametrize("move", [replace(FILE, destination="b/c/x"), replace(FOLDER, destination="b/c")])
def test_a_folder_that_is_missing_by_the_time_of_the_move_is_made(target: LocalStore, move: Move) -> None:
    for _ in range(2):  # the second time it is made already
        make_all(target, [move], None)
        assert read_tree(Path(target.root))["b/c/x"] == b"new"
    shutil.rmtree(f"{target.root}/b")
    if move.is_folder:
        with pytest.raises(MissingFileError, match="b/c was published, and was removed since"):
            make_all(target, [move], None)


def test_a_file_that_appeared_is_not_replaced(target: LocalStore) -> None:
    expected = guarded(FILE, lambda path: Listed())
    with pytest.raises(ChangedFileError):
        make_all(target, [expected], None)


def test_a_published_file_that_changed_since_is_told_from_one_that_was_never_there(target: LocalStore) -> None:
    expected = guarded(FILE, lambda path: listed(target, path))
    make_all(target, [expected], None)
    edit(target, "a/x")
    with pytest.raises(ChangedFileError):
        are_made(target, [expected], read=True, range_bytes=1)
    with pytest.raises(CopyError, match="a/x was published, but has other content") as told:
        are_made(target, [FILE], read=True, range_bytes=1)
    assert not isinstance(told.value, ChangedFileError), "a copy does not give up so easily"


def test_a_file_that_changed_is_not_removed_and_the_others_are(target: LocalStore) -> None:
    paths = ("a/x", "a/y")
    step = RemoveExtras(paths, listed=tuple(listed(target, path) for path in paths))
    edit(target, "a/x")
    step.execute(CopySite(target))
    assert step.verify(CopySite(target))
    files = read_tree(Path(target.root))
    assert files["a/x"] == b"old, edited" and "a/y" not in files


def test_what_was_listed_is_stored_with_the_steps(target: LocalStore) -> None:
    publish = PublishFileSet("a", (guarded(FOLDER, lambda path: listed(target, path)),), 1)
    for step in (publish, RemoveExtras(("a/x",), listed=(Listed(3, 1 << 64),)), RemoveExtras(("a/x",))):
        assert step_from_json(step_to_json(step)) == step
