"""Archives are unpacked while they are copied; bombs, links and names that lead out of the target are refused."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.converters import compression
from replication.datasets.converters.plugins import conversions_of
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.request import copy_job
from replication.datasets.stores import archives
from replication.datasets.stores.local import LocalStore
from replication.errors import RequestError
from tests.copying import read_tree, write_tree

TREE = {"root/path/to/file": b"one", "root/file2": b"two" * 1000}
UNPACKED = {"path/to/file": b"one", "file2": b"two" * 1000}


def tar(path: Path, files: dict[str, bytes], *others: tarfile.TarInfo, mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), 1_600_000_000, 0o640
            archive.addfile(info, io.BytesIO(content))
        for info in others:
            archive.addfile(info)


def pack(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def unpacked(at: Path, source: str = "src", **given: object) -> CopyCounts:
    configuration = CopyConfiguration(conversions=conversions_of(["untar", "unzip"]), **given)  # type: ignore[arg-type]
    with copy_job(str(at / source), str(at / "dst"), configuration) as job:
        return job.run()


def below(folder: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def test_few_archives_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_OPEN_MAX", 2)
    for n in range(8):
        tar(tmp_path / f"src/{n}.tar", {"a/1": b"one", "b/2": b"two"})
    read, opened, kept = archives.ArchivesStore._read, list[int](), list[Any]()

    def counting(self: archives.ArchivesStore, *given: Any) -> Any:
        opened.append(len(self._archives))
        kept.append(read(self, *given))
        return kept[-1]

    monkeypatch.setattr(archives.ArchivesStore, "_read", counting)
    assert unpacked(tmp_path).failures == {}
    assert len(read_tree(tmp_path / "dst")) == 16 and max(opened) == 2
    for each in kept:
        each.file.close()


def test_many_archives_are_not_read_anew_for_each_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_OPEN_MAX", 4)
    for n in range(20):
        tar(tmp_path / f"src/{n}.tar", {f"{size}": b"x" * size for size in range(30)})
    read, kept = archives.ArchivesStore._read, list[Any]()

    def counting(self: archives.ArchivesStore, *given: Any) -> Any:
        kept.append(read(self, *given))
        return kept[-1]

    monkeypatch.setattr(archives.ArchivesStore, "_read", counting)
    assert unpacked(tmp_path, threads=1, files_per_split=10).files_published == 600
    for each in kept:
        each.file.close()
    assert len(kept) <= 3 * 20, "listed once, copied after others were listed, and some between two threads"


def test_a_full_disk_for_temporary_files_is_named_and_the_target_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {"kept/x": b"1"})
    tar(tmp_path / "src/a.tar", TREE)
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "w+b"))
    (reason,) = unpacked(tmp_path).failures.values()
    assert f"no space is left in {tempfile.gettempdir()} to unpack a.tar" in reason and "TMPDIR" in reason
    assert read_tree(tmp_path / "dst") == {"kept/x": b"1"}


def test_a_hard_link_in_an_archive_is_a_file_once_more(tmp_path: Path) -> None:
    links = [tarfile.TarInfo(name) for name in ("b/second", "b/third", "dangling")]
    for link, of in zip(links, ("a/first", "b/second", "nobody"), strict=True):
        link.type, link.linkname = tarfile.LNKTYPE, of
    tar(tmp_path / "src/day.tar", {"a/first": b"content"}, *links)
    counts = unpacked(tmp_path)
    assert (counts.failures, counts.skipped) == ({}, {"symbolic link": 1})
    assert read_tree(tmp_path / "dst") == {f"day/{name}": b"content" for name in ("a/first", "b/second", "b/third")}


def test_each_name_of_an_archive_that_is_refused_is_told_and_may_be_excluded(tmp_path: Path) -> None:
    tar(tmp_path / "src/day.tar", {"../evil": b"1", "/evil": b"2", "a/fine": b"3"})
    assert set(unpacked(tmp_path).failures) == {r"day/..\x2fevil", r"day/\x2fevil"}
    rules = Filters((FilterRule(False, r"*\x2fevil"),))
    assert unpacked(tmp_path, filters=rules).failures == {}
    assert read_tree(tmp_path / "dst") == {"day/fine": b"3"}


def test_a_time_that_is_none_refuses_the_archive(tmp_path: Path) -> None:
    for number, time in enumerate(("inf", "nan", "1e300")):
        info = tarfile.TarInfo("x")
        info.pax_headers = {"mtime": time}
        tar(tmp_path / f"src/{number}.tar", {"a/first": b"content"}, info)
    counts = unpacked(tmp_path)
    assert sorted(reason.partition(": c")[0] for reason in counts.failures.values()) == [
        f"CopyError: {number}.tar is not an archive that can be read" for number in range(3)
    ]


def test_archives_in_a_folder_become_folders_without_the_one_that_holds_all_members(tmp_path: Path) -> None:
    tar(tmp_path / "src/a/day.tar", TREE)  # 000-2, 000-10, 000-32
    tar(tmp_path / "src/night.tar.gz", TREE, mode="w:gz")
    pack(tmp_path / "src/many.zip", {"x/1": b"1", "y/2": b"2"})
    write_tree(tmp_path / "src", {"plain.txt": b"as it is"})
    assert unpacked(tmp_path).failures == {}
    assert read_tree(tmp_path / "dst") == {
        **below("a/day", UNPACKED),
        **below("night", UNPACKED),
        **below("many", {"x/1": b"1", "y/2": b"2"}),
        "plain.txt": b"as it is",
    }
    found = (tmp_path / "dst/a/day/file2").stat()
    assert (found.st_mtime, stat.S_IMODE(found.st_mode)) == (1_600_000_000, 0o640)
    assert unpacked(tmp_path).files_listed == 0, "and nothing is copied again"


@pytest.mark.parametrize("top", [".", "./"])
def test_a_tar_of_the_current_folder_is_unpacked(top: str, tmp_path: Path) -> None:
    folder = tarfile.TarInfo(top)
    folder.type = tarfile.DIRTYPE
    tar(tmp_path / "src/a.tar", below(".", UNPACKED), folder)
    assert folder.name == top
    assert unpacked(tmp_path).failures == {}
    assert read_tree(tmp_path / "dst") == below("a", UNPACKED)


def test_one_archive_is_unpacked_by_its_name(tmp_path: Path) -> None:
    tar(tmp_path / "src/day.tgz", TREE, mode="w:gz")
    assert unpacked(tmp_path, "src/day.tgz").failures == {}
    assert read_tree(tmp_path / "dst") == below("day", UNPACKED)


def test_large_members_are_copied_in_ranges_by_several_threads(tmp_path: Path) -> None:
    content = bytes(range(256)) * (40 << 10)
    tar(tmp_path / "src/a.tar", {"large": content, "other": content})
    assert unpacked(tmp_path, range_bytes=1 << 20, verify=True, threads=4).failures == {}
    assert read_tree(tmp_path / "dst") == below("a", {"large": content, "other": content})


@pytest.mark.parametrize("make", [tar, pack])
@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped", "ok/..", "two\nlines", "a//b"])
def test_members_whose_names_lead_out_or_break_lines_are_refused_and_the_others_are_copied(
    make: object, name: str, tmp_path: Path
) -> None:
    assert callable(make)
    make(tmp_path / f"src/a{'.tar' if make is tar else '.zip'}", {name: b"evil", "x/good": b"good", "y/good": b"good"})
    before = {path for path in tmp_path.iterdir()}
    counts = unpacked(tmp_path)
    assert counts.failed == 1
    assert "is refused" in next(iter(counts.failures.values()))
    assert read_tree(tmp_path / "dst") == {"a/x/good": b"good", "a/y/good": b"good"}
    assert {path for path in tmp_path.iterdir()} - before == {tmp_path / "dst"}


def test_links_and_devices_are_skipped_and_not_written_through(tmp_path: Path) -> None:
    link, hard, device = (tarfile.TarInfo(name) for name in ("x/link", "x/hard", "x/device"))
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    hard.type, hard.linkname = tarfile.LNKTYPE, "../../outside"
    device.type = tarfile.CHRTYPE
    tar(tmp_path / "src/a.tar", {"x/1": b"1", "y/2": b"2"}, link, hard, device)
    with zipfile.ZipFile(tmp_path / "src/b.zip", "w") as archive:
        info = zipfile.ZipInfo("p/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
        archive.writestr("q/1", b"1")
    counts = unpacked(tmp_path)
    assert (counts.failed, counts.skipped) == (0, {"symbolic link": 3, "special file": 1})
    assert read_tree(tmp_path / "dst") == {"a/x/1": b"1", "a/y/2": b"2", "b/q/1": b"1"}


def test_what_the_target_has_under_the_name_of_a_link_in_an_archive_stays(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "a"
    tar(tmp_path / "src/x.tar", {"a": b"1", "b": b"2"}, link)
    write_tree(tmp_path / "dst", {"x/link": b"theirs", "x/extra": b""})
    assert unpacked(tmp_path, delete=True).deleted == 1
    assert read_tree(tmp_path / "dst") == {"x/a": b"1", "x/b": b"2", "x/link": b"theirs"}


def test_an_archive_whose_name_is_taken_is_told_by_its_own_name_also_where_only_some_files_are_meant(
    tmp_path: Path,
) -> None:
    tar(tmp_path / "src/x.tar", {"a": b"1"})
    write_tree(tmp_path / "src", {"x/b": b"2"})
    meant = Filters((FilterRule(True, "*.tar"), FilterRule(False, "**")))
    for filters in (Filters(), meant):
        assert "there is another x" in unpacked(tmp_path, filters=filters).failures["x.tar"]


def test_a_file_below_a_link_of_its_archive_is_not_written_through_it(tmp_path: Path) -> None:
    link = tarfile.TarInfo("x/out")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    tar(tmp_path / "src/a.tar", {"x/out/evil": b"evil", "y/2": b"2"}, link)
    assert "a file and a folder" in next(iter(unpacked(tmp_path).failures.values()))
    assert list((tmp_path / "outside").iterdir()) == []


def test_bombs_are_refused_whole_and_other_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 1 << 20)  # 000-10
    bomb = {"zeros": bytes(32 << 20)}
    tar(tmp_path / "src/a.tar.gz", bomb, mode="w:gz")
    pack(tmp_path / "src/b.zip", bomb)
    huge = tarfile.TarInfo("huge")
    huge.size = 1 << 40
    (tmp_path / "src/c.tar").write_bytes(huge.tobuf() + bytes(10240))
    write_tree(tmp_path / "src", {"d": b"fine"})
    counts = unpacked(tmp_path)
    assert set(counts.failures) == {"a", "b", "c"}
    assert read_tree(tmp_path / "dst") == {"d": b"fine"}


def test_an_archive_that_is_excluded_by_its_own_name_is_not_read_and_what_was_unpacked_of_it_stays(
    tmp_path: Path,
) -> None:
    write_tree(tmp_path / "src", {"bad.zip": b"this is no archive", "d": b"fine"})
    pack(tmp_path / "src/good.zip", {"x": b"one", "y": b"two"})
    write_tree(tmp_path / "dst", {"bad/x": b"of an earlier run"})
    counts = unpacked(tmp_path, filters=Filters((FilterRule(False, "bad.zip"),)), delete=True)
    assert not counts.failures and not counts.deleted
    assert read_tree(tmp_path / "dst") == {
        "bad/x": b"of an earlier run",
        "d": b"fine",
        "good/x": b"one",
        "good/y": b"two",
    }


def test_what_is_no_archive_is_cut_short_or_would_hide_another_folder_is_refused(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        info = tarfile.TarInfo("x")
        info.size = 100_000
        archive.addfile(info, io.BytesIO(bytes(100_000)))
    files = {
        "a.tar": b"this is no archive" * 100,
        "b.zip": b"neither",
        "c.tar.gz": gzip.compress(whole.getvalue())[:-20],
        "d.tar": whole.getvalue()[:50_000],
        "e/file": b"in the folder",
    }
    write_tree(tmp_path / "src", files)
    pack(tmp_path / "src/e.zip", {"file": b"in the archive"})
    counts = unpacked(tmp_path)
    assert counts.failed >= 4 and "another e" in str(counts.failures)
    assert read_tree(tmp_path / "dst") == {"e/file": b"in the folder"}


def test_archives_are_not_unpacked_by_tasks_of_spark_which_do_not_know_what_was_listed(tmp_path: Path) -> None:
    tar(tmp_path / "src/a.tar", TREE)
    with pytest.raises(RequestError, match="untar and spark exclude each other"):
        unpacked(tmp_path, spark="spark://host:7077")


def test_members_of_an_archive_are_read_together_as_other_files_are(tmp_path: Path) -> None:
    """As for a peer: the call went to the store of the archive, which has no such file, and was made in vain."""
    tar(tmp_path / "src/a.tar", {"one": b"1", "two": b"22"})
    with archives.ArchivesStore(LocalStore(str(tmp_path / "src")), ["untar"]) as store:
        assert len(list(store.scan(ROOT))) == 1
        found = [each.attributes for each in store.scan(RelativePath("a")) if each.attributes is not None]
        assert store.read_batch(found) == [b"1", b"22"]
