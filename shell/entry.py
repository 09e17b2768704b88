"""The ``walship`` command as it begins: Ctrl-C ends it quietly also while its modules load, which takes a while."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line once it is loaded."""
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:  # not where whoever started it has it ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from shell import main as command_line

    signal.signal(signal.SIGINT, heard)
    command_line.main()
