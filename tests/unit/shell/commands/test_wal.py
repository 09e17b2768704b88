"""What ``walship wal`` says of files."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from replication import config as configuration
from replication.core.ids import NIL_UUID
from replication.errors import FormatError, MissingFileError, RequestError
from replication.ledger.base import FileKind
from replication.ledger.sql.ledger import open_ledger
from shell import main
from shell.cli.render import Printer
from shell.commands import wal
from shell.processes.roles import make_ledger


def test_a_file_that_is_none_of_walships_is_neither_dumped_nor_called_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["init", "east"]) == 0
    make_ledger(configuration.load(tmp_path / "east" / "walship.toml"))
    (tmp_path / "a.csv").write_text("k,v\n")
    os.mkfifo(tmp_path / "pipe")
    assert main.run(["wal", "dump", "pipe"]) == RequestError.exit_code, "it does not wait for a writer"
    assert "pipe is no file" in capsys.readouterr().err
    assert main.run(["wal", "dump", "a.csv"]) == FormatError.exit_code
    assert "not a walship file" in capsys.readouterr().err
    assert main.run(["wal", "verify", "a.csv"]) == FormatError.exit_code
    shown = capsys.readouterr()
    assert "the first: a.csv: not a walship file" in shown.err
    told = shown.out
    assert "UNREADABLE" in told and "256 B" not in told and "[" not in told and "a.csv" in told
    assert main.run(["wal", "verify", "a.csv", "--json"]) == FormatError.exit_code
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["size"] == 4 and len(checked["problems"]) == 1

    def no_reader(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Printer, "rows", no_reader)
    assert main.run(["wal", "verify", "a.csv"]) == FormatError.exit_code
    assert main.run(["wal", "verify"]) == 0


def test_files_are_listed_with_units_for_people_and_as_numbers_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["init", "east"]) == 0
    config = configuration.load(tmp_path / "east" / "walship.toml")
    make_ledger(config)
    with closing(open_ledger(config.ledger_url)) as ledger:
        ledger.files.allocate("h0", FileKind.WAL, "/wal", "boot")
    capsys.readouterr()
    assert main.run(["wal", "list"]) == 0
    assert "256 B  256 B" in capsys.readouterr().out
    assert main.run(["wal", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["length"], listed["applied"], listed["newest"]) == (256, 256, None)
    assert main.run(["wal", "salvage", "²"]) == MissingFileError.exit_code, "a digit, and no number"
    assert "there is no file ²" in capsys.readouterr().err


def test_a_frame_of_no_table_is_shown_without_one() -> None:
    header = SimpleNamespace(
        kind=SimpleNamespace(name="CLOSED"),
        table=NIL_UUID,
        wal=SimpleNamespace(cluster=SimpleNamespace(name="east"), local="h0/1"),
        schema=b"",
        commit_hi=0,
        **dict.fromkeys(("group", "sequence", "row_count", "role_epoch", "batch_id"), ""),
    )
    ledger = SimpleNamespace(tables=SimpleNamespace(by_uuid=lambda _: None))
    frame = SimpleNamespace(header=header, begin=0, end=9, provenance=(), hash=b"")
    assert wal._frame(cast(Any, SimpleNamespace(ledger=ledger)), cast(Any, frame))["table"] == ""
