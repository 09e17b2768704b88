"""What ``walship replay --submit`` writes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from replication import config
from replication.errors import ConfigError
from shell.processes.submit import submission, write_package


def test_the_package_has_the_code_and_what_it_requires_but_for_what_executors_have(tmp_path: Path) -> None:
    write_package(tmp_path / "walship.zip")
    with zipfile.ZipFile(tmp_path / "walship.zip") as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {"replication", "peer", "shell", "walship.py", "sqlalchemy", "grpc", "pydantic_core"} <= tops
    assert not {"pyarrow", "numpy", "pyspark", "pandas", "tests"} & tops
    assert [file.name for file in tmp_path.iterdir()] == ["walship.zip"]


def test_a_driver_on_the_cluster_needs_a_ledger_that_it_reaches(tmp_path: Path) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east", replay={"spark_master": "yarn"}))
    with pytest.raises(ConfigError, match="the ledger is a file of this one"):
        submission(config.load(file), file, "cluster")


def test_a_standalone_cluster_runs_no_driver_of_python(tmp_path: Path) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east", replay={"spark_master": "spark://head:7077"}))
    with pytest.raises(ConfigError, match="no Python driver in cluster mode"):
        submission(config.load(file), file, "cluster")
