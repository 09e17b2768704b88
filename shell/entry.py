"""The ``walship`` command: Ctrl-C ends it quietly while its modules load, too.

The version and the list of verbs are printed without loading any.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

OVERVIEW = Path(__file__).parent / "cli" / "overview.txt"
OVERVIEW_COLUMNS = 80


def main() -> None:
    """Run the command line once it is loaded."""
    if _printed(sys.argv[1:]):
        return
    from replication.permissions import keep_private
    from shell.processes.descriptors import open_standard_streams

    open_standard_streams()
    keep_private()  # configurations and ledgers may have passwords; rows are their owner's
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # unless its parent has it ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from shell.cli.forwarded import forward

    if (code := forward(sys.argv[1:])) is not None:
        os._exit(code)  # it has written nothing here
    from shell import main as command_line

    signal.signal(signal.SIGINT, before)
    command_line.main()


def _printed(words: list[str]) -> bool:
    """Print the version, or the overview that ``make docs`` wrote; False for any other command line."""
    from replication import __version__

    try:
        if words == ["--version"]:
            text = f"{__version__}\n"
        elif words in (["--help"], ["-h"]) and _is_wide():
            text = OVERVIEW.read_text(encoding="utf-8")
        else:
            return False
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, UnicodeError, AttributeError):  # no file, no reader, no room, no output: the whole program says so
        return False
    return True


def _is_wide() -> bool:
    return not sys.stdout.isatty() or os.get_terminal_size(sys.stdout.fileno()).columns >= OVERVIEW_COLUMNS
