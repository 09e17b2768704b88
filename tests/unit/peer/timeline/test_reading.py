"""Reading a dataset as of an instant: the rows of one publication, never of half of one, and never of changed files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.timeline.client import TimelineClient
from replication.core.timeline.instants import Action, Changes
from replication.core.timeline.view import FileSlice
from replication.errors import ChangedFileError, FormatError, RequestError, StorageError, WaitTimeoutError
from replication.timeline.holds import TimelineHolds
from tests.copying import write_tree
from tests.recording import reader, recorded, timeline


def write_rows(path: Path, *numbers: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": list(numbers)}), path)


def numbers(found: pa.RecordBatchReader) -> list[int]:
    return sorted(found.read_all()["n"].to_pylist())


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write_rows(tmp_path / "src/p/1.parquet", 1, 2)
    write_rows(tmp_path / "src/q/2.parquet", 3)
    recorded(tmp_path).run()
    return tmp_path


def test_files_are_those_of_the_instant_that_is_asked_for(site: Path) -> None:
    first = timeline(site).state().instant
    write_rows(site / "src/r/3.parquet", 4)
    recorded(site).run()
    with reader(site).files(as_of=first) as files:
        assert [path.rpartition("/")[2] for path in files] == ["1.parquet", "2.parquet"]
        assert numbers(files.rows()) == [1, 2, 3]
    with reader(site).files() as files:
        assert (len(files), numbers(files.rows())) == (3, [1, 2, 3, 4])


@pytest.mark.parametrize("name", ["1.parquet::file", "1.parquet::memory", "a::b.parquet", "b?x#y"])
def test_a_file_whose_name_looks_like_an_address_is_read_and_no_other(site: Path, name: str) -> None:
    write_rows(site / "src/p" / name, 8, 9)
    recorded(site).run()
    with reader(site).files() as files:
        assert numbers(files.rows()) == [1, 2, 3, 8, 9]


def test_rows_of_a_folder_whose_name_is_two_addresses_for_fsspec_are_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "lake::x/src/p/1.parquet", 1, 2)
    recorded(tmp_path / "lake::x").run()
    with reader(tmp_path / "lake::x").files() as files:
        assert numbers(files.rows()) == [1, 2]


def test_files_as_of_a_time_to_come_are_of_one_instant_too(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = timeline(site).state().instant
    as_of = TimelineClient.as_of

    def publish_before_the_second(self: TimelineClient, dataset: str, partition: str, time: int) -> list[FileSlice]:
        if partition == "q":
            for name in ("p/3.parquet", "q/4.parquet"):
                write_rows(site / "src" / name, 9)
            recorded(site).run()
        return as_of(self, dataset, partition, time)

    monkeypatch.setattr(TimelineClient, "as_of", publish_before_the_second)
    with reader(site).files(as_of=last + 3_600_000_000) as files:
        assert (files.instant, numbers(files.rows())) == (last, [1, 2, 3])


def test_files_that_lie_there_without_an_instant_are_not_read(site: Path) -> None:
    with reader(site).files() as files:
        write_rows(site / "dst/p/half.parquet", 99)
        assert numbers(files.rows()) == [1, 2, 3]


def test_links_to_folders_and_pipes_beside_the_files_are_not_read(site: Path) -> None:
    os.mkfifo(site / "dst/p/pipe")
    (site / "dst/latest").symlink_to("q")
    (site / "dst/gone").symlink_to("nowhere")
    (site / "dst/p/again.parquet").symlink_to("1.parquet")
    with reader(site).files() as files:
        assert numbers(files.rows()) == [1, 1, 2, 2, 3], "a link to a file is read as that"


def test_a_file_that_is_written_over_while_it_is_read_is_an_error_and_never_other_rows(site: Path) -> None:
    with reader(site).files() as files:
        found = files.rows()
        write_rows(site / "src/q/2.parquet", 7)
        recorded(site, compare_content=True).run()
        with pytest.raises(ChangedFileError, match=r"q/2.parquet of lake was changed by a copy"):
            found.read_all()
        with pytest.raises(ChangedFileError):
            files.check()


def test_rows_are_given_only_after_a_publication_that_begins_while_they_are_read_is_noticed(site: Path) -> None:
    with reader(site).files() as files:
        lake = timeline(site)
        asked = lake.request(Action.COPY, "lake")
        lake.start(asked, Changes(removes=(("p", "p/1.parquet"),)))
        with pytest.raises(ChangedFileError):
            files.rows().read_all()


def test_a_reader_waits_while_files_are_written_over_in_place(site: Path) -> None:
    lake = timeline(site)
    asked = lake.start(lake.request(Action.COPY, "lake"), Changes(removes=(("p", "p/1.parquet"),)))
    with pytest.raises(WaitTimeoutError, match="being written over"):
        reader(site).files(wait_s=0)
    write_rows(site / "dst/p/1.parquet", 5)

    def complete() -> None:
        lake.complete(asked, Changes())

    finisher = threading.Timer(0.3, complete)
    finisher.start()
    with reader(site).files(wait_s=60) as files:
        assert len(files) == 2
    finisher.join()


def test_an_instant_whose_files_are_gone_and_an_unknown_dataset_are_refused(site: Path) -> None:
    first = timeline(site).state().instant
    write_rows(site / "src/q/2.parquet", 7, 8)
    recorded(site).run()
    with pytest.raises(RequestError, match="written over"):
        reader(site).files(as_of=first)
    other = reader(site)
    other.name = "nobody"
    with pytest.raises(RequestError, match="no dataset nobody"):
        other.files()
    assert TimelineHolds(str(site / "timeline")).of("lake") == [], "a refused reader holds nothing"


def test_a_reader_holds_its_instant_until_it_is_closed_or_the_hold_ends(site: Path) -> None:
    holds = TimelineHolds(str(site / "timeline"))
    with reader(site).files() as files:
        assert [hold.instant for hold in holds.of("lake")] == [files.instant]
    assert holds.of("lake") == []
    reader(site).files(hold_s=0)
    assert holds.of("lake") == [], "a killed reader keeps nothing for ever"


def test_a_hold_that_the_store_does_not_give_is_an_error_of_the_store(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = TimelineHolds(str(site / "timeline"))
    hold = holds.take("lake", 1, 60)
    path = site / "timeline" / "holds" / f"{hold.id}.json"
    path.write_text(path.read_text()[:20])
    assert holds.of("lake") == [], "it is being written"

    def fails(_: str) -> bytes:
        raise PermissionError("no credentials")

    monkeypatch.setattr(holds._store._fs, "cat_file", fails)
    with pytest.raises(StorageError, match=r"holds/.*json failed: PermissionError: no credentials"):
        holds.of("lake")


def test_a_reader_waits_for_a_clean_that_would_take_its_files(site: Path) -> None:
    holds = TimelineHolds(str(site / "timeline"))
    announced = holds.announce("lake", timeline(site).state().instant + 1, 60)
    with pytest.raises(WaitTimeoutError):
        reader(site).files(wait_s=0)
    holds.release(announced)
    reader(site).files(wait_s=0).close()


@pytest.mark.parametrize("file", ["a/first.parquet", "q/text.parquet"])
def test_a_file_of_another_format_is_an_error_that_names_it(site: Path, file: str) -> None:
    write_tree(site / "src", {file: b"this is no parquet"})
    recorded(site).run()
    with reader(site).files() as files:
        with pytest.raises(FormatError, match="cannot be read as parquet"):
            files.rows().read_all()
        with pytest.raises(RequestError, match="not a format"):
            files.rows("xml")
