"""The protocol of a timeline's records, which are objects in a store (``stored.py``)."""

from __future__ import annotations

from typing import Protocol

#: So many events are packed into one object.
ARCHIVED_TOGETHER = 100


class Records(Protocol):
    """Numbered objects. Safe for threads. Failures raise StorageError."""

    def create(self, number: int, content: bytes) -> bool:
        """Write an object, durably and whole; False, and nothing changed, if the number is taken.

        Raises:
            StorageError: it is unknown whether it was written.
        """

    def read(self, number: int) -> bytes | None:
        """Return an object's content; None if it does not exist."""

    def archived(self) -> str:
        """Return the state that ``archive`` was given last; "" for none."""

    def archive(self, through: int, state: str) -> None:
        """Pack objects up to ``through`` together; they can still be read.

        Args:
            through: a multiple of ``ARCHIVED_TOGETHER``.
            state: of the timeline after that object, as text.
        """
