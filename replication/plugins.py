"""What installed packages add to walship's own parts, by entry points."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from replication.errors import RequestError


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is a person's Ctrl-C, which the main thread gets, and not what a package's own code raised.

    That code may raise anything: ``sys.exit``, ``KeyboardInterrupt``, a panic in Rust. Each would end a thread.
    """
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def found(group: str, kind: str, name: str, built_in: Mapping[str, Any]) -> Callable[..., Any]:
    """What makes a part of a kind: walship's own of that name, or that of the entry point in ``group``.

    Raises:
        RequestError: no package, or several, have one of that name, or it cannot be imported.
    """
    if name in built_in:
        made: Callable[..., Any] = built_in[name]
        return made
    points = list(entry_points(group=group, name=name))
    if not points:
        known = sorted({*built_in, *(point.name for point in entry_points(group=group))})
        raise RequestError(
            f"there is no {kind} {name!r} on this host",
            f"There are {', '.join(known)}; others are Python packages with an entry point in the group {group}",
        )
    if len({point.value for point in points}) > 1:
        raise RequestError(
            f"several packages have a {kind} {name!r}: {', '.join(point.value for point in points)}",
            "Uninstall all but one",
        )
    try:
        made = points[0].load()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise RequestError(
            f"{kind} {name} cannot be imported: {type(error).__name__}: {error}",
            "Reinstall or correct its package on this host",
        ) from error
    if not callable(made):
        raise RequestError(f"{kind} {name} ({points[0].value}) cannot be called", "Correct its package's entry point")
    return made
