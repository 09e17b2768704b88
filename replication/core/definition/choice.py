"""Which tables a list of names and patterns means. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from replication.errors import RequestError

_WILD = "*?["
DEFAULT_NAMESPACE = "default"


def full_name(name: str) -> str:
    """A table's name with its namespace: ``foo`` is ``default.foo``. Empty text stays empty."""
    return name if not name or "." in name else f"{DEFAULT_NAMESPACE}.{name}"


def full_pattern(text: str) -> str:
    """The same for a name or pattern: ``foo_*`` is ``default.foo_*``; ``*`` alone stays, and means every table."""
    return text if text == "*" else full_name(text)


def is_pattern(text: str) -> bool:
    """Whether it is a pattern, which may match any number of tables.

    Raises:
        RequestError: a ``[`` is not closed, so that it could mean none.
    """
    if "[" in re.sub(r"\[!?.[^\]]*\]", "", text):
        raise RequestError(f"The [ in {text!r} is not closed", "Patterns are *, ? and [ab]")
    return any(sign in text for sign in _WILD)


def is_chosen(name: str, pattern: str, excluded: Iterable[str]) -> bool:
    """Whether a pattern means a table of that name, and none of the excluded ones does."""
    return fnmatchcase(name, pattern) and not any(fnmatchcase(name, each) for each in excluded)


def chosen(
    names: Iterable[str], wanted: Sequence[str], excluded: Sequence[str] = (), which: str = "table"
) -> list[str]:
    """Names in the order they are wanted, each once: plain ones as they are, whether there is such a table or not.

    Args:
        names: the tables there are.
        wanted: names, and patterns such as ``ops.*`` (``*`` any text, ``?`` one character, ``[ab]`` either).
        excluded: names and patterns of tables that are not meant, however they are wanted.
        which: what ``names`` are, for a person.

    Raises:
        RequestError: a pattern matches no table, or everything is excluded.
    """
    every = sorted(names)
    found: dict[str, None] = {}
    for want in wanted:
        matching = [name for name in every if fnmatchcase(name, want)] if is_pattern(want) else [want]
        if not matching:
            raise RequestError(f"No {which} matches {want}", f"Tables: {', '.join(every[:10]) or 'none'}")
        found.update(dict.fromkeys(matching))
    kept = [name for name in found if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    if not kept:
        raise RequestError(f"--exclude leaves no table of {', '.join(found)}", "Exclude less")
    return kept
