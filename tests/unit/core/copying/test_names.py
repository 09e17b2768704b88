"""Names of files: whatever a store or an archive says, no path leaves its root."""

from __future__ import annotations

import os
import posixpath
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.copying.names import FOLDERS_MAX, ROOT, RelativePath
from replication.core.copying.versions import version_path
from replication.datasets.stores.local import LocalStore
from replication.errors import UnsafeNameError
from tests.budget import examples
from tests.copying import copied, read_tree

_PARTS = [
    "..",
    ".",
    "",
    "/",
    "//",
    "\0",
    "\n",
    "\r\n",
    "a",
    "b/",
    "../",
    "~",
    "\\",
    "%2e%2e",
    "DELE x",
    "\x85",
    "‮",
    "\ud800",
]
_HOSTILE = st.sampled_from(_PARTS)


@examples(500)
@given(st.lists(_HOSTILE | st.text(max_size=4), max_size=8).map("".join))
def test_no_name_that_is_taken_leads_out_of_its_root_or_has_a_control_character(text: str) -> None:
    try:
        path = RelativePath(text)
    except UnsafeNameError:
        return
    joined = posixpath.normpath(posixpath.join("/root/of/all", path))
    assert joined == "/root/of/all" + (f"/{path}" if path else "")
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in path)
    path.encode()


def hostile_names(count: int, seed: int) -> Iterator[str]:
    """Names made of parts that lead out of folders, end commands, hide or reorder text, and of any characters."""
    rng = random.Random(seed)
    parts = [
        *_PARTS,
        *(chr(code) for code in range(0x20)),
        "\u2028",
        "\u202e",
        "C:",
        "a" * 300,
        ";",
        "`x`",
        "$(x)",
        "*",
    ]
    for _ in range(count):
        pieces = (
            rng.choice(parts) if rng.random() < 0.5 else chr(rng.randrange(0x250 if rng.random() < 0.9 else 0x110000))
            for _ in range(rng.randrange(1, 9))
        )
        yield "".join(pieces)


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_none_of_many_generated_names_escapes(count: int, tmp_path: Path) -> None:
    store, inside = LocalStore(str(tmp_path)), f"{tmp_path}/"  # 000-4, 001-28
    taken = refused = 0
    for text in hostile_names(count, seed=22):
        try:
            path = RelativePath(text)
        except UnsafeNameError as error:
            assert error.what.isprintable(), "what is refused is shown without its control characters"
            refused += 1
            continue
        taken += 1
        for each in (path, version_path(path, 1, "0123456789") if path and len(path.name) < 200 else path):
            local = store.local_path(each)
            assert f"{posixpath.normpath(local)}/".startswith(inside)
            assert "/../" not in f"{local}/" and "\0" not in local
            assert len(f"MLST {each}\r\n".splitlines()) == 1, "it is one command of FTP and SFTP"
    assert min(taken, refused) > count // 20, "both kinds are generated"


def test_names_that_are_taken_are_written_below_the_root_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    made = 0
    for text in hostile_names(2000, seed=7):
        try:
            (tmp_path / "src" / RelativePath(text)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "src" / RelativePath(text)).write_bytes(b"x")
            made += 1
        except (UnsafeNameError, OSError):
            continue
    before = {path for path in tmp_path.iterdir()}
    copied(tmp_path / "src", tmp_path / "dst")
    assert {path for path in tmp_path.iterdir()} - before == {tmp_path / "dst"}
    assert made > 100 and read_tree(tmp_path / "dst") == read_tree(tmp_path / "src")


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "x\ny", "\r\nDELE y"])
def test_an_entry_of_a_folder_is_one_safe_part(name: str) -> None:
    with pytest.raises(UnsafeNameError):
        RelativePath("folder").child(name)


def test_paths_join_and_part() -> None:
    path = RelativePath("a/b").child("c d")
    assert (path, path.parent, path.name) == ("a/b/c d", "a/b", "c d")
    assert path.below(RelativePath("x")) == "x/a/b/c d"
    assert path.relative_to(RelativePath("a")) == "b/c d"
    assert ROOT.child("a").parent == ROOT


def test_folders_below_a_depth_are_refused_by_name_and_all_others_are_copied(tmp_path: Path) -> None:
    at = tmp_path / "src"
    at.mkdir()
    (at / "f").write_bytes(b"1")
    here = os.getcwd()
    try:
        os.chdir(at)
        for _ in range(FOLDERS_MAX + 200):
            os.mkdir("d")
            os.chdir("d")
        Path("f").write_bytes(b"2")
    finally:
        os.chdir(here)
    counts = copied(at, tmp_path / "dst").progress.counts
    subprocess.run(["rm", "-r", str(at)], check=True)  # as shutil.rmtree cannot
    assert counts.files_published == 1
    assert list(counts.failures.values()) == [f"it is more than {FOLDERS_MAX} folders deep"]
