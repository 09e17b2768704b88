"""What every file system must do for a WAL, and how the one in memory fails."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from replication.errors import LockedFileError, MissingFileError, NoSpaceError, StorageError
from replication.files.base import Files, append
from replication.files.boot import boot_id, boottime_ns
from replication.files.local import LocalFiles
from tests.fakes.files import MemoryFiles


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Files, str]]:
    files: Files = LocalFiles() if request.param == "local" else MemoryFiles()
    directory = f"{tmp_path}/wal"
    files.make_directory(directory)
    yield files, directory


Place = tuple[Files, str]


def test_what_is_appended_is_read_back(place: Place) -> None:
    files, directory = place
    file = files.create(f"{directory}/a")
    assert append(file, [b"one", memoryview(b"two"), b"", bytearray(b"three")]) == 11
    file.sync()
    assert file.size() == 11
    assert file.read(3, 8) == b"twoth"
    assert file.read(8, 100) == b"ree"
    assert file.read(50, 60) == b""
    file.close()
    again = files.open(f"{directory}/a")
    assert again.read(0, 3) == b"one"
    append(again, [b"two"])
    assert again.read(0, 8) == b"twotwoth", "it is opened at its begin"
    again.close()


def test_more_pieces_than_one_call_takes(place: Place) -> None:
    files, directory = place
    file = files.create(f"{directory}/a")
    pieces = [b"%04d" % number for number in range(5000)]
    append(file, pieces)
    assert file.read(0, 20000) == b"".join(pieces)
    file.close()


def test_bytes_are_rewritten_in_place_and_cut(place: Place) -> None:
    files, directory = place
    file = files.create(f"{directory}/a")
    append(file, [b"0123456789"])
    file.seek(2)
    append(file, [b"xx"])
    assert file.read(0, 10) == b"01xx456789"
    file.truncate(5)
    append(file, [b"!"])
    assert file.read(0, 10) == b"01xx4!"
    file.close()


def test_reserved_bytes_are_zeros_until_written(place: Place) -> None:
    files, directory = place
    file = files.create(f"{directory}/a")
    append(file, [b"ab"])
    file.reserve(10)
    append(file, [b"cd"])
    assert file.read(0, 4) == b"abcd"
    assert file.read(4, 10).strip(b"\0") == b""
    file.truncate(4)
    assert file.size() == 4
    file.close()


def test_a_name_is_made_once_renamed_and_removed(place: Place) -> None:
    files, directory = place
    file = files.create(f"{directory}/a")
    append(file, [b"x"])
    with pytest.raises(StorageError):
        files.create(f"{directory}/a")
    files.link(f"{directory}/a", f"{directory}/c")
    with pytest.raises(StorageError):
        files.link(f"{directory}/a", f"{directory}/c")
    files.remove(f"{directory}/a")
    files.rename(f"{directory}/c", f"{directory}/a")
    assert file.read(0, 1) == b"x" and files.names(directory) == ["a"]
    files.rename(f"{directory}/a", f"{directory}/b")
    files.sync_directory(directory)
    assert not files.exists(f"{directory}/a") and files.exists(f"{directory}/b")
    assert files.names(directory) == ["b"]
    file.close()
    files.remove(f"{directory}/b")
    files.remove(f"{directory}/b")
    assert files.names(directory) == []
    assert files.names(f"{directory}/nowhere") == []


def test_what_is_not_there_is_named(place: Place) -> None:
    files, directory = place
    for attempt in (
        lambda: files.open(f"{directory}/a"),
        lambda: files.rename(f"{directory}/a", f"{directory}/b"),
        lambda: files.link(f"{directory}/a", f"{directory}/b"),
        lambda: files.create(f"{directory}/nowhere/a"),
        lambda: files.map_words(f"{directory}/a", 2, create=False),
    ):
        with pytest.raises(MissingFileError, match=directory):
            attempt()


def test_one_holder_at_a_time(place: Place) -> None:
    files, directory = place
    first = files.create(f"{directory}/a")
    first.lock()
    first.lock()
    second = files.open(f"{directory}/a")
    with pytest.raises(LockedFileError):
        second.lock()
    first.close()
    first.close()
    second.lock()
    second.close()


def test_mapped_words_are_shared(place: Place) -> None:
    files, directory = place
    mine = files.map_words(f"{directory}/a.len", 4, create=True)
    theirs = files.map_words(f"{directory}/a.len", 4, create=False)
    mine[1] = (1 << 64) - 1
    theirs[2] = 5
    assert mine[2] == 5
    theirs[2] = 0
    assert list(theirs) == [0, (1 << 64) - 1, 0, 0]
    anew = files.map_words(f"{directory}/a.len", 4, create=True)
    assert list(anew) == [0, 0, 0, 0]
    for words in (mine, theirs, anew):
        files.sync_words(f"{directory}/a.len", words)
        words.release()


def test_words_can_be_read_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path, real = LocalFiles(), f"{tmp_path}/a.len", os.open
    files.map_words(path, 4, create=True).release()

    def read_only(name: str, flags: int, *more: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(name, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    words = files.map_words(path, 4, create=False)
    assert list(words) == [0] * 4 and words.readonly
    words.release()


def test_directories_are_made_with_their_parents(place: Place) -> None:
    files, directory = place
    files.make_directory(f"{directory}/x/y/z")
    files.make_directory(f"{directory}/x/y/z")
    files.create(f"{directory}/x/y/z/a").close()
    assert files.names(f"{directory}/x/y/z") == ["a"]


def test_a_directory_that_cannot_be_listed_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=f"cannot list {tmp_path}/file"):
        LocalFiles().names(f"{tmp_path}/file")
    assert LocalFiles().names(f"{tmp_path}/none") == []


def test_mapping_a_local_file_anew_never_cuts_it_under_a_reader(tmp_path: Path) -> None:
    files, path = LocalFiles(), f"{tmp_path}/a.len"
    files.map_words(path, 4, create=True).release()
    inode = os.stat(path)
    files.map_words(path, 4, create=True).release()
    assert (os.stat(path).st_ino, os.stat(path).st_size) == (inode.st_ino, 32)


@pytest.mark.linux
def test_words_of_a_local_file_have_their_space_before_they_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = LocalFiles(), f"{tmp_path}/a.len"
    with open(path, "wb") as hole:  # as who was killed meanwhile may have left it
        hole.truncate(32)

    def full(fd: int, begin: int, size: int) -> None:
        assert (os.readlink(f"/proc/self/fd/{fd}"), begin, size) == (path, 0, 32)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(NoSpaceError, match="no space to map"):
            files.map_words(path, 4, create=True)
        files.map_words(path, 4, create=False).release()
    words = files.map_words(path, 4, create=True)
    assert list(words) == [0] * 4 and os.stat(path).st_blocks > 0
    words.release()


def test_a_local_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = f"{tmp_path}/a"
    program = (
        "import sys; from replication.files.local import LocalFiles; f = LocalFiles().create(sys.argv[1]); f.lock();"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and holder.stdout.readline() == "held\n"
    file = LocalFiles().open(path)
    with pytest.raises(LockedFileError):
        file.lock()
    holder.kill()
    holder.communicate()
    file.lock()
    file.close()


def test_a_local_lock_that_cannot_be_had_for_another_reason_is_no_held_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    file = LocalFiles().create(f"{tmp_path}/a")
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match="cannot lock .*No locks available") as caught:
        file.lock()
    assert not isinstance(caught.value, LockedFileError)
    file.close()


def test_this_boot_has_an_id_and_a_clock() -> None:
    assert boot_id() == boot_id() != ""
    assert 0 < boottime_ns() <= boottime_ns()


def memory() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory("/d")
    return files


def test_a_crash_takes_what_was_never_synced() -> None:
    files = memory()
    file = files.create("/d/a")
    files.sync_directory("/d")
    append(file, [b"kept"])
    file.sync()
    append(file, [b"lost"])
    files.create("/d/unnamed")
    files.crash()
    assert files.names("/d") == ["a"]
    assert files.open("/d/a").read(0, 99) == b"kept"
    with pytest.raises(StorageError):
        append(file, [b"x"])


def test_a_crash_takes_words_that_were_stored_after_their_last_sync() -> None:
    files = memory()
    words, other = (files.map_words(f"/d/{name}.len", 2, create=True) for name in "ab")
    words[0] = other[0] = 1
    files.sync_words("/d/a.len", words)
    words[0] = 2
    files.crash()
    assert list(files.map_words("/d/a.len", 2, create=False)) == [1, 0]
    with pytest.raises(MissingFileError):
        files.map_words("/d/b.len", 2, create=False)
    files.faults.sync_failures = 1
    with pytest.raises(StorageError):
        files.sync_words("/d/a.len", words)


def test_a_crash_may_keep_part_of_the_tail() -> None:
    files = memory()
    file = files.create("/d/a")
    files.sync_directory("/d")
    append(file, [b"abcdef"])
    files.crash(keep_bytes=2)
    assert files.open("/d/a").read(0, 99) == b"ab"


def test_a_dead_process_leaves_its_bytes_and_no_lock() -> None:
    files = memory()
    file = files.create("/d/a")
    file.lock()
    append(file, [b"abc"])
    files.crash(machine=False)
    survivor = files.open("/d/a")
    survivor.lock()
    assert survivor.read(0, 9) == b"abc"


def test_a_failed_sync_forgets_what_was_dirty_and_rewriting_saves_it() -> None:
    for rewrite in (False, True):
        files = memory()
        file = files.create("/d/a")
        files.sync_directory("/d")
        append(file, [b"abc"])
        files.faults.sync_failures = 1
        with pytest.raises(StorageError):
            file.sync()
        if rewrite:
            file.seek(0)
            append(file, [file.read(0, 3)])
        file.sync()
        files.crash()
        assert (files.open("/d/a").read(0, 9) == b"abc") is rewrite


def test_short_writes_are_continued() -> None:
    files = memory()
    files.faults.write_bytes_max = 3
    file = files.create("/d/a")
    assert append(file, [b"0123", b"", b"456789"]) == 10
    assert file.read(0, 99) == b"0123456789"


def test_a_full_disk_takes_what_fits_and_then_says_so() -> None:
    files = memory()
    files.faults.capacity_bytes = 5
    file = files.create("/d/a")
    with pytest.raises(NoSpaceError):
        append(file, [b"0123456789"])
    with pytest.raises(NoSpaceError):
        file.reserve(100)
    file.truncate(2)
    assert append(file, [b"abc"]) == 3


def test_a_slow_disk_holds_a_sync() -> None:
    files = memory()
    files.faults.sync_gate = threading.Event()
    file = files.create("/d/a")
    syncing = threading.Thread(target=file.sync)
    syncing.start()
    assert syncing.is_alive()
    files.faults.sync_gate.set()
    syncing.join(120)
    assert not syncing.is_alive()
