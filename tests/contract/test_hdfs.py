"""Copies to and from a real HDFS: attributes, block size and replication, proxy users, renames, killed runs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from replication.core.copying.configuration import CopyConfiguration, parse_preserve
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.finders.recursive import RecursiveDataset
from replication.datasets.stores.base import Entry, FileWriter, Store, TreeChanges
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.remote import FsspecStore
from replication.datasets.stores.webhdfs import called
from replication.errors import CopyError
from shell import main
from tests.contract.test_file_stores import copyable, read, write
from tests.copying import Sink, job, read_tree, write_tree
from tests.hdfs import BLOCK_BYTES
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.slow]
ALL = frozenset({"times", "permissions", "owner", "group"})
NEW = RelativePath("new")


@pytest.fixture
def source(hdfs: str) -> FsspecStore:
    return FsspecStore(f"{hdfs}/{uuid4().hex}")


@pytest.fixture
def target(hdfs: str) -> FsspecStore:
    return FsspecStore(f"{hdfs}/{uuid4().hex}")


def entry(store: FsspecStore, path: str) -> Entry:
    found = store.status(RelativePath(path))
    assert found is not None
    return found


def told(store: FsspecStore, path: str) -> dict[str, Any]:
    """What HDFS itself tells of a file."""
    return dict(store._driver.info(store._fs, store.address(RelativePath(path))))


def give(store: FsspecStore, path: str, owner: str, mode: str) -> None:
    called(store._fs, "SETOWNER", store.address(RelativePath(path)), "PUT", owner=owner, group="analysts")
    called(store._fs, "SETPERMISSION", store.address(RelativePath(path)), "PUT", permission=mode)


def test_owners_permissions_and_times_are_kept_on_files_and_new_folders(
    source: FsspecStore, target: FsspecStore
) -> None:
    write(source, "a/b/1", b"one")  # 000-7, 000-20, 001-8, 001-10, 001-18
    for path, mode in (("a", "1750"), ("a/b", "711"), ("a/b/1", "604")):
        give(source, path, "ann", mode)
    assert job(source, target, preserve=ALL).run().failures == {}
    for path in ("a", "a/b", "a/b/1"):
        there, here = entry(target, path).attributes, entry(source, path).attributes
        assert there is not None and here is not None
        assert (there.user, there.group, there.permission) == ("ann", "analysts", here.permission), path
    assert told(target, "a/b/1")["modificationTime"] == told(source, "a/b/1")["modificationTime"]


def test_block_size_and_replication_are_those_of_the_target_or_preserved_or_as_asked_for(
    source: FsspecStore, target: FsspecStore
) -> None:
    content = os.urandom(9 << 20)  # 000-8
    write(source, "small", b"x")
    write(source, "large", content)
    assert job(source, target).run().failures == {}
    assert job(source, FsspecStore(f"{target.url}/other"), block_size=1 << 19, replication=3).run().failures == {}
    kept = parse_preserve("rb")  # 000-27
    other = FsspecStore(f"{target.url}/other")
    assert job(other, FsspecStore(f"{target.url}/kept"), preserve=kept, range_bytes=4 << 20).run().failures == {}
    assert job(other, FsspecStore(f"{target.url}/given"), preserve=kept, replication=2).run().failures == {}
    for name in ("small", "large"):
        found = [told(target, folder + name) for folder in ("", "other/", "kept/", "given/")]
        sizes = [(each["blockSize"], each["replication"]) for each in found]
        assert sizes == [(BLOCK_BYTES, 1), (1 << 19, 3), (1 << 19, 3), (1 << 19, 2)]
    assert read(target, "large") == read(target, "other/large") == read(target, "kept/large") == content


def snapshot(store: FsspecStore, name: str) -> None:
    store.make_folder(ROOT)
    called(store._fs, "ALLOWSNAPSHOT", store.address(ROOT), "PUT")
    called(store._fs, "CREATESNAPSHOT", store.address(ROOT), "PUT", snapshotname=name)


def listed(source: Store, target: Store, changes: TreeChanges | None, **given: Any) -> list[tuple[Any, ...]]:
    """What a listing tells, without the files that are the same and the ends of file sets."""
    sink = Sink()
    configuration = CopyConfiguration(delete=True, **given)
    RecursiveDataset(source, changes=changes).list_into(target, configuration, sink)
    return sorted((each for each in sink.told if each[0] not in ("skipped", "ended")), key=repr)


def change_at_random(store: FsspecStore, random: Random) -> None:
    """Write, rename and remove files and folders; some calls are refused, such as that of a folder into itself."""
    names = [f"{a}{b}" for a in ("x", "y", "x/y", "z/x", "z/y/x") for b in ("", "/a", "/b", "/c/a")]
    for _ in range(25):
        path, other = random.sample(names, 2)
        with suppress(OSError):
            match random.randrange(4):
                case 0:
                    write(store, path, bytes(random.randrange(100)))
                case 1:
                    store.remove_folder(RelativePath(path))
                case _:
                    store.make_folder(RelativePath(other).parent)
                    at = store.address(RelativePath(path))
                    called(store._fs, "RENAME", at, "PUT", destination=store.address(RelativePath(other)))


@pytest.mark.parametrize("seed", range(2))
def test_what_changed_since_a_snapshot_is_what_a_listing_of_all_finds(
    source: FsspecStore, tmp_path: Path, seed: int
) -> None:
    random, target = Random(seed), LocalStore(str(tmp_path))  # 000-40
    change_at_random(source, random)
    snapshot(source, "first")
    assert job(source, target).run().failures == {}
    change_at_random(source, random)
    snapshot(source, "second")
    second = FsspecStore(f"{source.url}/.snapshot/second")
    found = listed(second, target, second.changes_since("first"))
    assert found == listed(second, target, None)
    change_at_random(source, random)
    assert listed(source, target, source.changes_since("first")) == listed(source, target, None)


def test_only_what_changed_since_a_snapshot_is_listed_and_copied(
    source: FsspecStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("same/1", "same/below/2", "old/3", "old/below/4", "kept/5", "kept/below/6", "tmp/7"):
        write(source, name, b"1")
    snapshot(source, "first")
    line = ["copy", f"{source.url}/.snapshot/first", str(tmp_path)]
    assert main.run(line) == 0
    write_tree(tmp_path, {"same/1": b"changed here"})
    called(source._fs, "RENAME", source.address(RelativePath("old")), "PUT", destination=source.address(NEW))
    write(source, "kept/5", b"longer")
    write(source, "kept/6", b"new")
    write(source, "tmp/below/8", b"left out")
    called(source._fs, "MKDIRS", f"{source.address(ROOT)}/kept/b\nd", "PUT")
    snapshot(source, "second")
    write(source, "kept/7", b"too late")
    line = ["copy", f"{source.url}/.snapshot/second", str(tmp_path), "--since-snapshot"]
    capsys.readouterr()
    assert main.run([*line, "first", "--delete", "--exclude", "tmp", "--json"]) == 12
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["failures"]) == ["kept/b\\nd"] and shown["skipped"] == {"not removed": 2}
    assert read_tree(tmp_path) == {
        "same/1": b"changed here",
        **{name: b"1" for name in ("same/below/2", "new/3", "new/below/4", "kept/below/6", "tmp/7")},
        **{"kept/5": b"longer", "kept/6": b"new", "old/3": b"1", "old/below/4": b"1"},
    }
    assert main.run([*line, "first", "--delete", "--exclude", "tmp", "--exclude", r"b\nd"]) == 0
    assert not (tmp_path / "old").exists()
    for below, name in (("", "third"), ("/.snapshot/second/kept", "first"), ("/kept", "first"), ("/kept/5", "first")):
        assert main.run(["copy", source.url + below, str(tmp_path / "x"), "--since-snapshot", name]) == 4
        assert "snapshot" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_proxy_user_copies_with_its_own_rights(hdfs: str, source: FsspecStore, target: FsspecStore) -> None:
    write(source, "1", b"one")  # 000-17
    target.make_folder(RelativePath("of bob"))
    give(target, "of bob", "bob", "700")
    mine, others = (FsspecStore(f"{target.url}/{name}", {"proxy_to": "bob"}) for name in ("of bob/new", "other"))
    assert job(source, mine).run().failures == {}
    made = entry(target, "of bob/new/1").attributes
    assert made is not None and made.user == "bob"
    with pytest.raises(Exception, match="Permission denied: user=bob"):
        job(source, others).run()


def test_a_published_file_replaces_the_old_one_in_one_step(
    target: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(target, "old", b"old")  # 000-33, 002-3
    write(target, "new", b"new")
    before, asked = told(target, "new")["fileId"], []
    request = target._fs.session.request

    def noted(method: str, address: str, **given: Any) -> Any:
        asked.append(given.get("params", {}).get("op"))
        return request(method, address, **given)

    monkeypatch.setattr(target._fs.session, "request", noted)
    target.move(RelativePath("new"), RelativePath("old"))
    assert asked == ["RENAME"], "between two steps nobody would see the old file nor the new one"
    assert told(target, "old")["fileId"] == before
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        target.move(RelativePath("new"), RelativePath("old"))
    write(target, "folder/1", b"1")
    with pytest.raises(OSError, match="HDFS says"):
        target.move(RelativePath("old"), RelativePath("folder"))


def test_odd_names_keep_their_bytes_and_large_folders_come_in_batches(source: FsspecStore, target: FsspecStore) -> None:
    names = ["a b+c", "%41%2F", "semi;colon", "q?x=1&y#z", "é ü 🚢", "back\\slash", "[x]{y}*", "'\"", "~=", "@,!$()"]
    for name in names:
        write(source, f"odd/{name}", name.encode())
    assert job(source, target).run().failures == {}
    found = [each.attributes.name for each in target.scan(RelativePath("odd")) if each.attributes]
    assert sorted(found) == sorted(names)
    assert {name: read(target, f"odd/{name}") for name in names} == {name: name.encode() for name in names}


def test_a_name_that_hdfs_refuses_fails_alone(tmp_path: Path, target: FsspecStore) -> None:
    write_tree(tmp_path, {"good": b"1", "folder/a:b": b"2"})
    counts = job(LocalStore(str(tmp_path)), target, attempts=1).run()
    assert list(counts.failures) == ["folder/a:b"] and read(target, "good") == b"1"


def test_a_stream_that_is_given_up_ends_and_one_that_fails_says_so(target: FsspecStore) -> None:
    writer = target.create(RelativePath("a"), copyable("a"), -1)
    for _ in range(20):
        writer.write(0, bytes(1 << 20))
    writer.close()
    target.make_folder(RelativePath("a folder"))
    writer = target.create(RelativePath("a folder"), copyable("x"), -1)
    with pytest.raises(OSError):
        for _ in range(50):
            writer.write(0, bytes(1 << 20))
        writer.finish()
    writer.close()


def test_folders_are_removed_with_all_in_them_and_only_empty_ones_by_the_other_call(target: FsspecStore) -> None:
    write(target, "a/b/c", b"1")
    target.remove_folder_if_empty(RelativePath("a"))
    assert read(target, "a/b/c") == b"1"
    target.remove_folder(RelativePath("a"))
    assert target.status(RelativePath("a")) is None
    target.make_folder(RelativePath("d"))
    target.remove_folder_if_empty(RelativePath("d"))
    assert [each for each in target.scan(ROOT)] == []


def ranges_written(target: FsspecStore, content: bytes, size: int) -> FileWriter:
    """A file whose ranges are written, the last first, and not joined."""
    target.make_folder(RelativePath("a"))
    for begin in reversed(range(0, len(content), size)):
        writer = target.create(RelativePath("a/large"), copyable("a/large", len(content)), len(content))
        for at in range(begin, min(begin + size, len(content)), 1000):
            writer.write(at, content[at : min(at + 1000, begin + size)])
        writer.close()
    return target.create(RelativePath("a/large"), copyable("a/large", len(content)), len(content))


@pytest.mark.parametrize("refused", [False, True])
def test_ranges_are_read_where_they_are_and_joined_once(
    target: FsspecStore, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    content, path = os.urandom(300_007), RelativePath("a/large")  # 000-38, 000-41
    monkeypatch.setattr("replication.datasets.stores.hdfs._SOURCES_BYTES", 200)
    other = "CONCAT" if refused else "APPEND"  # below a snapshot the first is refused

    def refusing(fs: Any, operation: str, *given: Any, **named: Any) -> Any:
        if operation == other:
            raise OSError(f"HDFS says: {operation} is not possible here")
        return called(fs, operation, *given, **named)

    monkeypatch.setattr("replication.datasets.stores.hdfs.called", refusing)
    writer = ranges_written(target, content, 30_000)
    for begin in (0, 29_000, 30_000, 271_234):
        assert target.reread(path, begin, 1000) == content[begin : begin + 1000]
    writer.finish()
    writer.finish()
    assert read(target, "a/large") == content
    made = entry(target, "a/large").attributes
    assert made is not None and (made.timestamp_ns, made.permission) == (1_700_000_000_000_000_000, 0o640)
    assert [each.attributes.name for each in target.scan(RelativePath("a")) if each.attributes] == ["large"]


def test_a_file_whose_ranges_are_lost_is_begun_anew(target: FsspecStore) -> None:
    writer = ranges_written(target, bytes(100_000), 30_000)
    called(target._fs, "DELETE", target.address(RelativePath("a/.walship/large/60000")), "DELETE")
    with pytest.raises(CopyError, match="are missing"):
        writer.finish()
    assert target.status(RelativePath("a/large")) is None and target.status(RelativePath("a/.walship/large")) is None


def test_a_killed_copy_goes_on_within_a_large_file(hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # 001-4, 000-16
    content, url = os.urandom(24 << 20), f"{hdfs}/{uuid4().hex}"
    write_tree(tmp_path / "src", {"a/large": content})
    line = [sys.executable, "-c", "from shell.main import main; main()", "copy", str(tmp_path / "src"), url]
    line += ["--range-size", "1MiB", "--verify"]
    with subprocess.Popen([*line, "--limit", "6MiB", "--threads", "2"]) as process:
        wait_until(lambda: journaled(tmp_path, "ranges") >= 4, what="ranges", despite=(ValueError, sqlite3.Error))
        process.send_signal(signal.SIGKILL)
    kept = journaled(tmp_path, "ranges") << 20
    target = FsspecStore(url)
    assert target.status(RelativePath("a")) is None
    run = subprocess.run([*line, "--json"], capture_output=True, text=True, check=True)
    shown = json.loads(run.stdout)
    assert (shown["bytes_reused"], shown["bytes_copied"]) == (kept, (24 << 20) - kept)
    assert read(target, "a/large") == content
    assert target.status(RelativePath(".walship")) is None


def journaled(tmp_path: Path, table: str) -> int:
    """How much is whole in the staging folder, as the journal has it."""
    (journal,) = (tmp_path / "state").glob("walship/copies/*/journal.db")
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_killed_copy_is_gone_on_with(hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # 001-4, 000-16, 000-36
    files = {f"{n // 8}/{n}": os.urandom(1 << 20) for n in range(24)}
    write_tree(tmp_path / "src", files)
    url = f"{hdfs}/{uuid4().hex}"
    target = FsspecStore(url)
    line = [sys.executable, "-c", "from shell.main import main; main()", "copy", str(tmp_path / "src"), url]
    line += ["--file-set", "dataset"]

    with subprocess.Popen([*line, "--limit", "6MiB", "--threads", "1", "--files-per-split", "2"]) as process:
        wait_until(lambda: journaled(tmp_path, "staged") >= 1, what="staged files", despite=(ValueError, sqlite3.Error))
        process.send_signal(signal.SIGKILL)
    assert target.status(RelativePath("0")) is None, "nothing of a file set is seen before all of it is there"
    kept = journaled(tmp_path, "staged") << 20
    run = subprocess.run([*line, "--json"], capture_output=True, text=True, check=True)
    shown = json.loads(run.stdout)
    assert (shown["bytes_reused"], shown["bytes_copied"]) == (kept, (24 << 20) - kept)
    assert {name: read(target, name) for name in files} == files
    assert target.status(RelativePath(".walship")) is None
