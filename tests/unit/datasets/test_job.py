"""Copies between folders: what arrives, what is kept, what a run that was killed leaves for the next one."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.configuration import CopyConfiguration, Existing, Grouping
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.copying.progress import CopyProgress
from replication.datasets.copying.staging import locked
from replication.datasets.publication.publisher import Publisher
from replication.datasets.stores.local import LocalStore
from replication.errors import LockedFileError, NoSpaceError, RequestError
from tests.copying import DyingStore, Killed, copied, job, read_tree, write_tree

pytestmark = pytest.mark.heavy

OLD = {"a/1": b"old one", "a/2": b"old two", "b/c/1": b"old three", "top": b"old top"}
NEW = {"a/1": b"new 1", "a/2": b"new 2", "a/3": b"new 3", "b/c/1": b"new four", "d/e/f": b"new", "top": b"new top"}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    write_tree(tmp_path / "src", NEW)
    return tmp_path / "src", tmp_path / "dst"


def test_a_folder_is_copied_with_its_structure_times_and_permissions(folders: tuple[Path, Path]) -> None:
    source, target = folders  # 000-4, 000-7, 001-8, 001-10, 001-11
    (source / "a/1").chmod(0o640)
    (source / "a/2").chmod(0o6755)
    (source / "empty/below").mkdir(0o750, parents=True)
    (source / "a/empty").mkdir()
    (source / "b").chmod(0o710)
    (source / "b/c").chmod(0o2750)
    made = copied(source, target)
    assert read_tree(target) == NEW
    assert (target / "a/1").stat().st_mode & 0o777 == 0o640
    assert (target / "a/2").stat().st_mode & 0o7777 == 0o755, "it is another user's program"
    assert [(target / name).stat().st_mode & 0o7777 for name in ("b", "b/c")] == [0o710, 0o2750]
    assert (target / "empty/below").stat().st_mode & 0o7777 == 0o750
    assert (target / "a/empty").is_dir()
    assert (target / "a/1").stat().st_mtime_ns == (source / "a/1").stat().st_mtime_ns
    assert made.progress.counts.files_published == len(NEW)
    assert not (target / STAGING).exists()
    assert not copied(source, target).progress.counts.files_listed, "nothing has changed"


def test_what_changed_is_copied_and_the_rest_stays(folders: tuple[Path, Path]) -> None:
    source, target = folders  # 000-22
    write_tree(target, NEW | {"a/1": b"longer than the new one", "extra": b"mine"})
    counts = copied(source, target).progress.counts
    assert counts.files_published == 1
    assert read_tree(target) == NEW | {"extra": b"mine"}


def test_zeros_take_no_space_also_where_an_earlier_run_wrote_other_bytes(folders: tuple[Path, Path]) -> None:
    source, target = folders
    content = bytes(2 << 20) + b"content" + bytes(6 << 20)
    write_tree(source, {"large": content})
    store = LocalStore(str(target))
    target.mkdir()
    (target / "old").write_bytes(b"x" * len(content))
    job(LocalStore(str(source)), store, range_bytes=2 << 20).run()
    assert (target / "large").read_bytes() == content
    assert (target / "large").stat().st_blocks * 512 < len(content) / 2
    status = LocalStore(str(source)).status(RelativePath("large"))
    assert status is not None and status.attributes is not None
    file = CopyableFile.build("", status.attributes, CopyConfiguration())
    writer = store.create(RelativePath("old"), file, len(content))
    writer.write(0, content)
    writer.finish()
    writer.close()
    assert (target / "old").read_bytes() == content


def test_a_full_disk_of_the_journal_is_told_with_what_to_do(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL

    class Full(sqlite3.Connection):
        def executemany(self, *given: object) -> sqlite3.Cursor:
            raise full

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Full))
        with pytest.raises(NoSpaceError, match="no space is left for the journal"):
            copied(source, target)
    copied(source, target)
    assert read_tree(target) == NEW


@pytest.mark.parametrize("existing", [Existing.SKIP, Existing.OVERWRITE])
def test_existing_files_are_skipped_or_replaced(folders: tuple[Path, Path], existing: Existing) -> None:
    source, target = folders  # 001-17, 001-24
    write_tree(target, OLD, time_s=1_600_000_000)
    copied(source, target, existing=existing)
    assert read_tree(target) == (NEW | OLD if existing is Existing.SKIP else NEW)


def test_a_link_of_the_target_is_skipped_as_files_are(folders: tuple[Path, Path]) -> None:
    source, target = folders
    target.mkdir()
    (target / "top").symlink_to("elsewhere")
    assert copied(source, target, existing=Existing.SKIP).progress.counts.skipped == {"exists": 1}
    assert (target / "top").is_symlink()


def test_extra_files_are_deleted_within_a_limit_and_kept_in_a_backup(folders: tuple[Path, Path]) -> None:
    source, target = folders
    write_tree(target, OLD | {"x/y": b"extra", "z": b"extra, too"}, time_s=1_600_000_000)
    with pytest.raises(RequestError, match="--max-delete 1"):
        copied(source, target, delete=True, delete_max=1)
    assert read_tree(target)["z"] == b"extra, too"
    copied(source, target, delete=True, delete_max=2, backup_dir=RelativePath("kept"))
    found = read_tree(target)
    assert {name: found.pop(name) for name in list(found) if name.startswith("kept/")} == {
        "kept/x/y": b"extra",
        "kept/z": b"extra, too",
    }
    assert found == NEW
    assert not (target / "x").exists(), "a folder that this empties goes, too"
    assert not copied(source, target, delete=True, backup_dir=RelativePath("kept")).progress.counts.deleted


def test_an_extra_file_goes_also_if_its_backup_is_another_name_of_it(tmp_path: Path) -> None:
    """As a run leaves it that ends between the backup of a file and its replacement."""
    write_tree(tmp_path / "src", {"1": b"one"})
    write_tree(tmp_path / "dst", {"1": b"one", "x/2": b"extra"})
    (tmp_path / "dst/kept/x").mkdir(parents=True)
    (tmp_path / "dst/kept/x/2").hardlink_to(tmp_path / "dst/x/2")
    counts = copied(tmp_path / "src", tmp_path / "dst", delete=True, backup_dir=RelativePath("kept")).progress.counts
    assert (counts.deleted, counts.failures) == (1, {})
    assert read_tree(tmp_path / "dst") == {"1": b"one", "kept/x/2": b"extra"}


def test_files_of_the_source_do_not_mix_with_backups(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"kept/1": b"mine", "1": b"new one"})
    write_tree(tmp_path / "dst", {"kept/1": b"a backup", "1": b"old"}, time_s=1_600_000_000)
    counts = copied(tmp_path / "src", tmp_path / "dst", backup_dir=RelativePath("kept")).progress.counts
    assert "replaced files go there" in counts.failures["kept"]
    assert read_tree(tmp_path / "dst") == {"kept/1": b"old", "1": b"new one"}


def test_the_version_that_was_replaced_last_is_kept_in_the_backup_folder(folders: tuple[Path, Path]) -> None:
    source, target = folders
    write_tree(target, {"top": b"before"})
    copied(source, target, backup_dir=RelativePath("kept"))
    assert read_tree(target) == NEW | {"kept/top": b"before"}
    write_tree(source, {"top": b"newest"}, 1_700_000_001)
    copied(source, target, backup_dir=RelativePath("kept"))
    assert read_tree(target) == NEW | {"kept/top": NEW["top"], "top": b"newest"}
    store = LocalStore(str(target))
    for _ in range(2):  # as a publication that is redone
        store.keep(RelativePath("top"), RelativePath("kept/top"))
    assert read_tree(target)["kept/top"] == b"newest"
    with pytest.raises(IsADirectoryError):
        store.keep(RelativePath("top"), RelativePath("a"))
    assert {path.name for path in target.iterdir()} == {"a", "b", "d", "kept", "top"}


@pytest.mark.parametrize("grouping", list(Grouping))
def test_killed_after_any_change_a_second_run_completes_every_file_set(tmp_path: Path, grouping: Grouping) -> None:
    # 000-36, 000-16, 001-4
    write_tree(tmp_path / "src", NEW)
    source = LocalStore(str(tmp_path / "src"))
    for changes in range(200):
        target = tmp_path / f"{changes}"
        write_tree(target, OLD, time_s=1_600_000_000)
        dying = DyingStore(str(target), changes)
        killed = False
        try:
            job(source, dying, grouping=grouping, threads=2).run()
        except Killed:
            killed = True
        found = read_tree(target)
        for name, content in found.items():
            assert content in (OLD.get(name), NEW.get(name)), "each file is the old or the new one"
        assert OLD.keys() <= found.keys(), "no file is gone at any moment"
        copied(tmp_path / "src", target, grouping=grouping, threads=2)
        assert read_tree(target) == NEW
        assert not (target / STAGING).exists()
        if not killed:
            return
    raise AssertionError("the store never had enough")


def test_staged_files_of_a_failed_run_are_reused(folders: tuple[Path, Path]) -> None:
    source, target = folders  # 000-16, 000-34, 000-35
    (source / "a/2").chmod(0)
    blocker = target / "a"
    blocker.mkdir(parents=True)
    write_tree(target, {"a/2/x": b"a folder where a file should go"})
    first = copied(source, target).progress.counts
    assert first.failed == 1 and "a/2" in first.failures
    (target / "a/2/x").unlink()
    (target / "a/2").rmdir()
    (source / "a/2").chmod(0o600)
    second = copied(source, target).progress.counts
    assert second.failed == 0
    assert read_tree(target) == NEW


def test_one_failed_file_set_blocks_no_other_and_what_it_staged_is_reused(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders  # 000-21, 000-34
    write = LocalStore.write_small

    def failing(self: LocalStore, path: RelativePath, file: object, data: bytes) -> None:
        if path.endswith("a/2"):
            raise PermissionError(13, "no")
        write(self, path, file, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "write_small", failing)
        first = copied(source, target).progress.counts
    assert (first.failed, first.files_published) == (1, 3)
    assert read_tree(target) == {name: content for name, content in NEW.items() if not name.startswith("a/")}
    second = copied(source, target).progress.counts
    assert (second.files_reused, second.files_published) == (2, 3)
    assert read_tree(target) == NEW


def test_a_large_file_goes_on_within_itself(tmp_path: Path) -> None:
    content = os.urandom(6 << 20)  # 000-37, 001-4
    write_tree(tmp_path / "src", {"big": content})
    source = LocalStore(str(tmp_path / "src"))
    dying = DyingStore(str(tmp_path / "dst"), 8)
    with pytest.raises(Killed):
        job(source, dying, range_bytes=1 << 20, threads=1).run()
    counts = copied(tmp_path / "src", tmp_path / "dst", range_bytes=1 << 20).progress.counts
    assert counts.bytes_reused >= 2 << 20 and counts.files_reused == 0, "ranges are no files"
    assert counts.bytes_copied + counts.bytes_reused == len(content)
    assert read_tree(tmp_path / "dst") == {"big": content}


def test_after_a_restart_staged_bytes_that_differ_are_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(6 << 20)
    write_tree(tmp_path / "src", {"big": content})
    with pytest.raises(Killed):
        dying = DyingStore(str(tmp_path / "dst"), 8)
        job(LocalStore(str(tmp_path / "src")), dying, range_bytes=1 << 20, threads=1).run()
    (staged,) = (tmp_path / "dst").rglob("big")
    with staged.open("r+b") as file:
        file.write(b"lost by the power cut")
    monkeypatch.setattr("replication.datasets.stores.local.boot_id", lambda: "another boot")
    counts = copied(tmp_path / "src", tmp_path / "dst", range_bytes=1 << 20).progress.counts
    assert counts.bytes_reused and not counts.failed
    assert read_tree(tmp_path / "dst") == {"big": content}


def test_a_file_that_changes_while_it_is_copied_is_not_published(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/big": bytes(6 << 20), "b/small": b"x"})

    class Changing(LocalStore):
        def open(self, file: Any) -> Any:
            reader = super().open(file)
            with (tmp_path / "src/a/big").open("ab") as other:
                other.write(b"more")
            return reader

    counts_of = job(Changing(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    counts = counts_of.run()
    assert "changed while it was copied" in counts.failures["a/big"]
    assert read_tree(tmp_path / "dst") == {"b/small": b"x"}


def test_names_with_control_characters_are_refused_and_the_others_arrive(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"good": b"1", "bad\nname": b"2"})
    counts = copied(tmp_path / "src", tmp_path / "dst").progress.counts
    assert counts.failed == 1
    assert read_tree(tmp_path / "dst") == {"good": b"1"}


def test_nothing_is_written_through_a_link_of_the_target(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/1": b"1", "b/1": b"2"})
    (tmp_path / "outside").mkdir()
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/a").symlink_to(tmp_path / "outside")
    counts = copied(tmp_path / "src", tmp_path / "dst").progress.counts
    assert counts.failed == 1
    assert list((tmp_path / "outside").iterdir()) == []
    assert read_tree(tmp_path / "dst")["b/1"] == b"2"


def test_the_target_itself_may_be_a_link(folders: tuple[Path, Path]) -> None:
    source, target = folders
    target.mkdir()
    linked = target.with_name("linked")
    linked.symlink_to(target)
    assert copied(source, linked).progress.counts.failures == {}
    assert read_tree(target) == NEW


def test_a_second_run_of_the_same_copy_is_refused_while_the_first_goes_on(folders: tuple[Path, Path]) -> None:
    source, target = folders
    waiting = job(LocalStore(str(source)), LocalStore(str(target)))
    waiting.state_dir.mkdir(parents=True)
    with locked(waiting.state_dir / "lock", "it"), pytest.raises(LockedFileError, match="runs this copy"):
        copied(source, target)
    copied(source, target)
    assert read_tree(target) == NEW


def test_a_verified_copy_notices_bytes_that_the_target_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a": b"content", "b": b"other", "c": b"more"}
    write_tree(tmp_path / "src", files)  # 000-11
    reread = LocalStore.reread

    def changed(self: LocalStore, path: RelativePath, begin: int, size: int) -> bytes:
        return b"CONTENT" if path.endswith("/a") else reread(self, path, begin, size)

    monkeypatch.setattr(LocalStore, "reread", changed)
    counts = copied(tmp_path / "src", tmp_path / "dst", verify=True, attempts=1).progress.counts
    assert list(counts.failures) == ["a"] and "other bytes" in counts.failures["a"]
    assert read_tree(tmp_path / "dst") == {}, "a file set is published whole"
    monkeypatch.undo()
    copied(tmp_path / "src", tmp_path / "dst", verify=True)
    assert read_tree(tmp_path / "dst") == files


def test_a_full_target_ends_the_run_and_the_next_one_goes_on(folders: tuple[Path, Path]) -> None:
    source, target = folders

    class Full(LocalStore):
        left = 3

        def write_small(self, *given: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_small(*given)

    before = threading.active_count()
    with pytest.raises(NoSpaceError, match="no space is left"):
        job(LocalStore(str(source)), Full(str(target)), threads=1).run()
    assert threading.active_count() == before
    assert all(NEW[name] == content for name, content in read_tree(target).items())
    assert copied(source, target).progress.counts.failed == 0
    assert read_tree(target) == NEW


def test_reasons_of_failures_show_no_password() -> None:
    progress = CopyProgress()
    progress.failed("a", "530 ftp://ann:secret@host/a: no")  # 001-28
    assert progress.counts.failures == {"a": "530 ftp://ann:***@host/a: no"}


def test_no_thread_is_left_after_a_run(folders: tuple[Path, Path]) -> None:
    source, target = folders
    before = threading.active_count()
    copied(source, target)
    with pytest.raises(Killed):
        job(LocalStore(str(source)), DyingStore(str(target), 1), existing=Existing.OVERWRITE).run()
    assert threading.active_count() == before


def test_a_publisher_that_ends_early_ends_the_listing_and_the_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {f"d{number:03}/f": b"x" for number in range(200)})
    written, died, write = [], threading.Event(), LocalStore.write_small

    def dying(publisher: Publisher, *given: Any) -> None:
        died.set()
        raise AssertionError("the publisher died")

    def writing(store: LocalStore, path: RelativePath, *given: Any) -> None:
        written.append(path)
        if len(written) > 1:
            died.wait(10)
        write(store, path, *given)

    monkeypatch.setattr(Publisher, "_publish", dying)
    monkeypatch.setattr(LocalStore, "write_small", writing)
    with pytest.raises(AssertionError, match="the publisher died"):
        copied(tmp_path / "src", tmp_path / "dst", files_per_split=1, threads=1)
    assert len(written) < 100
