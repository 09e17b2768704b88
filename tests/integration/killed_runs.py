"""Copies that are killed by SIGKILL before any call that changes files; a program of its own, since it forks.

Each run is a process, forked of one that has loaded everything. What a killed one leaves is checked as it is, and again
when the next run has gone on with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from replication.core.copying.names import RelativePath
from replication.core.copying.versions import version_name
from replication.errors import WaitTimeoutError
from tests.copying import read_tree, write_tree
from tests.recording import reader, recorded, timeline

_CALLS = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "fsync", "fdatasync", "write", "pwrite")
_MOST = 1000
_LATER_S = 1_700_000_001
OLD = {"a/1": b"old one", "a/2": b"old two", "b/1": b"old three"}
GONE = {"gone/1": b"old four"}
NEW = {"a/1": b"new 1", "a/2": b"new 2", "a/3": b"new 3", "b/1": b"old three", "c/d": b"new four"}


def main(kind: str, root: Path) -> None:
    """Kill copies before each call in turn, until one gets to its end."""
    given: dict[str, Any] = {"versions": {"versions": True}, "plain": {"delete": True}}[kind]
    at, before = root / "at", root / "before"
    assert forked(lambda: first(at, **given)) == 0
    shutil.copytree(at, before)
    for number in range(1, _MOST):
        shutil.rmtree(at)
        shutil.copytree(before, at)
        status = forked(lambda number=number: killed(at, number, **given))
        if timeline(at).state().roots:
            check_seen(at, given)
        assert forked(lambda: run(at, **given)) == 0, number
        found = check_seen(at, given)
        assert found == (NEW if "delete" in given else NEW | GONE), (number, found)
        assert not (at / "dst/.walship").exists(), number
        check_recorded_once(at)
        if os.WIFEXITED(status):
            assert status == 0 and number > 10, (number, status)
            print(f"killed before each of {number - 1} calls")
            return
    raise AssertionError("it never ran to its end")


def forked(call: Callable[[], None]) -> int:
    """The status of a process that has made a call."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def first(at: Path, **given: Any) -> None:
    """A copy of the old tree, after which the new one is there."""
    write_tree(at / "src", OLD | GONE)
    run(at, **given)
    (at / "src/gone/1").unlink()
    write_tree(at / "src", {name: data for name, data in NEW.items() if OLD.get(name) != data}, _LATER_S)


def killed(at: Path, number: int, **given: Any) -> None:
    """A copy that is killed."""
    kill_before(number)
    run(at, **given)


def run(at: Path, **given: Any) -> None:
    """A copy that is recorded."""
    assert recorded(at, **given, threads=1).run().failed == 0


def kill_before(number: int) -> None:
    """Have this process killed before so many calls."""
    calls = count(1)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return counting

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))


def check_seen(at: Path, given: dict[str, Any]) -> dict[str, bytes]:
    """What a reader sees: each file set is the old or the new one. Where files are written over it may have to wait."""
    kept = "versions" in given
    for name, content in {} if kept else read_tree(at / "dst").items():
        assert content in (OLD.get(name), NEW.get(name), GONE.get(name)), f"{name} is torn"
    try:
        with reader(at).files(wait_s=0) as snapshot:
            paths = [RelativePath(version.path) for version in snapshot.versions]
    except WaitTimeoutError:
        assert not kept
        return {}
    found: dict[str, bytes] = {}
    for path in paths:
        name = version_name(path) if kept else None
        file = name.file if name is not None else path
        assert file not in found, f"{file} is seen twice"
        found[file] = (at / "dst" / path).read_bytes()
    for folder in ("a/", "b/", "c/", "gone/"):
        sets = [{n: d for n, d in tree.items() if n.startswith(folder)} for tree in (found, OLD | GONE, NEW)]
        assert sets[0] in sets[1:], f"{folder} is a mix: {sets[0]}"
    return found


def check_recorded_once(at: Path) -> None:
    """No two completed instants add the same version of a file, and none is pending."""
    adds = [
        (version.path, version.digest)
        for event in timeline(at).following(0)
        if not event.instant.is_pending
        for version in event.instant.changes.adds
    ]
    assert len(adds) == len(set(adds)), adds
    assert not timeline(at).state().pending


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
