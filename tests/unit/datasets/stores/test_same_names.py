"""Targets that ignore case: of two names that are one there, no file takes the other's place."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from replication.core.copying.configuration import CopyConfiguration, Grouping
from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.finders.plugins import finder_of
from replication.datasets.job import CopyJob
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.same_names import name_key
from tests.copying import copied, job, read_tree, write_tree
from tests.two_sides import both, sync


class CaselessStore(LocalStore):
    """A folder that ignores case, and keeps names in small letters."""

    def local_path(self, path: RelativePath) -> str:
        return super().local_path(RelativePath(path.lower()))


@pytest.mark.parametrize("grouping", Grouping)
def test_of_names_that_differ_in_case_alone_the_second_is_refused(tmp_path: Path, grouping: Grouping) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"README": b"one", "readme": b"two", "D/x": b"3", "d/x": b"4", "other": b"5", "e/f": b"6"})
    (source / "E").write_bytes(b"a file, and a folder")
    for _ in range(2):
        counts = job(LocalStore(str(source)), CaselessStore(str(target)), grouping=grouping).run()
        refused = {path.lower(): reason for path, reason in counts.failures.items()}
        assert sorted(refused) == ["d", "e", "readme"]
        assert all("the target takes its name and that of" in reason for reason in refused.values())
        found = read_tree(target)
        assert found["readme"] == (b"two" if "README" in counts.failures else b"one")
        assert found["d/x"] == (b"4" if "D" in counts.failures else b"3")
        assert found["other"] == b"5" and ("e" in found) != ("e/f" in found)
    assert counts.files_published == 0, "what is there is the same"


def test_a_file_that_the_source_has_under_a_name_in_capitals_is_not_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {"README": b"1", "D/x": b"2"})
    write_tree(target, {"readme": b"1", "d/x": b"2", "gone": b"", "d/gone": b""})
    counts = job(LocalStore(str(source)), CaselessStore(str(target)), delete=True).run()
    assert read_tree(target) == {"readme": b"1", "d/x": b"2"} and counts.deleted == 2


def test_names_of_different_normal_forms_count_as_the_same_where_case_is_ignored(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, {unicodedata.normalize(form, "Ärger"): form.encode() for form in ("NFC", "NFD")})
    counts = job(LocalStore(str(source)), CaselessStore(str(target))).run()
    assert (counts.files_published, counts.failed) == (1, 1)


def test_a_target_that_keeps_names_apart_gets_all(tmp_path: Path) -> None:
    files = {"README": b"one", "readme": b"two", "D/x": b"3", "d/x": b"4"}
    write_tree(tmp_path / "src", files)
    assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.failed == 0
    assert read_tree(tmp_path / "dst") == files
    assert name_key(LocalStore(str(tmp_path / "dst"))) is str


def test_a_manifest_that_names_both_copies_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"1", "A": b"2", "m": b"a\nA\n"})
    source, target = LocalStore(str(tmp_path / "src")), CaselessStore(str(tmp_path / "dst"))
    counts = CopyJob(source, target, finder_of("manifest")(source, {"manifest": "m"}), CopyConfiguration()).run()
    assert "A and a both become A" in counts.failures["m"]
    assert read_tree(tmp_path / "dst") == {}


@pytest.mark.parametrize("side", ["first", "second"])
def test_a_sync_leaves_alone_what_one_side_takes_for_one_file(tmp_path: Path, side: str) -> None:
    other, caseless = ("b", "a") if side == "first" else ("a", "b")
    write_tree(tmp_path / other, {"A": b"1", "a": b"2", "b": b"3"})
    (tmp_path / caseless).mkdir()
    store = CaselessStore(str(tmp_path / caseless))
    for _ in range(2):
        result = sync(tmp_path, **{side: store})
        assert result.failures.keys() == {"A", "a"} and "one side ignores case" in result.failures["a"]
        assert read_tree(tmp_path / other) == {"A": b"1", "a": b"2", "b": b"3"}
        assert read_tree(tmp_path / caseless) == {"b": b"3"}
    (tmp_path / other / "A").unlink()
    assert not sync(tmp_path, **{side: store}).failures
    assert both(tmp_path) == ({"a": b"2", "b": b"3"},) * 2
    assert not (tmp_path / "a/.walship").exists()


@pytest.mark.parametrize("name", [STAGING.upper(), ".Walship", ".wal\u017fhip"])
def test_nothing_is_copied_among_a_copys_own_files(tmp_path: Path, name: str) -> None:
    source, target = LocalStore(str(tmp_path / "src")), CaselessStore(str(tmp_path / "dst"))
    write_tree(tmp_path / "src", {"a": b"1", f"{name}/{job(source, target).id}/commits/x.json": b"{}"})
    counts = job(source, target).run()
    assert list(counts.failures) == [name] and "which has a copy's own files" in counts.failures[name]
    assert read_tree(tmp_path / "dst") == {"a": b"1"}
