"""How a demo ends: interrupted, with its clusters left to run, or after a failure."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.text import Text

from shell.cli.render import Printer
from shell.demo import display
from shell.demo.graph_picture import GraphDisplay
from shell.demo.picture import ONE_WAY
from shell.demo.running import demo_sites, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_that_an_interrupt_ends_with_an_error_of_its_own_is_an_interrupt(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None


def test_an_error_without_an_interrupt_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="broken"), interruptible():
        raise RuntimeError("broken")


_SHOWING = """
import sys
from shell.cli.render import Printer
from shell.demo.graph_picture import GraphDisplay
from shell.demo.picture import ONE_WAY
assert "sqlalchemy.orm" not in sys.modules
with GraphDisplay(Printer(as_json=True), ONE_WAY, ()):
    assert "sqlalchemy.orm" in sys.modules
"""


def test_a_display_meets_no_half_loaded_module_when_tables_are_first_read() -> None:
    subprocess.run([sys.executable, "-c", _SHOWING], cwd=Path(__file__).parents[4], check=True, timeout=120)


def test_something_may_happen_while_the_picture_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = GraphDisplay(Printer(as_json=True), ONE_WAY, ())

    def text(content: str, style: str) -> Text:
        shown.event("meanwhile")
        return Text(content, style=style)

    shown.event("before")
    monkeypatch.setattr(display, "Text", text)
    assert shown._events().row_count == 1


class _Site:
    """A cluster that notes how it is ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def leave_running(self) -> None:
        self.ends.append("left")

    def stop(self) -> None:
        self.ends.append("stopped")

    def join(self) -> None:
        self.ends.append("gone")


def _made(monkeypatch: pytest.MonkeyPatch) -> list[_Site]:
    sites = [_Site(), _Site()]
    monkeypatch.setattr("shell.demo.running.make_sites", lambda folder, names, spark, standby, jobs: sites)
    return sites


@pytest.mark.parametrize(("keep", "ends"), [(True, ["left"]), (False, ["stopped", "gone"])])
def test_a_demo_that_succeeds_leaves_its_clusters_running_only_when_asked_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: bool, ends: list[str]
) -> None:
    sites = _made(monkeypatch)
    with demo_sites(Printer(as_json=True), tmp_path, ("east", "west"), keep=keep):
        pass
    assert [site.ends for site in sites] == [ends, ends]


@pytest.mark.parametrize("failure", [RuntimeError("west is not east"), KeyboardInterrupt()])
def test_a_demo_that_fails_or_is_interrupted_leaves_no_cluster_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: BaseException
) -> None:
    sites = _made(monkeypatch)
    with (
        suppress(RuntimeError, KeyboardInterrupt),
        demo_sites(Printer(as_json=True), tmp_path, ("east", "west"), keep=True),
    ):
        raise failure
    assert [site.ends for site in sites] == [["stopped", "gone"]] * 2
