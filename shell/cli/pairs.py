"""Arguments of the form ``NAME=VALUE``."""

from __future__ import annotations

from collections.abc import Iterable

from replication.errors import RequestError


def pairs(given: Iterable[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """The values by name; RequestError for a text of another form, or a name that is given twice."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise RequestError(f"{text!r} is not a name and a value", f"Write {form}")
        if name in found:
            raise RequestError(f"{name} is given twice", "Give it once")
        found[name] = value
    return found
