"""What `make` does before anything is installed: a half-made environment is made anew, a small disk is told."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("whole", [False, True])
def test_an_environment_without_pip_is_made_anew(tmp_path: Path, whole: bool) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("constraints.txt", "pyproject.toml", "log"):
        (tmp_path / name).touch()
    environment = script(tmp_path / ".venv" / "bin" / "python", "exit 0" if whole else "[ $1 != -m ]")
    mend = f"case $* in *'venv --clear'*) printf '#!/bin/sh\\n' > {environment};; esac"
    python = script(tmp_path / "python", f"echo $* >> {tmp_path}/log; {mend}")
    subprocess.run(["make", "-C", tmp_path, ".venv/.ready", f"PYTHON={python}"], check=True, capture_output=True)
    assert ("-m venv --clear .venv" in (tmp_path / "log").read_text()) is not whole


@pytest.fixture
def preflight(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = importlib.util.spec_from_file_location("deploy_preflight", ROOT / "deploy" / "preflight.py")
    assert found is not None and found.loader is not None
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["preflight.py"])
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    monkeypatch.setattr(made, "java_home_check", lambda: "")
    return made


def test_a_disk_too_small_for_set_up_is_told_until_it_is_done(
    preflight: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(preflight, "ROOT", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1 << 30))
    assert preflight.main() == 0
    assert "Only 1.0 GiB are free in" in capsys.readouterr().err
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    assert preflight.main() == 0 and capsys.readouterr().err == ""
    (tmp_path / ".venv" / ".ready").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=3 << 30))
    assert preflight.main() == 0 and capsys.readouterr().err == ""
