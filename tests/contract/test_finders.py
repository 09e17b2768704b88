"""What a copy expects of any finder, and what each one finds."""

from __future__ import annotations

import os
import posixpath
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.converters.plugins import conversions_of
from replication.datasets.finders.base import DatasetFinder, ListsIntoSink
from replication.datasets.finders.partitioned import StreamDataset
from replication.datasets.finders.plugins import finder_of
from replication.datasets.finders.recursive import OneDataset, SingleFileDataset
from replication.datasets.job import CopyJob
from replication.datasets.listing.sink import ListingSink
from replication.datasets.stores.local import LocalStore
from replication.errors import RequestError
from tests.copying import read_tree, write_tree

TODAY = datetime.now(UTC).date()
DAYS = [str(TODAY - timedelta(days)) for days in (0, 1, 400)]
FILES = {
    "events/click/daily/x": b"1",
    "events/view/daily/y": b"2",
    "events/view/hourly/z": b"3",
    "streams/s/" + DAYS[0] + "/a": b"4",
    "streams/s/" + DAYS[1] + "/b": b"5",
    "streams/s/" + DAYS[2].replace("-", "/") + "/c": b"6",
    "tables/db/t/metadata/v1.json": b"7",
    "tables/db/t/data/p=1/f": b"8",
    "tables/db/u/_SUCCESS": b"",
    "tables/db/u/f": b"9",
    "lists/m": b"events/click/daily/x\n# not this\n\ntables/db/u/f\n",
}
FINDERS = {
    "folder": ({}, {""}, set(FILES)),
    "glob": ({"pattern": "events/*/daily"}, {"events/click/daily", "events/view/daily"}, "daily/"),
    "stream": (
        {"below": "streams", "days": "30"},
        {"streams/s"},
        {name for name in FILES if name[-2:] in ("/a", "/b")},
    ),
    "manifest": ({"manifest": "lists/m"}, {""}, {"events/click/daily/x", "tables/db/u/f"}),
    "table": ({"below": "tables"}, {"tables/db/t", "tables/db/u"}, "tables/"),
}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    write_tree(tmp_path / "src", FILES)
    return LocalStore(str(tmp_path / "src"))


@pytest.fixture(params=FINDERS)
def found(request: pytest.FixtureRequest, store: LocalStore) -> tuple[DatasetFinder, set[str], set[str]]:
    properties, roots, files = FINDERS[request.param]
    wanted = {name for name in FILES if files in name} if isinstance(files, str) else files
    return finder_of(request.param)(store, properties), roots, wanted


def listed(dataset: ListsIntoSink, target: LocalStore) -> list[CopyableFile]:
    sink = Mock(spec=ListingSink, is_stopped=False, tasks=None)
    dataset.list_into(target, CopyConfiguration(), sink)
    return [file for call in sink.copy.call_args_list for file in call.args[0]]


def test_datasets_are_found_below_their_common_root(found: tuple[DatasetFinder, set[str], set[str]]) -> None:
    finder, roots, _ = found  # 000-23, 000-25, 000-26
    datasets = list(finder.find_datasets())
    assert {dataset.root for dataset in datasets} == roots
    common = finder.common_root
    assert all(not common or root == common or root.startswith(f"{common}/") for root in roots)
    assert {dataset.root for dataset in finder.find_datasets()} == roots, "again the same"


def test_each_file_that_is_missing_in_the_target_is_listed_exactly_once_and_no_folder(
    found: tuple[DatasetFinder, set[str], set[str]], tmp_path: Path
) -> None:
    finder, _, wanted = found  # 000-22, 000-24
    target = LocalStore(str(tmp_path / "dst"))
    files = [file for dataset in finder.find_datasets() for file in listed(dataset, target)]
    assert sorted(file.destination for file in files) == sorted(wanted)
    for dataset in finder.find_datasets():
        names = [file.origin.path for file in listed(dataset, target)]
        common = posixpath.commonpath([f"/{name}" for name in names])
        assert common.startswith(f"/{dataset.root}".rstrip("/")), "all its files are below its root"


def test_what_is_found_is_copied_and_then_nothing_is_left_to_copy(
    found: tuple[DatasetFinder, set[str], set[str]], store: LocalStore, tmp_path: Path
) -> None:
    finder, _, wanted = found
    target = LocalStore(str(tmp_path / "dst"))
    counts = CopyJob(store, target, finder, CopyConfiguration()).run()
    assert counts.failures == {}
    assert read_tree(tmp_path / "dst") == {name: FILES[name] for name in wanted}
    assert CopyJob(store, target, finder, CopyConfiguration()).run().files_listed == 0


def test_a_table_and_a_date_are_one_file_set_each(store: LocalStore, tmp_path: Path) -> None:
    target = LocalStore(str(tmp_path / "dst"))  # 000-22
    for name, properties, sets in (
        ("table", {}, {"tables/db/t", "tables/db/u"}),
        ("stream", {"below": "streams"}, {name.rpartition("/")[0] for name in FILES if name.startswith("streams")}),
    ):
        finder = finder_of(name)(store, properties)
        files = [file for dataset in finder.find_datasets() for file in listed(dataset, target)]
        assert {file.file_set for file in files} == sets
        assert all(file.metadata for file in files)  # 000-14


