"""A folder whose listing fails: its file set is not published in part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import Grouping
from replication.core.copying.names import RelativePath
from replication.datasets.finders.globbed import GlobFinder
from replication.datasets.finders.recursive import OneDataset, RecursiveDataset
from replication.datasets.preview import compared
from replication.datasets.stores.base import Entry, TreeChanges
from replication.datasets.stores.local import LocalStore
from tests.copying import copied, job, read_tree, write_tree

WHOLE = {f"a/{n:03}": b"x" for n in range(300)}


class Cut(LocalStore):
    """Its listing of a folder breaks off, until it is whole."""

    def __init__(self, root: Path, folder: str, after: int) -> None:
        super().__init__(str(root))
        self.cut, self.after = folder, after

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        for number, entry in enumerate(super().scan(folder)):
            if folder == self.cut and number >= self.after:
                raise ConnectionResetError("the connection was lost")
            yield entry


@pytest.mark.parametrize(("grouping", "after"), [(Grouping.DIRECTORY, 290), (Grouping.DATASET, 0)])
def test_a_file_set_whose_listing_breaks_off_is_published_by_the_run_that_lists_it_whole(
    tmp_path: Path, grouping: Grouping, after: int
) -> None:
    write_tree(tmp_path / "src", {**WHOLE, "b/1": b"y"})
    source, target = Cut(tmp_path / "src", "a", after), LocalStore(str(tmp_path / "dst"))
    counts = job(source, target, grouping=grouping).run()
    assert "the connection was lost" in counts.failures["a"]
    alone = {} if grouping is Grouping.DATASET else {"b/1": b"y"}
    assert read_tree(tmp_path / "dst") == alone
    source.cut = "none"
    counts = job(source, target, grouping=grouping).run()
    assert counts.failures == {} and read_tree(tmp_path / "dst") == {**WHOLE, "b/1": b"y"}


@pytest.mark.parametrize("by_glob", [True, False])
def test_nothing_is_removed_through_a_link_of_the_target_above_the_folder_that_is_listed(
    tmp_path: Path, by_glob: bool
) -> None:
    write_tree(tmp_path / "src", {"linked/sub/kept": b"x"})
    write_tree(tmp_path / "outside", {"sub/kept": b"x", "sub/theirs": b"y"})
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/linked").symlink_to(tmp_path / "outside")
    made = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), delete=True)
    made.finder = OneDataset(RecursiveDataset(made.source, changes=TreeChanges.of([("linked/sub/gone", False)])))
    if by_glob:
        made.finder = GlobFinder(made.source, {"pattern": "linked/*"})
    assert "linked is a symbolic link in the target" in made.run().failures["linked/sub"]
    assert read_tree(tmp_path / "outside").keys() == {"sub/kept", "sub/theirs"}


def test_a_folder_of_a_great_many_files_is_several_file_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replication.datasets.listing.compare.SET_FILES", 100)
    write_tree(tmp_path / "src", {**WHOLE, "b/1": b"y"})
    source, target = LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))
    sets: dict[str, int] = {}
    made = job(source, target)
    made.published = lambda file_set: sets.update({file_set.name: len(file_set.staged)})
    assert made.run().failures == {}
    assert sets == {"a": 99, "a//2": 100, "a//3": 100, "a//4": 1, "b": 1}
    assert read_tree(tmp_path / "dst") == {**WHOLE, "b/1": b"y"}
    assert not (tmp_path / "dst/.walship").exists()
    sets.clear()
    made = job(source, LocalStore(str(tmp_path / "one")), grouping=Grouping.DATASET)
    made.published = lambda file_set: sets.update({file_set.name: len(file_set.staged)})
    assert made.run().failures == {} and sets == {"": 301}, "what was asked for appears together"


def test_of_a_folder_of_several_file_sets_the_last_waits_when_its_listing_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.listing.compare.SET_FILES", 100)
    write_tree(tmp_path / "src", WHOLE)
    source, target = Cut(tmp_path / "src", "a", 250), LocalStore(str(tmp_path / "dst"))
    counts = job(source, target).run()
    assert list(counts.failures) == ["a"]
    assert len(read_tree(tmp_path / "dst")) == 199
    source.cut = "none"
    counts = job(source, target).run()
    assert counts.failures == {} and read_tree(tmp_path / "dst") == WHOLE


class Unreadable(LocalStore):
    """Lists by name, and may not read ``a/1``."""

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        yield from sorted(super().scan(folder), key=lambda entry: entry.attributes.path if entry.attributes else "")

    def open(self, file: FileAttributes) -> Any:
        if file.path == "a/1":
            raise PermissionError(13, "no", file.path)
        return super().open(file)


@pytest.mark.parametrize("grouping", [Grouping.DIRECTORY, Grouping.FILE])
def test_a_file_whose_content_cannot_be_compared_fails_alone_or_with_its_set_and_hides_no_other(
    tmp_path: Path, grouping: Grouping
) -> None:
    old, new = ({f"a/{name}": content for name in ("1", "2", "below/3")} for content in (b"1", b"2"))
    write_tree(tmp_path / "src", old)
    copied(tmp_path / "src", tmp_path / "dst")
    write_tree(tmp_path / "src", new)
    source, target = Unreadable(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))
    made = job(source, target, compare_content=True, grouping=grouping)
    assert made.run().failures == {"a/1": "PermissionError: [Errno 13] no: 'a/1'"}
    replaced = {"a/below/3": b"2"} | ({"a/2": b"2"} if grouping is Grouping.FILE else {})
    assert read_tree(tmp_path / "dst") == old | replaced
    found = compared(job(source, target)).found
    assert found == Counter(failed=1, different=2 - len(replaced), same=len(replaced))
