"""What a copy expects of any converter and unpacker: walship's own, and those of a package with plugins."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.conversions import applied, converted_path
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.converters.base import UNREADABLE
from replication.datasets.converters.plugins import BUILT_IN, GROUP, conversions_of, converter_of, unpacker_of
from replication.datasets.job import CopyJob
from replication.datasets.request import copy_job
from replication.datasets.stores.archives import ArchivesStore
from replication.datasets.stores.local import LocalStore
from replication.errors import CopyError, RequestError
from tests.copying import copied, read_tree, write_tree

PLUGINS = '''
"""A package with plugins: two converters and an unpacker."""

from replication.datasets.converters.base import ArchiveMember
from replication.errors import RequestError


class Xor:
    removes_suffix, adds_suffix = "", ".xor"

    def __init__(self, key):
        if not key.isdigit():
            raise RequestError("xor needs a number", "Write xor=7")
        self._table = bytes(each ^ int(key) for each in range(256))

    def __call__(self, pieces, size):
        for piece in pieces:
            yield piece.translate(self._table)


class Unxor(Xor):
    removes_suffix, adds_suffix = ".xor", ""


class Lines:
    """An archive whose lines are ``NAME=CONTENT``."""

    extensions = (".lines",)

    def __init__(self, argument):
        assert not argument

    def members(self, file):
        import io

        for line in file.read().decode().splitlines():
            name, content = line.split("=")
            yield ArchiveMember(name, len(content), 0, None, lambda content=content: io.BytesIO(content.encode()))
'''
ENCRYPT = "encrypt=ann@example.org"
NEEDS_GPG = pytest.mark.skipif(shutil.which("gpg") is None, reason="there is no gpg on this machine")
#: A converter, and the one that undoes it.
PAIRS = [("gzip", "gunzip"), ("zstd", "unzstd"), ("xor=7", "unxor=7")]
EACH_PAIR = pytest.mark.parametrize(("there", "back"), [*PAIRS, pytest.param(ENCRYPT, "decrypt", marks=NEEDS_GPG)])
CONTENTS = [b"", b"x", os.urandom(150_000) + bytes(150_000)]
TREE = {"x/1": b"one", "y/z/2": b"two", "3": b"three"}


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package with plugins, as pip installs it, and a key ring with one key."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "sample_plugins.py").write_text(PLUGINS)
    info = folder / "sample_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-plugins\nVersion: 1.0\n")
    points = {"xor": "Xor", "unxor": "Unxor", "unlines": "Lines"}
    lines = [f"{name} = sample_plugins:{made}" for name, made in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="gpg") as home:
        patch.syspath_prepend(str(folder))
        patch.setenv("GNUPGHOME", home)
        importlib.invalidate_caches()
        if shutil.which("gpg"):
            made = ["--batch", "--passphrase", "", "--quick-generate-key", "ann@example.org", "future-default"]
            subprocess.run(["gpg", *made], check=True, capture_output=True)
        yield
        if shutil.which("gpg"):
            subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=False, capture_output=True)
    sys.modules.pop("sample_plugins", None)


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


def whole(text: str, pieces: Iterator[bytes], size: int) -> bytes:
    return b"".join(converter_of(text)(pieces, size))


def test_the_suite_has_each_built_in_one() -> None:
    known = {text.partition("=")[0] for pair in [*PAIRS, (ENCRYPT, "decrypt")] for text in pair}
    assert set(BUILT_IN) - known == {"untar", "unzip"}


@EACH_PAIR
@pytest.mark.parametrize("content", CONTENTS, ids=["empty", "tiny", "large"])
def test_what_is_converted_is_converted_back_however_it_is_cut(there: str, back: str, content: bytes) -> None:
    made = whole(there, cut(content, 70_001), len(content))  # 000-2, 000-9
    for size in (1 << 20, 40_009) if len(made) > 1000 else (1, 7):
        assert whole(back, cut(made, size), len(made)) == content


@EACH_PAIR
def test_a_piece_is_given_before_all_are_taken_and_the_rest_is_given_up(there: str, back: str) -> None:
    content = os.urandom(8 << 20)
    made = whole(there, cut(content, 1 << 20), len(content))
    for text, given in ((there, content), (back, made)):
        taken = iter(cut(given, 64 << 10))
        stream = converter_of(text)(taken, len(given))
        assert next(piece for piece in stream if piece)
        stream.close()
        assert next(taken, None) is not None, "memory is bounded"


@EACH_PAIR
def test_what_is_cut_short_is_refused(there: str, back: str) -> None:
    if "xor" in there:
        return  # every content fits it
    made = whole(there, cut(CONTENTS[2], 1 << 20), len(CONTENTS[2]))
    for size in (len(made) // 2, len(made) - 3):
        with pytest.raises(CopyError):
            whole(back, cut(made[:size], 1 << 20), size)


@EACH_PAIR
def test_extensions_follow_and_other_files_stay_as_they_are(there: str, back: str) -> None:
    path = RelativePath("a.b/c.csv")  # 000-30
    conversions = conversions_of([there])
    named = converted_path(path, conversions)
    assert named != path and converted_path(named, conversions_of([back])) == path
    assert applied(path, conversions_of([back])) == ()
    assert pickle.loads(pickle.dumps(conversions)) == conversions


@EACH_PAIR
def test_a_copy_converts_files_on_their_way_and_then_has_nothing_to_copy(there: str, back: str, tmp_path: Path) -> None:
    tree = {f"a/{number}": content for number, content in enumerate(CONTENTS)}  # 000-30, 000-42
    write_tree(tmp_path / "src", tree)
    for origin, target, text in (("src", "made", there), ("made", "dst", back)):
        counts = copied(tmp_path / origin, tmp_path / target, conversions=(text,), verify=True).progress.counts
        assert (counts.failures, counts.files_published) == ({}, len(tree))
        assert copied(tmp_path / origin, tmp_path / target, conversions=(text,)).progress.counts.files_listed == 0
    assert read_tree(tmp_path / "dst") == tree


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def lines(files: dict[str, bytes]) -> bytes:
    return b"".join(name.encode() + b"=" + content + b"\n" for name, content in files.items())


Pack = Callable[[dict[str, bytes]], bytes]
EACH_UNPACKER = pytest.mark.parametrize(
    ("text", "extension", "pack"),
    [("untar", ".tar", tar), ("unzip", ".zip", zipped), ("unlines", ".lines", lines)],
)


@EACH_UNPACKER
def test_an_archive_is_unpacked_by_a_copy_and_then_nothing_is_left_to_copy(
    text: str, extension: str, pack: Pack, tmp_path: Path
) -> None:
    # 000-2, 000-10, 000-32
    write_tree(tmp_path / "src", {f"a/day{extension}": pack(TREE), "plain": b"as it is"})
    source = ArchivesStore(LocalStore(str(tmp_path / "src")), [text])
    for store in (source, pickle.loads(pickle.dumps(source))):
        assert {entry.attributes.path for entry in store.scan(ROOT) if entry.attributes} == {"a", "plain"}
    for published in (len(TREE) + 1, 0):
        with unpacking(tmp_path, text) as job:
            counts = job.run()
        assert (counts.failures, counts.files_published) == ({}, published)
    assert read_tree(tmp_path / "dst") == {f"a/day/{name}": each for name, each in TREE.items()} | {
        "plain": b"as it is"
    }


@EACH_UNPACKER
def test_a_damaged_archive_and_names_that_lead_out_are_refused_and_the_rest_is_copied(
    text: str, extension: str, pack: Pack, tmp_path: Path
) -> None:
    write_tree(
        tmp_path / "src",
        {f"bad{extension}": b"no archive", f"evil{extension}": pack({"../out": b"x", "a/1": b"1", "b/2": b"2"})},
    )
    with unpacking(tmp_path, text) as job:
        failures = job.run().failures
    assert len(failures) == 2
    assert "is not an archive that can be read" in failures["bad"]
    assert read_tree(tmp_path / "dst") == {"evil/a/1": b"1", "evil/b/2": b"2"}
    assert not (tmp_path / "out").exists()
    with pytest.raises(UNREADABLE):
        list(unpacker_of(text).members(io.BytesIO(b"no archive")))


@pytest.mark.parametrize("damage", ["checksum", "cut at a header", "cut within a header"])
def test_a_tar_whose_second_member_is_not_found_is_refused_whole_and_nothing_of_it_is_removed(
    damage: str, tmp_path: Path
) -> None:
    content = tar(TREE)
    write_tree(tmp_path / "src", {"day.tar": content})
    with unpacking(tmp_path, "untar", delete=True) as job:
        job.run()
    at = content.index(b"y/z/2")
    cut = {"checksum": content[: at + 150] + b"x" + content[at + 151 :], "cut at a header": content[:at]}
    write_tree(tmp_path / "src", {"day.tar": cut.get(damage, content[: at + 100])}, 1_700_000_001)
    with unpacking(tmp_path, "untar", delete=True) as job:
        assert "is not an archive that can be read" in job.run().failures["day"]
    assert read_tree(tmp_path / "dst") == {f"day/{name}": each for name, each in TREE.items()}


@pytest.mark.parametrize("text", ["gzip=x", "untar=x", "decrypt=x", "encrypt", "xor=no", "nothing", "xor"])
def test_what_does_not_fit_is_refused_before_anything_is_copied(text: str) -> None:
    with pytest.raises(RequestError):
        conversions_of([text])


def test_the_names_of_plugins_are_told_with_the_others() -> None:
    with pytest.raises(RequestError) as refused:
        conversions_of(["nothing"])
    assert {*BUILT_IN, "xor", "unxor", "unlines"} <= set(
        refused.value.hint.partition(";")[0].removeprefix("There are ").split(", ")
    )


def unpacking(at: Path, text: str, *, delete: bool = False) -> AbstractContextManager[CopyJob]:
    configuration = CopyConfiguration(conversions=conversions_of([text]), delete=delete)
    return copy_job(str(at / "src"), str(at / "dst"), configuration)
