"""The archive of Spark's classes: used when it is there, and never in the way."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from replication.tables.spark import session as spark
from replication.tables.spark.jars import java_home_check


def test_without_an_archive_java_is_told_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "class_archive", lambda: tmp_path / "none.jsa")
    assert spark._archive_options(None) == []


def test_an_archive_that_java_cannot_use_is_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "with space" / "spark.jsa"
    archive.parent.mkdir()
    monkeypatch.setattr(spark, "class_archive", lambda: archive)
    for content in (b"", b"nothing of Java's" * 10_000):
        archive.write_bytes(content)
        options = shlex.split(" ".join(spark._archive_options(None)))
        assert f"-XX:SharedArchiveFile={archive}" in options
        done = subprocess.run(
            [Path(java_home_check(), "bin", "java"), *options, "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == "" and "warning" not in done.stdout.lower()
