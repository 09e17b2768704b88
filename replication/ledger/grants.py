"""What other clusters may do here, as persons and policy decided, and invitations. The guarantees of ``base`` apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from replication.core.grants import Grant
from replication.core.ids import ClusterId

ASKED_MAX = 100
INVITATIONS_MAX = 1000


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A grant and when it was made (microseconds since 1970).

    One of no tables denies everything. One that was only ``asked`` for grants nothing until a person adds it. An
    incarnation of zeros is pinned at the first call.
    """

    grant: Grant
    at: int
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Invitation:
    """A grant to whoever of that name shows the secret before ``expires`` (microseconds since 1970), once.

    ``digest`` is the SHA-256 of the secret, in hexadecimal.
    """

    digest: str
    grant: Grant
    expires: int


class Grants(Protocol):
    """Grants by the name of the cluster that they are for, and open invitations."""

    def all(self) -> list[GrantRow]:
        """All grants, by name."""

    def of(self, name: str) -> GrantRow | None:
        """The grant for the cluster of that name."""

    def put(self, grant: Grant, at: int, *, asked: bool = False) -> None:
        """Make a grant, in place of the one that its cluster has. One by a person ends open invitations of its cluster.

        One that is only ``asked`` for replaces none that was made, and is dropped when ``ASKED_MAX`` wait already.
        """

    def pin(self, cluster: ClusterId) -> None:
        """Set the incarnation of the grant that the cluster has."""

    def invite(self, invitation: Invitation, now: int) -> None:
        """Keep an invitation until it is used or expires. Raises RequestError: ``INVITATIONS_MAX`` are open."""

    def redeem(self, digest: str, cluster: ClusterId, now: int) -> bool:
        """Use an invitation: its grant is the cluster's from now on. False when it is unknown, used or expired."""
