"""How a demo ends: interrupted, with its clusters left to run, or after a failure."""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress

import pytest

from shell.cli.render import Printer
from shell.demo.running import interruptible, stop_all


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


@pytest.mark.parametrize(("keep", "ends"), [(True, ["left"]), (False, ["stopped", "gone"])])
def test_a_demo_that_succeeds_leaves_its_clusters_running_only_when_asked_to(keep: bool, ends: list[str]) -> None:
    sites = [_Site(), _Site()]
    with ExitStack() as stack:
        stack.callback(stop_all, Printer(as_json=True), sites, keep)
    assert [site.ends for site in sites] == [ends, ends]


@pytest.mark.parametrize("failure", [RuntimeError("west is not east"), KeyboardInterrupt()])
def test_a_demo_that_fails_or_is_interrupted_leaves_no_cluster_running(failure: BaseException) -> None:
    sites = [_Site(), _Site()]
    with suppress(RuntimeError, KeyboardInterrupt), ExitStack() as stack:
        stack.callback(stop_all, Printer(as_json=True), sites, True)
        raise failure
    assert [site.ends for site in sites] == [["stopped", "gone"]] * 2
