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
from replication.tables.spark import session
from shell.processes import submit
from shell.processes.submit import submission, write_package


@pytest.mark.heavy
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


def test_files_from_before_1980_as_reproducible_images_have_them_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "walship.py"
    source.touch()
    os.utime(source, (1, 1))
    monkeypatch.setattr(submit, "_own_files", lambda: {"walship.py": source})
    write_package(tmp_path / "walship.zip", ())
    with zipfile.ZipFile(tmp_path / "walship.zip") as archive:
        assert archive.namelist() == ["walship.py"]


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


def test_executors_of_a_driver_on_the_cluster_get_nothing_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command and the properties name goes to executors, too; the program only to the driver."""
    monkeypatch.setattr(session, "ensure_jars", lambda given, also: [tmp_path / "postgresql.jar"])
    monkeypatch.setattr(submit, "write_package", lambda file, required: file.touch())
    file = tmp_path / "walship.toml"
    ledger = {"url": "postgresql://walship:hu sh@db/west?sslmode=require"}
    given = {"replay": {"spark_master": "yarn"}, "ledger": ledger, "catalog": {"warehouse": "s3://bucket/west"}}
    file.write_text(config.default_toml("west", **given))
    file.chmod(0o600)
    made = submission(config.load(file), file, "cluster")
    folder = config.load(file).run_dir / "submit"
    program = folder / "replay.py"
    assert str(file) not in made.command and made.command[-3:] == (str(program), file.name, "walship")
    properties = (folder / "spark.conf").read_text()
    assert "jdbc:postgresql://db:5432/west" in properties and "hu sh" not in properties
    assert program.stat().st_mode & 0o077 == 0
    there = tmp_path / "container" / "walship" / "shell" / "processes"
    there.mkdir(parents=True)
    for place in (there, there.parent):
        place.joinpath("__init__.py").touch()
    there.joinpath("role_process.py").write_text(
        "def serve(role, file, fd):\n    return role, open(file).read()\n"
        "def leave(served):\n    print(served[0], served[1], sep='\\n', end='')\n"
    )
    run = [sys.executable, str(program), *made.command[-2:]]
    said = subprocess.run(run, cwd=tmp_path / "container", capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == f"replay\n{file.read_text()}"
    assert (tmp_path / "container" / file.name).stat().st_mode & 0o077 == 0


def test_a_standalone_cluster_runs_no_driver_of_python(tmp_path: Path) -> None:
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east", replay={"spark_master": "spark://head:7077"}))
    with pytest.raises(ConfigError, match="no Python driver in cluster mode"):
        submission(config.load(file), file, "cluster")


@pytest.mark.parametrize("value", [" secret", "secret ", "\tsecret"])
def test_a_setting_whose_blanks_spark_would_drop_is_refused(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ensure_jars", lambda given, also: [])
    monkeypatch.setattr(submit, "write_package", lambda file, required: file.touch())
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east", replay={"spark": {"spark.hadoop.fs.s3a.secret.key": value}}))
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"the value of spark\.hadoop\.fs\.s3a\.secret\.key begins or ends") as caught:
        submission(config.load(file), file, "client")
    assert value not in str(caught.value)


def test_a_setting_of_several_lines_stays_one_property(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ensure_jars", lambda given, also: [])
    monkeypatch.setattr(submit, "write_package", lambda file, required: file.touch())
    file = tmp_path / "walship.toml"
    file.write_text(config.default_toml("east", replay={"spark": {"spark.note": "a\\b\nc\rd e"}}))
    submission(config.load(file), file, "client")
    assert r"spark.note a\\b\nc\rd e" in (tmp_path / "run" / "submit" / "spark.conf").read_text().splitlines()
