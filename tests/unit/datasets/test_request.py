"""Addresses of a copy: which are refused, and where a single file goes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.datasets.converters.plugins import conversions_of
from replication.datasets.request import copy_job, is_missing, refuse_nested
from replication.datasets.stores.open import open_store
from replication.errors import RequestError, StorageError
from tests.copying import read_tree, write_tree


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("/t", "/t/s"),
        ("/t", "file:///t/s/../s"),
        ("/", "/t"),
        ("s3://b", "s3a://b//sub/"),
        ("sftp://u:secret@host/a", "sftp://u@HOST/a/b"),
        ("hdfs://nn:8020/", "hdfs://nn:8020/a"),
        ("sftp://u@host/a", "ssh://u@host/x/../a/./b"),
    ],
)
def test_an_address_within_the_other_is_refused(outer: str, inner: str) -> None:
    for pair in ((outer, inner), (inner, outer), (inner, inner)):
        with pytest.raises(RequestError, match="within") as refused:
            refuse_nested(*pair)
        assert "secret" not in str(refused.value)
    refuse_nested(inner, outer, either=False)
    with pytest.raises(RequestError, match="or within it"):
        refuse_nested(outer, inner, either=False)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("", "/t"), "an address is empty"),
        (("/t", ""), "an address is empty"),
        (("/s", "s3:/bucket/t"), "one slash after s3: Write s3://bucket/t"),
    ],
)
def test_an_address_without_a_text_or_a_slash_is_refused(pair: tuple[str, str], said: str) -> None:
    with pytest.raises(RequestError) as refused, copy_job(*pair, CopyConfiguration()):
        pass
    assert said in f"{refused.value.what} {refused.value.hint}"


def test_the_error_of_a_store_that_cannot_be_opened_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError("Unable to load libjvm\ndlopen(libjvm.so) failed\n")

    monkeypatch.setattr("fsspec.core.url_to_fs", failing)
    with pytest.raises(StorageError) as failed:
        open_store("memory://x")
    assert failed.value.what.endswith("OSError: Unable to load libjvm dlopen(libjvm.so) failed")


def test_addresses_side_by_side_are_taken() -> None:
    for pair in (
        ("/t/s", "/t/sub"),
        ("s3://b/a", "s3://b/ab"),
        ("s3://b", "s3://c/b"),
        ("/t", "memory://t/s"),
        ("sftp://u@h/a", "sftp://v@h/a"),
    ):
        refuse_nested(*pair)


def test_a_folder_that_is_mounted_at_a_second_place_is_known_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("1 0 8:1 / / rw", "2 1 8:2 / /data rw", "3 1 8:2 /in /two\\040names rw", "4 1 8:1 /b /data/b rw")
    (tmp_path / "mountinfo").write_text("".join(f"{line} - ext4\n" for line in lines))
    monkeypatch.setattr("replication.files.mounts._MOUNTS", str(tmp_path / "mountinfo"))
    for outer, inner in (("/data", "/two names"), ("/data/in", "/two names/a"), ("/two names", "/data/in/a")):
        for pair in ((outer, inner), (inner, outer)):
            with pytest.raises(RequestError, match="within"):
                refuse_nested(*pair)
    for pair in (("/data", "/data/b"), ("/b", "/data/b/c")):
        with pytest.raises(RequestError, match="within"):
            refuse_nested(*pair)
    for pair in (("/data/out", "/two names"), ("/in", "/two names"), ("/data/a", "/b")):
        refuse_nested(*pair)


def test_delete_does_not_remove_the_source_and_what_is_beside_it(tmp_path: Path) -> None:
    write_tree(tmp_path / "t", {"s/x": b"1", "kept": b"2"})
    source, target = str(tmp_path / "t/s"), str(tmp_path / "t")
    with pytest.raises(RequestError, match="s is within"), copy_job(source, target, CopyConfiguration(delete=True)):
        pass
    with copy_job(f"{source}/x", target, CopyConfiguration(delete=True)) as job:  # of a file nothing is removed
        job.run()
    assert read_tree(tmp_path / "t") == {"s/x": b"1", "kept": b"2", "x": b"1"}


@pytest.mark.parametrize(("target", "name"), [("dst/", "dst/x.csv"), ("src", "src/x.csv"), ("y.gz", "y.gz")])
def test_a_single_file_loses_the_extension_of_what_is_unpacked_unless_it_is_given_a_name(
    tmp_path: Path, target: str, name: str
) -> None:
    write_tree(tmp_path, {"src/x.csv.gz": gzip.compress(b"unpacked")})
    configuration = CopyConfiguration(conversions=conversions_of(["gunzip"]))
    for skipped in (0, 1):
        with copy_job(str(tmp_path / "src/x.csv.gz"), f"{tmp_path}/{target}", configuration) as job:
            assert job.run().skipped.get("same", 0) == skipped
    assert read_tree(tmp_path)[name] == b"unpacked"


def test_a_url_with_colons_that_would_be_another_folder_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"y": b"2"})
    for target in ("memory://lake/in::x", "memory://lake/in::x/y", "ftp://[::1]/x"):
        with pytest.raises(RequestError, match="::"), copy_job(str(tmp_path / "src"), target, CopyConfiguration()):
            pass
    with open_store("memory://lake/in") as other, open_store("simplecache::memory://lake/in"):
        assert is_missing(other)


def test_an_address_that_is_no_utf_8_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    write_tree(Path(folder), {"x": b"1"})
    pairs = ((folder, str(tmp_path / "dst")), (str(tmp_path / "src"), folder))
    write_tree(tmp_path / "src", {"y": b"2"})
    for source, target in pairs:
        with pytest.raises(RequestError, match="is no UTF-8"), copy_job(source, target, CopyConfiguration()) as job:
            job.run()
        with pytest.raises(RequestError, match="is no UTF-8"), open_store(folder):
            pass
    with monkeypatch.context() as within:
        within.chdir(folder)
        with pytest.raises(RequestError, match="is no UTF-8"), open_store("x"):
            pass
    (tmp_path / "link").symlink_to(folder)
    with copy_job(str(tmp_path / "link"), str(tmp_path / "dst"), CopyConfiguration()) as job:
        assert job.run().files_published == 1
