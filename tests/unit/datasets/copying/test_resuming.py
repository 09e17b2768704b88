"""What a killed run has staged is reused by the next one only if that would stage the same."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.datasets.converters import plugins
from replication.datasets.copying.journal import CopyJournal
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.copying.staging import state_dir
from replication.datasets.publication.publisher import Publisher
from replication.datasets.stores.base import Entry, EntryKind, read_whole
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.errors import PeerUnavailableError, RequestError, StorageError
from replication.permissions import user_umask
from tests.copying import DyingStore, Killed, copied, job, read_tree, write_tree

MIB = 1 << 20


def killed_before_publishing(at: Path, **given: Any) -> None:
    """A run that stages all and publishes nothing."""

    def killed(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Publisher, "_publish", killed)
        copied(at / "src", at / "dst", **given)


def killed_within_a_file(at: Path, range_bytes: int, changes: int) -> None:
    with pytest.raises(Killed):
        dying = DyingStore(str(at / "dst"), changes)
        job(LocalStore(str(at / "src")), dying, range_bytes=range_bytes, threads=1).run()


def test_ranges_of_another_size_are_copied_again(tmp_path: Path) -> None:
    content = os.urandom(6 * MIB)
    write_tree(tmp_path / "src", {"big": content})
    killed_within_a_file(tmp_path, 2 * MIB, 6)
    counts = copied(tmp_path / "src", tmp_path / "dst", range_bytes=4 * MIB).progress.counts
    assert (counts.bytes_reused, counts.failed) == (0, 0)
    assert read_tree(tmp_path / "dst") == {"big": content}


def test_a_staged_file_has_the_digest_of_the_range_size_that_it_is_published_with(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"big": os.urandom(6 * MIB)})
    killed_before_publishing(tmp_path, range_bytes=MIB)
    digests = []
    for target in ("dst", "other"):
        made = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / target)), range_bytes=2 * MIB)
        made.published = lambda file_set: digests.extend(each.digest for each in file_set.staged)
        made.run()
    assert len(digests) == 2 and digests[0] == digests[1]


class Keyed:
    """Puts a key before the content."""

    removes_suffix, adds_suffix = "", ".keyed"

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def __call__(self, pieces: Iterable[bytes], size: int) -> Generator[bytes]:
        yield self._key
        yield from pieces


def test_what_is_staged_is_reused_with_the_same_conversion_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.BUILT_IN, "keyed", Keyed)
    write_tree(tmp_path / "src", {"a": b" content"})
    for key, reused in (("one", 1), ("two", 0)):
        killed_before_publishing(tmp_path, conversions=["keyed=one"])
        counts = copied(tmp_path / "src", tmp_path / "dst", conversions=[f"keyed={key}"]).progress.counts
        assert counts.files_reused == reused
        assert read_tree(tmp_path / "dst") == {"a.keyed": f"{key} content".encode()}
        (tmp_path / "dst/a.keyed").unlink()


def test_what_is_staged_is_copied_again_if_its_permissions_have_changed_since(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"secret"})
    (tmp_path / "src/a").chmod(0o644)
    killed_before_publishing(tmp_path)
    (tmp_path / "src/a").chmod(0o600)
    copied(tmp_path / "src", tmp_path / "dst")
    assert stat.S_IMODE((tmp_path / "dst/a").stat().st_mode) == 0o600


def test_what_was_staged_is_not_reused_after_another_version_was_staged_over_it(tmp_path: Path) -> None:
    versions = [({"a": bytes([number]) * 100}, 1_700_000_000 + number) for number in (1, 2)]
    for tree, time_s in versions:
        write_tree(tmp_path / "src", tree, time_s)
        killed_before_publishing(tmp_path)
    write_tree(tmp_path / "src", *versions[0])
    copied(tmp_path / "src", tmp_path / "dst")
    assert read_tree(tmp_path / "dst") == versions[0][0]


def test_ranges_are_not_reused_after_those_of_another_version_were_written_over_them(tmp_path: Path) -> None:
    versions = [({"big": os.urandom(8 * MIB)}, 1_700_000_000 + number) for number in (1, 2)]
    for tree, time_s in versions:
        write_tree(tmp_path / "src", tree, time_s)
        killed_within_a_file(tmp_path, 2 * MIB, 6)
    write_tree(tmp_path / "src", *versions[0])
    copied(tmp_path / "src", tmp_path / "dst", range_bytes=2 * MIB)
    assert read_tree(tmp_path / "dst") == versions[0][0]


def test_ranges_of_a_staged_file_that_a_person_has_removed_are_copied_again(tmp_path: Path) -> None:
    content = os.urandom(8 * MIB)
    write_tree(tmp_path / "src", {"big": content})
    killed_within_a_file(tmp_path, 2 * MIB, 6)
    (staged,) = (tmp_path / "dst/.walship").rglob("big")
    staged.unlink()
    killed_within_a_file(tmp_path, 2 * MIB, 4)
    assert staged.stat().st_size == 8 * MIB, "it is begun anew"
    copied(tmp_path / "src", tmp_path / "dst", range_bytes=2 * MIB)
    assert read_tree(tmp_path / "dst") == {"big": content}


@pytest.mark.parametrize("size", [100, 6 * MIB])
def test_a_read_only_file_that_was_staged_and_not_noted_is_staged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    content = os.urandom(size)
    write_tree(tmp_path / "src", {"a": content})
    (tmp_path / "src/a").chmod(0o444)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(CopyJournal, "add", killed)
        copied(tmp_path / "src", tmp_path / "dst", range_bytes=MIB)
    plain_open = os.open

    def refusing(path: Any, flags: int, *given: Any, **named: Any) -> int:
        """As for a user other than root."""
        if flags & os.O_WRONLY and Path(path).exists() and not Path(path).stat().st_mode & stat.S_IWUSR:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return plain_open(path, flags, *given, **named)

    monkeypatch.setattr(os, "open", refusing)
    assert copied(tmp_path / "src", tmp_path / "dst", range_bytes=MIB).progress.counts.failures == {}
    assert read_tree(tmp_path / "dst") == {"a": content}
    assert stat.S_IMODE((tmp_path / "dst/a").stat().st_mode) == 0o444


def test_nobody_else_can_look_into_what_is_staged(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"private/a": b"secret"})
    (tmp_path / "src/private").chmod(0o700)
    killed_before_publishing(tmp_path)
    assert stat.S_IMODE((tmp_path / "dst").stat().st_mode) == 0o777 & ~user_umask()
    assert stat.S_IMODE((tmp_path / "dst/.walship").stat().st_mode) == 0o700


def test_a_damaged_journal_is_told_with_its_path_and_the_next_copy_needs_none(tmp_path: Path) -> None:
    content = b"x" * MIB
    write_tree(tmp_path / "src", {"a": content})
    killed_before_publishing(tmp_path)
    (journal,) = (tmp_path / "dst").glob(".walship/*/journal.db")
    for log in journal.parent.glob("journal.db-*"):
        log.unlink()
    journal.write_bytes(b"no journal" * 999)
    with pytest.raises(StorageError, match=r"the journal of the copy in .*journal\.db cannot be used.*move it away"):
        copied(tmp_path / "src", tmp_path / "dst")
    journal.unlink()
    assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.failures == {}
    assert read_tree(tmp_path / "dst") == {"a": content}


def test_a_user_without_a_home_is_told_where_the_state_of_a_copy_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    with open_store("memory://copies-without-a-home") as target, pytest.raises(RequestError, match="XDG_STATE_HOME"):
        state_dir(target, "job")


def test_killed_after_any_change_new_folders_get_the_permissions_of_the_source(tmp_path: Path) -> None:
    for changes in range(100):
        at = tmp_path / str(changes)
        write_tree(at / "src", {"own/below/a": b"1", "own/below/b": b"2"})
        (at / "src/own").chmod(0o700)
        (at / "src/own/below").chmod(0o750)
        dying = DyingStore(str(at / "dst"), changes)
        with suppress(Killed):
            job(LocalStore(str(at / "src")), dying).run()
        copied(at / "src", at / "dst")
        assert [(at / "dst" / name).stat().st_mode & 0o777 for name in ("own", "own/below")] == [0o700, 0o750], changes
        if dying.left >= 0:
            return
    raise AssertionError("the store never had enough")


class Flaky(LocalStore):
    """Does not answer the first question about each file that is staged or was to be."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked: set[str] = set()

    def status(self, path: RelativePath) -> Entry | None:
        if path.startswith(STAGING) and path.name in ("big", "small") and path not in self.asked:
            self.asked.add(path)
            raise ConnectionResetError("the connection was lost")
        return super().status(path)


