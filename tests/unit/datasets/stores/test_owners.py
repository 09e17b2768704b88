"""Owners of other hosts' files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.stores.base import is_temporary
from replication.datasets.stores.drivers import Driver, SftpDriver
from replication.datasets.stores.ftp import FtpDriver
from replication.datasets.stores.local import LocalStore
from replication.errors import CopyError


@pytest.mark.parametrize("kind", ["user", "group"])
def test_an_owner_that_this_host_does_not_have_is_named_and_not_tried_again(tmp_path: Path, kind: str) -> None:
    path = RelativePath("a")
    there = FileAttributes(path, 1, 0, **{kind: "ann-of-hdfs"})
    file = CopyableFile.build("hdfs://far", there, CopyConfiguration(preserve=frozenset({"owner", "group"})))
    with pytest.raises(CopyError, match=f"this host has no {kind} 'ann-of-hdfs'") as refused:
        LocalStore(str(tmp_path)).write_small(path, file, b"x")
    assert not is_temporary(refused.value)


@pytest.mark.parametrize(("user", "group", "kept"), [("", "", 0o755), ("ann", "", 0o4755), ("ann", "staff", 0o6755)])
def test_a_program_runs_as_another_user_only_with_the_owner_that_the_source_tells(
    user: str, group: str, kept: int
) -> None:
    told = FileAttributes(RelativePath("a"), 1, 0, user, group, 0o6755)  # SFTP tells neither
    configuration = CopyConfiguration(preserve=frozenset({"owner", "group", "permissions"}))
    assert CopyableFile.build("sftp://far", told, configuration).permission == kept


@pytest.mark.parametrize("driver", [SftpDriver(), FtpDriver()])
def test_servers_that_give_a_file_to_who_copies_it_get_no_bits_to_run_it_as_its_owner(driver: Driver) -> None:
    sent: list[str] = []
    calls = {"chmod": lambda path, mode: sent.append(f"{mode:o}"), "sendcmd": lambda line: sent.append(line.split()[2])}
    file = CopyableFile.build(
        "file:///src",
        FileAttributes(RelativePath("a"), 1, None, "ann", "staff", 0o6755),
        CopyConfiguration(preserve=frozenset({"owner", "group", "permissions"})),
    )
    driver.give(SimpleNamespace(ftp=SimpleNamespace(**calls)), "a", file)
    assert sent == ["755"]
