"""The master's term, and what tells one cluster's past from another's. Part of ``base``, whose rules hold."""

from __future__ import annotations

from typing import Protocol

from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.core.routes.forks import TermHistory


class Terms(Protocol):
    """The master's term, and what else tells one cluster's past from another's."""

    def current(self) -> int:
        """The highest term raised; 0 at first."""

    def raise_to_next(self) -> int:
        """Raise the term by one for a new master and return it."""

    def assign(self, host: str, term: int) -> None:
        """Note that a host is about to be given work under ``term``.

        Raises:
            StaleTermError: a newer master was elected.
        """

    def assigned(self) -> dict[str, int]:
        """The newest term under which each host was to be given work: what ZooKeeper has of an older one is a copy."""

    def term_history(self) -> TermHistory:
        """The newest terms with the nonces drawn for them."""

    def recognise(self, other: ClusterId, term_history: TermHistory) -> str:
        """Remember another cluster's newest term and nonce. Returns why it is not the one known by this name.

        It may be a copy of it, or the one that was copied; "" when nothing speaks against it.
        """

    def role(self) -> RoleState:
        """The newest role that was kept, ACTIVE with epoch 1 at first; ZooKeeper has the one in force."""

    def keep_role(self, state: RoleState) -> None:
        """Remember a role, for when ZooKeeper's data are lost; one with a lower epoch changes nothing."""