def test_a_store_that_does_not_answer_once_what_is_staged_is_asked_again(tmp_path: Path) -> None:
    files = {"a/big": os.urandom(5 * MIB), "b/big": os.urandom(6 * MIB), "b/small": b"1"}
    write_tree(tmp_path / "src", files)
    for is_again in (False, True):
        if is_again:
            shutil.rmtree(tmp_path / "dst")
            killed_before_publishing(tmp_path, range_bytes=MIB)
        target = Flaky(str(tmp_path / "dst"))
        counts = job(LocalStore(str(tmp_path / "src")), target, range_bytes=MIB).run()
        assert (counts.failures, bool(counts.bytes_reused)) == ({}, is_again)
        assert read_tree(tmp_path / "dst") == files and target.asked


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), PeerUnavailableError("west is away")])
def test_what_is_staged_and_cannot_be_read_back_after_a_restart_is_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tree = {"big": os.urandom(6 * MIB)}
    for name, files in {"whole": {"a": b"1", "b": b"2"}, "in ranges": tree}.items():
        at = tmp_path / name
        write_tree(at / "src", files)
        if len(files) > 1:
            killed_before_publishing(at, range_bytes=MIB)
        else:
            killed_within_a_file(at, MIB, 8)

        def failing(*_: object) -> bytes:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("replication.datasets.stores.local.boot_id", lambda: "another boot")
            patch.setattr(LocalStore, "reread", failing)
            counts = copied(at / "src", at / "dst", range_bytes=MIB, attempts=1).progress.counts
        assert (counts.failures, counts.bytes_reused) == ({}, 0)
        assert read_tree(at / "dst") == files


