"""How a demo ends when it is interrupted."""

from __future__ import annotations

import signal

import pytest

from shell.demo.running import interruptible


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
