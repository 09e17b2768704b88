"""The archive of Spark's classes: used when it is there, and never in the way."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from replication.tables.spark import jars, session
from replication.tables.spark.jars import java_home_check


def test_without_an_archive_java_is_told_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "class_archive", lambda name: tmp_path / f"{name}.jsa")
    assert jars.archive_options("none", None) == []


def test_an_archive_that_java_cannot_use_is_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "with space" / "spark.jsa"
    archive.parent.mkdir()
    monkeypatch.setattr(jars, "class_archive", lambda name: archive)
    for content in (b"", b"nothing of Java's" * 10_000):
        archive.write_bytes(content)
        options = shlex.split(session._java_options(tmp_path, None))
        assert f"-XX:SharedArchiveFile={archive}" in options
        done = subprocess.run(
            [Path(java_home_check(), "bin", "java"), *options, "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == "" and "warning" not in done.stdout.lower()