@pytest.mark.parametrize("size", [100, 6 * MIB])
def test_what_an_unverified_run_has_staged_is_read_back_when_the_next_one_verifies(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    write_tree(tmp_path / "src", {"a": content})
    killed_before_publishing(tmp_path)
    (staged,) = (tmp_path / "dst/.walship").rglob("a")
    staged.write_bytes(bytes(size))  # as a disk has it that loses writes
    counts = copied(tmp_path / "src", tmp_path / "dst", verify=True).progress.counts
    assert counts.failures == {} and counts.files_reused == 0
    assert read_tree(tmp_path / "dst") == {"a": content}


def test_ranges_of_an_unverified_run_are_read_back_when_the_next_one_verifies(tmp_path: Path) -> None:
    content = os.urandom(8 * MIB)
    write_tree(tmp_path / "src", {"big": content})
    killed_within_a_file(tmp_path, 2 * MIB, 6)
    (staged,) = (tmp_path / "dst/.walship").rglob("big")
    staged.write_bytes(bytes(8 * MIB))
    assert copied(tmp_path / "src", tmp_path / "dst", range_bytes=2 * MIB, verify=True).progress.counts.failures == {}
    assert read_tree(tmp_path / "dst") == {"big": content}


def test_a_host_publishes_what_it_has_staged_and_not_what_another_one_stages_by_the_same_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sources have the same path, and their journals are folders of each: nothing keeps them apart but that."""
    write_tree(tmp_path / "src", {"a": b"one"})
    publish, hosts = Publisher._publish, ["one", "other"]

    def published(self: Publisher, *given: Any) -> None:
        if len(hosts) == 1:
            raise Killed
        hosts.pop(0)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / hosts[0]))
        write_tree(tmp_path / "src", {"a": b"two"})
        with open_store(url) as there, pytest.raises(Killed):
            job(LocalStore(str(tmp_path / "src")), there).run()
        publish(self, *given)

    url = f"memory://{tmp_path.name}"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / hosts[0]))
    monkeypatch.setattr(Publisher, "_publish", published)
    with open_store(url) as target:
        job(LocalStore(str(tmp_path / "src")), target).run()
        (there,) = (each.attributes for each in target.scan(ROOT) if each.kind is EntryKind.FILE)
        assert there is not None and read_whole(target, there) == b"one"


def test_a_host_that_is_done_leaves_what_another_one_has_staged_by_the_same_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(host: str) -> CopyCounts:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / host))
        with open_store(url) as there:
            return job(LocalStore(str(tmp_path / "src")), there).run()

    def published(self: Publisher, *given: Any) -> None:
        monkeypatch.setattr(Publisher, "_publish", publish)
        write_tree(tmp_path / "src", {"a": b"old"}, 1_600_000_000)
        assert run("other").failures == {}
        publish(self, *given)

    url, publish = f"memory://{tmp_path.name}", Publisher._publish
    write_tree(tmp_path / "src", {"a": b"new"})
    monkeypatch.setattr(Publisher, "_publish", published)
    assert run("one").failures == {}
    with open_store(url) as target:
        (there,) = (each.attributes for each in target.scan(ROOT))
        assert there is not None and read_whole(target, there) == b"new"
