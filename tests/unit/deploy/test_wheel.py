"""What a wheel has: every package, and every file that a package reads."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch

from deploy.sbom import ROOT

PACKAGES = ("replication", "peer", "shell")


def test_each_folder_with_modules_is_a_package_and_each_other_file_is_packed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"]["find"]["include"] == [f"{name}*" for name in PACKAGES]
    (patterns,) = settings["package-data"].values()
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file()]
    files = [file for file in files if "__pycache__" not in file.parts]
    assert len(files) > 500
    assert not [file for file in files if not (file.parent / "__init__.py").exists()], "setuptools would leave it out"
    others = [file for file in files if file.suffix != ".py"]
    assert others and not [file for file in others if not any(fnmatch(file.name, each) for each in patterns)]
