"""What an FTP server tells of a file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replication.datasets.stores.ftp import FtpDriver
from replication.errors import StorageError


def answering(answer: str) -> Any:
    """A connection to a server that answers everything so."""
    return SimpleNamespace(ftp=SimpleNamespace(sendcmd=lambda line: answer))


def test_a_file_is_described_by_facts_in_any_letter_case() -> None:
    told = "250- Listing a\n Type=file;Size=7;Modify=20300101000000;UNIX.mode=0640; a = b\n250 End"
    found = FtpDriver().info(answering(told), "a = b")
    assert (found["type"], found["size"], found["unix.mode"]) == ("file", 7, "0640")


@pytest.mark.parametrize("told", ["250 a", "250-\n file;size=7; a\n250 End", "250-\n type=file;size=many; a\n250 End"])
def test_an_answer_that_cannot_be_read_is_an_error_of_the_store(told: str) -> None:
    with pytest.raises(StorageError, match="describes a by what cannot be read"):
        FtpDriver().info(answering(told), "a")


@pytest.mark.parametrize(("told", "mode"), [("0640", 0o640), ("100644", 0o644), ("888", None), ("²", None), ("", None)])
def test_a_mode_that_is_none_does_not_hide_the_files_of_its_folder(told: str, mode: int | None) -> None:
    assert FtpDriver().permission({"unix.mode": told}) == mode
