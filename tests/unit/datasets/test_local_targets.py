"""Folders of this host as targets: file systems that are full, or have other times than the source's; odd names."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from replication.core.copying.copyable import CopyableFile
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.stores.local import LocalStore
from replication.errors import NoSpaceError
from tests.copying import DyingStore, Killed, copied, job, read_tree, write_tree

FILES = {"a/1": b"1", "a/2": b"2", "a/3": b"3", "b/c/1": b"four", "top": b"the top"}


@pytest.mark.parametrize("kept_ns", [100, 2_000_000_000, 0, None], ids=["ntfs", "fat", "ignored", "refused"])
def test_where_times_are_less_precise_or_not_kept_a_file_is_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_ns: int | None
) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, FILES)
    for name in FILES:
        os.utime(source / name, ns=(1_700_000_001_999_999_999,) * 2)
    utime = os.utime

    def rounded(path: str | int, ns: tuple[int, int]) -> None:
        if kept_ns is None:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        if kept_ns:
            utime(path, ns=(ns[0] // kept_ns * kept_ns,) * 2)

    preserve = frozenset() if kept_ns is None else frozenset({"times"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", rounded)
        assert copied(source, target, preserve=preserve).progress.counts.files_published == len(FILES)
        (source / "top").write_bytes(b"NEW TOP")
        utime(source / "top", (1_700_000_009 if kept_ns else 4_000_000_000,) * 2)
        assert copied(source, target, preserve=preserve).progress.counts.files_published == 1
    assert read_tree(target) == FILES | {"top": b"NEW TOP"}


def test_what_waits_in_a_full_target_is_named_and_may_be_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    write_tree(source, FILES)

    class FullStore(LocalStore):
        def write_small(self, path: RelativePath, file: CopyableFile, data: bytes) -> None:
            if file.destination == "a/3":
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_small(path, file, data)

    with pytest.raises(NoSpaceError) as full:
        job(LocalStore(str(source)), FullStore(str(target)), threads=1).run()
    (waiting,) = (target / STAGING).iterdir()
    assert f"What waits in {STAGING}/{waiting.name} may be removed" in full.value.hint
    shutil.rmtree(waiting)
    copied(source, target)
    assert read_tree(target) == FILES and not (target / STAGING).exists()


@pytest.mark.parametrize("kept", [{}, {"old/top": b"before that"}])
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_replaced_file_that_may_have_one_name_only_is_moved_to_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kept: dict[str, bytes]
) -> None:
    """Linux lets nobody link a file of another user who gave no right to write; FAT has no links."""
    write_tree(tmp_path / "src", {"top": b"new", "a/1": b"1"})
    write_tree(tmp_path / "dst", {"top": b"the old one", **kept})
    link = os.link

    def refusing(origin: str, second: str, **given: bool) -> None:
        if os.path.lexists(second):
            link(origin, second, **given)  # which fails for that
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("replication.datasets.stores.local.os.link", refusing)
        counts = copied(tmp_path / "src", tmp_path / "dst", backup_dir=RelativePath("old")).progress.counts
    assert counts.failures == {}
    assert read_tree(tmp_path / "dst") == {"top": b"new", "a/1": b"1", "old/top": b"the old one"}


def test_what_a_killed_copy_left_in_a_folder_with_colons_is_finished_and_nothing_is_made_elsewhere(
    tmp_path: Path,
) -> None:
    write_tree(tmp_path / "src", {"a/1": b"1", "b/2": b"2"})  # for fsspec :: separates two addresses
    for changes in range(40):
        target = tmp_path / f"{changes}/dst::x"
        killed = False
        try:
            job(LocalStore(str(tmp_path / "src")), DyingStore(str(target), changes)).run()
        except Killed:
            killed = True
        assert job(LocalStore(str(tmp_path / "src")), LocalStore(str(target))).run().failures == {}
        assert os.listdir(target.parent) == ["dst::x"] and sorted(os.listdir(target)) == ["a", "b"]
        assert read_tree(target) == {"a/1": b"1", "b/2": b"2"}
        if not killed:
            return
    raise AssertionError("the store never had enough")


@pytest.mark.parametrize("name", ["a/b/1", "there/c/1"])
def test_new_folders_are_published_where_the_file_system_keeps_other_mode_bits_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """FAT and shares of Windows do so; and Linux drops the bit of a group that the user is not in."""
    write_tree(tmp_path / "src", {name: b"1", "there/2": b"2"})
    (tmp_path / "src" / name).parent.chmod(0o2770)
    (tmp_path / "dst/there").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr("replication.datasets.stores.local.os.chmod", lambda *_: None)
        assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.failures == {}
        assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.files_listed == 0
    assert read_tree(tmp_path / "dst") == {name: b"1", "there/2": b"2"}


def test_a_folder_of_the_target_that_is_on_another_file_system_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {"mounted/1": b"1", "top": b"2"})
    (tmp_path / "dst/mounted").mkdir(parents=True)
    rename = os.rename

    def refusing(origin: str, destination: str) -> None:
        if "/dst/mounted" in destination:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(origin, destination)

    monkeypatch.setattr("replication.datasets.stores.local.os.rename", refusing)
    failures = copied(tmp_path / "src", tmp_path / "dst").progress.counts.failures
    assert list(failures) == ["mounted/1"] and "mounted/1 is on another file system than" in failures["mounted/1"]
    assert "by a copy of its own" in failures["mounted/1"]
    assert read_tree(tmp_path / "dst") == {"top": b"2"}
    assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.failures == failures
    excluded = Filters((FilterRule(False, "mounted"),))
    assert copied(tmp_path / "src", tmp_path / "dst", filters=excluded).progress.counts.failures == {}
    assert not (tmp_path / "dst/.walship").exists()
