"""The ``walship`` command: Ctrl-C ends it quietly while its modules load, too."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line once it is loaded."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # unless its parent has it ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from shell import main as command_line

    signal.signal(signal.SIGINT, before)
    command_line.main()
