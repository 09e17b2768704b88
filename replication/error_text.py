"""What messages and logs are made of: errors of libraries as one line, signals by name, counts with their nouns."""

from __future__ import annotations

import signal

_CHARS_MAX = 500


def one_line(error: BaseException) -> str:
    """A library's error as one line; of a Java error the message and its causes, without the stack."""
    cause = getattr(error, "orig", None)  # SQLAlchemy adds the statement and its values
    error = cause if isinstance(cause, BaseException) else error
    return f"{type(error).__name__}: {message_line(error)}"[:_CHARS_MAX]


def message_line(error: BaseException) -> str:
    """An error's message as one line."""
    lines = (line.strip().removeprefix(": ") for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith(("at ", "... ")))


def signal_text(number: int) -> str:
    """``SIGKILL``; ``signal 35`` for one without a name, as most real-time signals are."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2 files``, ``3 batches``."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def storable(text: str) -> str:
    r"""A text of any bytes, such as a file's name, as ledgers and files in UTF-8 take it: with ``\udcff``, ``\0``."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\0")
