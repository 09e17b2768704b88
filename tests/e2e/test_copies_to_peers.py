"""Whole files copied to and from a folder that a peer shares, while its receiver is killed again and again."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import pytest

from tests.waiting import wait_until


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A large file and small ones, in folders."""
    made = tmp_path / "source"
    for n in range(300):
        file = made / f"d{n % 7}" / f"file {n}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"{n}".encode() * n)
    (made / "large").write_bytes(secrets.token_bytes(40 << 20))
    os.chmod(made / "large", 0o640)
    return made


def test_a_copy_to_a_peer_is_whole_though_its_receiver_is_killed(sites, source, tmp_path):  # 001-12, 001-14
    east, west = sites
    inbox = west.file.parent / "inbox"
    done = threading.Event()

    def copy() -> None:
        try:
            east.shell("copy", "--limit", "8MiB", "--range-size", "4MiB", str(source), "walship://west/inbox/in")
        finally:
            done.set()

    copying = threading.Thread(target=copy)
    copying.start()
    kills = 0
    while kills < 2 and not done.is_set():
        wait_until(lambda: done.is_set() or any(inbox.rglob("*")), timeout_s=400, what="some of it to arrive")
        old = west.kill("receiver")
        kills += 1
        wait_until(lambda old=old: west.ready("receiver", other_than=old), timeout_s=400, what="west's receiver again")
    copying.join()
    assert kills == 2
    assert tree(inbox / "in") == tree(source), "nothing is left of staged files, either"
    found = os.stat(inbox / "in" / "large")
    assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o640, os.stat(source / "large").st_mtime_ns)
    assert "301 same" in east.shell("copy", str(source), "walship://west/inbox/in")
    east.shell("copy", "--check", str(source), "walship://west/inbox/in")
    east.shell("copy", "walship://west/inbox/in", str(tmp_path / "back"))
    assert tree(tmp_path / "back") == tree(source)


def test_a_dataset_goes_to_a_peer_by_the_cluster_that_declared_it(sites, source, tmp_path, monkeypatch):
    east, west = sites
    declared = ("--file", str(tmp_path / "datasets.toml"))
    east.shell("dataset", "add", "out", str(source), "walship://west/inbox/out", *declared)
    east.shell("dataset", "run", "out", *declared)
    assert tree(west.file.parent / "inbox" / "out") == tree(source)
    (source / "large").unlink()
    east.shell("sync", "--max-delete", "1", str(source), "walship://west/inbox/out")
    assert (west.file.parent / "inbox" / "out" / "large").exists(), "what both never agreed on is in both"
    assert (source / "large").exists()


def test_a_folder_that_is_not_shared_is_named_with_what_to_do(sites, source):
    east, west = sites
    told = east.shell("copy", str(source), "walship://west/none", code=6)
    assert "west shares no folder 'none' with east" in told and "[receiver.folders.NAME]" in told
    told = east.shell("copy", str(source), "walship://south/inbox", code=4)
    assert "has no peer 'south'" in told
