"""Logs: one object a line, fields kept, secrets never."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from replication import log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)
    structlog.reset_defaults()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_the_event_its_fields_and_the_process(tmp_path: Path) -> None:
    path = tmp_path / "log" / "worker.log"
    log.configure("info", path, cluster="east", role="worker")
    logger = log.get("replication.worker.ship", peer="west")
    logger.info("chunk shipped", begin=128, end=4096)
    logger.debug("not written")
    logging.getLogger("some.library").warning("theirs %d", 7)
    ours, theirs = lines(path)
    assert ours.pop("timestamp").endswith("Z")
    assert ours == {
        "event": "chunk shipped",
        "level": "info",
        "logger": "replication.worker.ship",
        "cluster": "east",
        "role": "worker",
        "peer": "west",
        "begin": 128,
        "end": 4096,
    }
    assert (theirs["event"], theirs["level"], theirs["role"]) == ("theirs 7", "warning", "worker")


def test_configuring_again_replaces_the_file(tmp_path: Path) -> None:
    log.configure("info", tmp_path / "a.log")
    log.configure("info", tmp_path / "b.log")
    log.get("x").info("once")
    assert (tmp_path / "a.log").read_text() == ""
    assert len(lines(tmp_path / "b.log")) == 1


def test_files_are_bounded_and_a_disk_that_is_full_costs_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "FILE_BYTES_MAX", 10_000)
    path = tmp_path / "replay.log"
    log.configure("info", path)
    for number in range(500):
        log.get("x").info("replayed", number=number)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["replay.log", "replay.log.1", "replay.log.2"]
    assert all(file.stat().st_size <= 10_000 for file in tmp_path.iterdir())
    assert lines(path)[-1]["number"] == 499
    log.configure("info", Path("/dev/full"))
    log.get("x").info("lost")
    assert capsys.readouterr().err == ""
    full = next(h for h in logging.getLogger().handlers if getattr(h, "baseFilename", "") == "/dev/full")
    logging.getLogger().removeHandler(full)
    with contextlib.suppress(OSError):
        full.close()


def test_as_a_library_any_field_can_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()
    caplog.set_level(logging.WARNING)
    log.as_library()
    log.get("library").warning("failed", thread="turns", name="n", message="m", file="f")
    (record,) = [record for record in caplog.records if record.name == "library"]
    assert (vars(record)["thread_"], vars(record)["name_"], vars(record)["file"]) == ("turns", "n", "f")


def test_as_a_library_nothing_is_printed_by_a_program_that_logs_nothing() -> None:
    code = "from replication import log; log.as_library(); log.get('replication.x').warning('not_read', error='gone')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_are_masked_wherever_they_hide(tmp_path: Path, format: log.Format) -> None:
    path = tmp_path / "x.log"
    log.configure("info", path, format)
    logger = log.get("x")
    logger.info(
        "catalog opened",
        password="hush",
        properties={"jdbc.password": "hush", "s3.secret-access-key": "hush", "nested": [{"token": "hush"}]},
        url="postgresql+psycopg://walship:hush@db:5432/ledger",
        jdbc="jdbc:postgresql://db/x?user=u&password=hush",
        semicolon="postgresql://db/x?user=u&password=a;hush&sslmode=require",
        pair=("https://u:hush@h", 1),
        hdfs="Max retries exceeded with url: /webhdfs/v1/a?op=OPEN&delegation=hush (Caused by it)",
        signed="403, url='https://bucket/a?X-Amz-Expires=60&X-Amz-Signature=hush'",
        unquoted="postgresql://walship:a@hush@b@hush@db:5432/ledger",
        error=ValueError("cannot open postgresql://u:hush@db"),
    )
    try:
        raise ValueError("cannot open postgresql://u:hush@db")
    except ValueError:
        logger.exception("ledger unreachable")
    written = path.read_text()
    assert "hush" not in written
    assert "walship:***@db:5432/ledger" in written
    assert "ledger unreachable" in written and "ValueError" in written


def test_keys_that_are_no_secrets_stay(tmp_path: Path) -> None:
    log.configure("info", tmp_path / "x.log")
    log.get("x").info("folded", key_columns=["a"], keys=7, tokens=3)
    assert lines(tmp_path / "x.log")[0] | {"key_columns": ["a"], "keys": 7, "tokens": 3} == lines(tmp_path / "x.log")[0]
