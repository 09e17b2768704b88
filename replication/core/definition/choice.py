"""Choose tables by names and patterns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from replication.errors import RequestError

_WILD = "*?["
_POSSIBLE = re.compile(r"[A-Za-z0-9_.*?\[\]!-]+")
DEFAULT_NAMESPACE = "default"


def full_name(name: str) -> str:
    """Return a table's name with its namespace: ``foo`` is ``default.foo``. Empty text stays empty."""
    return name if not name or "." in name else f"{DEFAULT_NAMESPACE}.{name}"


def full_pattern(text: str) -> str:
    """Return a name or pattern with its namespace: ``foo_*`` is ``default.foo_*``. ``*`` alone means every table."""
    return text if text == "*" else full_name(text)


def is_pattern(text: str) -> bool:
    """Return whether ``text`` is a pattern. Raises RequestError: no name can match it, or a ``[`` is not closed."""
    is_wild = any(sign in text for sign in _WILD)
    if is_wild and not _POSSIBLE.fullmatch(text):
        raise RequestError(
            f"{text[:80]!r} matches no name: names have letters A to Z, digits, '_', '-' and '.'",
            "Patterns are *, ? and [ab]",
        )
    if "[" in re.sub(r"\[!?.[^\]]*\]", "", text):
        raise RequestError(f"the [ in {text!r} is not closed", "Patterns are *, ? and [ab]")
    return is_wild


def is_chosen(name: str, pattern: str, excluded: Iterable[str]) -> bool:
    """Return whether ``pattern`` matches the name, and none of ``excluded`` does."""
    return fnmatchcase(name, pattern) and not any(fnmatchcase(name, each) for each in excluded)


def chosen(
    names: Iterable[str], wanted: Sequence[str], excluded: Sequence[str] = (), which: str = "table"
) -> list[str]:
    """Return the chosen names, each once, in the order of ``wanted``. Plain names are returned even if unknown.

    Args:
        names: the existing tables.
        wanted: names, and patterns such as ``ops.*`` (``*`` any text, ``?`` one character, ``[ab]`` either).
        excluded: names and patterns of tables to leave out.
        which: the word for one of ``names`` in errors.

    Raises:
        RequestError: a pattern matches no table, or everything is excluded.
    """
    every = sorted(names)
    matched: dict[str, None] = {}
    for want in wanted:
        matching = [name for name in every if fnmatchcase(name, want)] if is_pattern(want) else [want]
        if not matching:
            raise RequestError(f"no {which} matches {want}", f"Tables: {', '.join(every[:10]) or 'none'}")
        matched.update(dict.fromkeys(matching))
    kept = [name for name in matched if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    if not kept:
        raise RequestError(f"--exclude leaves no table of {', '.join(matched)}", "Exclude fewer tables")
    return kept
