"""What ``walship replay --submit`` writes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from replication import config
from replication.errors import ConfigError
from shell.processes.submit import submission, write_package


def test_the_package_has_what_executors_import_besides_arrow_and_spark(tmp_path: Path) -> None:
    write_package(tmp_path / "walship.zip")
    with zipfile.ZipFile(tmp_path / "walship.zip") as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        archive.extractall(tmp_path / "walship")
    assert {"replication", "peer", "shell", "walship.py", "grpc", "pydantic_core"} <= tops
    assert not {"pyarrow", "numpy", "pyspark", "pandas", "sqlalchemy", "tests"} & tops
    (tmp_path / "there").mkdir()
    for name in ("pyarrow", "numpy"):
        place = Path(importlib.import_module(name).__file__ or "").parent
        for each in (place, place.with_name(f"{name}.libs")):
            if each.exists():
                (tmp_path / "there" / each.name).symlink_to(each)
    code = "import replication.tables.spark.jobs, replication.tables.pyiceberg.write, peer.frames.decode, grpc"
    path = os.pathsep.join(str(tmp_path / name) for name in ("walship", "there"))
    subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": path}, cwd=tmp_path, timeout=300, check=True)


def test_a_cluster_whose_files_do_not_wait_for_replay_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east", replay={"enabled": False}))
    with pytest.raises(ConfigError, match="do not wait for replay"):
        submission(config.load(file), file, "client")


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
