"""One input for one decoder: it ends in a value, or in an error of the project's tree."""

from __future__ import annotations

from pathlib import Path

from replication.errors import ReplicationError
from tests.fuzz.decoders import DECODERS

CORPUS = Path(__file__).with_name("corpus")


def try_one(name: str, raw: bytes) -> bool:
    """Whether ``raw`` decodes to a value; False when it is refused.

    Raises:
        AssertionError: the value is wrong.
        Exception: the error has no type of the project.
    """
    decoder = DECODERS[name]
    try:
        value = decoder.decode(raw)
    except ReplicationError:
        return False
    decoder.check(raw, value)
    return True


def corpus() -> list[tuple[str, Path]]:
    """Every kept input, and the name of its decoder."""
    return [(file.parent.name, file) for file in sorted(CORPUS.glob("*/*.bin"))]
