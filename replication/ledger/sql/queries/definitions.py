"""Table definitions as they are stored."""

from __future__ import annotations

from functools import lru_cache

from replication.core.definition.schema import TableSpec


@lru_cache(maxsize=4096)
def table_spec(text: str) -> TableSpec:
    """A definition as it is stored, remembered: the same few are read over and over, and each is one object."""
    return TableSpec.from_json(text)
