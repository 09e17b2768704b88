"""The file of declared datasets: changed by several processes and by people."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from replication.datasets.declared.definitions import DatasetDefinition, DatasetFile, specification
from replication.errors import ConfigError, FormatError, MissingFileError, RequestError


def defined(name: str) -> DatasetDefinition:
    return DatasetDefinition(name, "/in", "/out")


def test_none_of_the_datasets_that_are_added_at_once_is_lost(tmp_path: Path) -> None:
    wanted = [f"d{n:02}" for n in range(20)]
    barrier = threading.Barrier(len(wanted))

    def add(name: str) -> None:
        barrier.wait()
        DatasetFile(tmp_path / "datasets.toml").add(defined(name))

    threads = [threading.Thread(target=add, args=(name,)) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.name for each in DatasetFile(tmp_path / "datasets.toml").all()] == wanted


def test_a_change_is_durable_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = [], os.fsync

    def watched(fd: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    file = DatasetFile(tmp_path / "datasets.toml")
    file.add(defined("d"))
    file.remove("d")
    assert synced == [False, True] * 2 and file.all() == []


def test_an_added_dataset_leaves_what_people_wrote(tmp_path: Path) -> None:
    file = DatasetFile(tmp_path / "datasets.toml")
    file.add(defined("a"))
    written = "# every night\n" + file.path.read_text()
    file.path.write_text(written.rstrip())
    file.add(defined("b"))
    assert file.path.read_text().startswith("# every night\n")
    assert file.all() == [defined("a"), defined("b")]


def test_a_file_that_cannot_be_added_to_stays_as_it_was(tmp_path: Path) -> None:
    file = DatasetFile(tmp_path / "datasets.toml")
    written = 'dataset = {a = {source = "/in", target = "/out"}}\n'
    file.path.write_text(written)
    assert file.all() == [defined("a")]
    with pytest.raises(ConfigError, match="cannot be read"):
        file.add(defined("b"))
    assert file.path.read_text() == written


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="cannot write to .*/missing: it does not exist"):
        DatasetFile(tmp_path / "missing" / "datasets.toml").add(defined("d"))


@pytest.mark.parametrize(
    "line", ['priority = "high"', "priority = true", "source = 5", 'options = "delete"', "after = []"]
)
def test_a_value_of_another_kind_is_named(tmp_path: Path, line: str) -> None:
    given = {"source": '"/in"', "target": '"/out"'} | dict([line.split(" = ")])
    text = "\n".join(f"{name} = {value}" for name, value in given.items())
    (tmp_path / "datasets.toml").write_text(f"[dataset.d]\n{text}\n")
    with pytest.raises(ConfigError, match=f"{line.partition(' ')[0]} of dataset d cannot be"):
        DatasetFile(tmp_path / "datasets.toml").all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[dataset.d]\nsource = "/in"', "target of dataset d is missing"),
        ('[dataset.d]\nsorce = "/in"\ntarget = "/out"', "sorce of dataset d is unknown: it may have source, target, f"),
        ('[dataset.d]\nname = "e"', "name of dataset d is unknown"),
        ('[dataset]\nsource = "/in"', r"write \[dataset.NAME\], and source and target below it"),
        ('[[dataset]]\nsource = "/in"', r"write \[dataset.NAME\]"),
        ("dataset = 3", r"write \[dataset.NAME\]"),
        ('[datasets.d]\nsource = "/in"', r"\[datasets\] is unknown: each dataset is a section \[dataset.NAME\]"),
        (
            '[dataset.d]\nsource = "/in"\ntarget = 2030-01-01',
            'target of dataset d cannot be "2030-01-01": write a text',
        ),
        ('[dataset.d]\nsource = "/in"\ntarget = "/out"\nproperties = {days = [7]}', "days in properties of dataset d"),
        ('[dataset."a b"]\nsource = "/in"\ntarget = "/out"', "'a b' cannot be a dataset.* Use 1 to 63 letters"),
        ('[dataset."../d"]\nsource = "/in"\ntarget = "/out"', "'../d' cannot be a dataset"),
        ('[dataset.d]\nsource = "in"\ntarget = "/out"', "source of dataset d cannot be in: write the whole path"),
        ('[dataset.d]\nsource = "/in"\ntarget = "file://out"', "target of dataset d cannot be file://out: write the"),
        ('[dataset.d]\nsource = "/in"\ntarget = "/out"\ntimeline = "~/t"', "timeline of dataset d cannot be ~/t"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "datasets.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"datasets.toml cannot be read: .*{said}"):
        DatasetFile(tmp_path / "datasets.toml").all()


def test_a_property_may_be_written_as_a_number(tmp_path: Path) -> None:
    text = '[dataset.d]\nsource = "/in"\ntarget = "/out"\nfinder = "stream"\nproperties = {days = 7}\n'
    (tmp_path / "datasets.toml").write_text(text)
    assert DatasetFile(tmp_path / "datasets.toml").get("d").properties == {"days": "7"}


def test_a_password_in_the_address_of_a_timeline_is_not_shown_to_others() -> None:
    definition = DatasetDefinition("d", "/in", "/out", timeline="sftp://ann:hush@host/timeline")
    assert specification(definition)["timeline"] == "sftp://ann:***@host/timeline"


@pytest.mark.parametrize(
    "option", ["timeout = inf", "after = 2030-01-01", "at = 07:30:00", '"\U0001f600" = 1', 'name = "a\\u007fb"']
)
def test_the_others_can_be_read_once_one_was_removed(tmp_path: Path, option: str) -> None:
    file = DatasetFile(tmp_path / "datasets.toml")
    file.path.write_text(f'[dataset.d]\nsource = "/in"\ntarget = "/out"\nsource_options = {{{option}}}\n')
    before = file.all()
    file.add(defined("e"))
    file.remove("e")
    assert file.all() == before


def test_what_is_refused_leaves_no_file(tmp_path: Path) -> None:
    file = DatasetFile(tmp_path / "datasets.toml")
    with pytest.raises(RequestError, match="there is no dataset d"):
        file.remove("d")
    with pytest.raises(FormatError, match="cannot be a dataset"):
        file.add(defined("a/b"))
    assert not list(tmp_path.iterdir())
    file.path.write_text('[dataset.d]\nsource = "/in"\ntarget = "/out"\n')
    with pytest.raises(RequestError, match="there is a dataset d already"):
        file.add(defined("d"))
    assert list(tmp_path.iterdir()) == [file.path]


def test_a_file_that_cannot_be_read_is_not_asked_for_options_of_a_folder_of_this_host(tmp_path: Path) -> None:
    (tmp_path / "datasets.toml").write_text("[dataset")
    file = DatasetFile(tmp_path / "datasets.toml")
    assert file.target_options("lake", tmp_path.as_uri()) == {}
    with pytest.raises(ConfigError, match="cannot be read"):
        file.target_options("lake", "s3://lake/in")


@pytest.mark.parametrize(
    ("given", "is_secret"),
    [
        ('source_options = {password = "hush"}', True),
        ('target_options = {client_kwargs = {aws_secret_access_key = "hush"}}', True),
        ('timeline = "sftp://ann:hush@host/timeline"', True),
        ('source_options = {password = "$PASSWORD", anon = true}', False),
    ],
)
def test_a_file_with_a_password_is_refused_while_others_can_read_it(
    tmp_path: Path, given: str, is_secret: bool
) -> None:
    file = DatasetFile(tmp_path / "datasets.toml")
    file.path.write_text(f'[dataset.d]\nsource = "sftp://host/in"\ntarget = "sftp://host/out"\n{given}\n')
    file.path.chmod(0o644)
    if is_secret:
        with pytest.raises(ConfigError, match="can be read or changed by other users") as refused:
            file.get("d")
        assert refused.value.hint == f"Run: chmod 600 {file.path}"
        file.path.chmod(0o600)
    assert file.get("d").name == "d"
