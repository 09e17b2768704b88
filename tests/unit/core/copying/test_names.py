"""Names of files: whatever a store or an archive says, no path leaves its root."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.core.copying.names import ROOT, RelativePath
from replication.errors import UnsafeNameError

_HOSTILE = st.sampled_from(
    [
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
)


@settings(max_examples=2000, deadline=None)
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