@pytest.mark.parametrize(
    ("content", "size", "reason"),
    [
        (b"events/click/daily/x\nnothing\n", 29, "is not a file"),
        (b"events/click/daily/x\n\xff\n", 23, "is not UTF-8"),
        (b"events/click/daily/x\n#", (256 << 20) + 1, "is larger than 256 MiB. Split it"),
    ],
)
def test_a_manifest_that_cannot_be_followed_copies_nothing(
    store: LocalStore, tmp_path: Path, content: bytes, size: int, reason: str
) -> None:
    write_tree(tmp_path / "src", {"lists/m": content})
    os.truncate(tmp_path / "src/lists/m", size)
    counts = CopyJob(
        store,
        LocalStore(str(tmp_path / "dst")),
        finder_of("manifest")(store, {"manifest": "lists/m"}),
        CopyConfiguration(),
    ).run()
    assert reason in counts.failures["lists/m"]
    assert read_tree(tmp_path / "dst") == {}


def test_files_of_a_manifest_are_compared_with_what_conversions_made_of_them(store: LocalStore, tmp_path: Path) -> None:
    def published() -> int:
        finder = finder_of("manifest")(store, {"manifest": "lists/m"})
        configuration = CopyConfiguration(conversions=conversions_of(["gzip"]))
        return CopyJob(store, LocalStore(str(tmp_path / "dst")), finder, configuration).run().files_published

    assert (published(), published()) == (2, 0)


def test_two_files_of_a_manifest_that_would_be_one_are_refused(store: LocalStore, tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"f": b"plain", "f.gz": b"", "lists/m": b"f\nf.gz\n"})
    finder = finder_of("manifest")(store, {"manifest": "lists/m"})
    configuration = CopyConfiguration(conversions=conversions_of(["gunzip"]))
    counts = CopyJob(store, LocalStore(str(tmp_path / "dst")), finder, configuration).run()
    assert "f.gz and f both become f" in counts.failures["lists/m"]


@pytest.mark.parametrize("finder", ["manifest", "single"])
def test_a_new_version_of_a_named_file_lies_beside_the_old(store: LocalStore, tmp_path: Path, finder: str) -> None:
    name = "tables/db/u/f"
    single = OneDataset(SingleFileDataset(store, RelativePath(name), RelativePath(name)))
    chosen = single if finder == "single" else finder_of("manifest")(store, {"manifest": "lists/m"})

    def published() -> int:
        target = LocalStore(str(tmp_path / "dst"))
        return CopyJob(store, target, chosen, CopyConfiguration(versions=True)).run().files_published

    assert published() and not published()
    write_tree(tmp_path / "src", {name: b"changed"}, 1_800_000_000)
    assert published() == 1
    kept = sorted(path.name.partition("-")[0] for path in (tmp_path / "dst/tables/db/u").iterdir())
    assert kept == ["f~000001", "f~000002"]


@pytest.mark.parametrize("name", ["../outside", ".walship/job/commits/job/urn.json", "a/.walship/b"])
def test_a_manifest_leads_nowhere_outside_nor_into_the_state_of_copies(
    store: LocalStore, tmp_path: Path, name: str
) -> None:
    write_tree(tmp_path / "src", {"lists/m": f"{name}\n".encode()} | ({} if ".." in name else {name: b"forged"}))
    (dataset,) = finder_of("manifest")(store, {"manifest": "lists/m"}).find_datasets()
    sink = Mock(spec=ListingSink, is_stopped=False, tasks=None)
    dataset.list_into(LocalStore(str(tmp_path / "dst")), CopyConfiguration(), sink)
    (_, reason), _ = sink.failed.call_args
    assert name in reason and not sink.copy.called and not sink.ended.called


def test_a_folder_where_a_file_of_a_manifest_goes_is_told_before_anything_is_copied(
    store: LocalStore, tmp_path: Path
) -> None:
    write_tree(tmp_path / "src", {"lists/m": b"in/the/way\n", "in/the/way": b"1"})
    write_tree(tmp_path / "dst", {"in/the/way/below": b"2"})
    (dataset,) = finder_of("manifest")(store, {"manifest": "lists/m"}).find_datasets()
    sink = Mock(spec=ListingSink, is_stopped=False, tasks=None)
    dataset.list_into(LocalStore(str(tmp_path / "dst")), CopyConfiguration(), sink)
    (name, reason), _ = sink.failed.call_args
    assert name == "lists/m" and "in/the/way: the target has a folder of that name" in reason
    assert not sink.copy.called and not sink.ended.called


def test_a_stream_of_more_days_than_the_calendar_has_is_one_of_all_days(store: LocalStore) -> None:
    (stream,) = finder_of("stream")(store, {"below": "streams", "days": "1000000"}).find_datasets()
    assert isinstance(stream, StreamDataset) and len(list(stream.partitions())) == len(DAYS)


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("glob", {}),
        ("stream", {"days": "x"}),
        ("stream", {"days": "²"}),
        ("table", {"colour": "red"}),
        ("nobody", {}),
    ],
)
def test_properties_that_do_not_fit_are_refused(name: str, properties: dict[str, str], store: LocalStore) -> None:
    with pytest.raises(RequestError):
        finder_of(name)(store, properties)


def test_a_plugin_with_only_a_list_of_files_is_copied(store: LocalStore, tmp_path: Path) -> None:
    class Plain:  # 000-14
        root = common_root = RelativePath("")

        def find_datasets(self) -> list[Plain]:
            return [self]

        def copyable_files(self, target: object, configuration: CopyConfiguration) -> list[object]:
            entry = store.status(RelativePath("tables/db/u/f"))
            given = {"destination": RelativePath("renamed"), "permission": 0o600}
            return [CopyableFile.build(store.url, entry.attributes, configuration, **given)]

    CopyJob(store, LocalStore(str(tmp_path / "dst")), Plain(), CopyConfiguration()).run()
    assert read_tree(tmp_path / "dst") == {"renamed": b"9"}
    assert (tmp_path / "dst/renamed").stat().st_mode & 0o777 == 0o600
