"""The master's term, the cluster's role, and how copies of a cluster are detected. The guarantees of ``base`` apply."""

from __future__ import annotations

from typing import Protocol

from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.core.routes.forks import TermHistory


class Terms(Protocol):
    """The master's term, the cluster's role, and the histories by which a copied cluster is detected."""

    def current(self) -> int:
        """The highest term raised; 0 at first."""

    def raise_to_next(self) -> int:
        """Raise the term by one for a new master and return it."""

    def assign(self, host: str, term: int) -> None:
        """Record that a host is about to be assigned work under ``term``.

        Raises:
            StaleTermError: a newer master was elected.
        """

    def assigned(self) -> dict[str, int]:
        """The newest term under which each host was assigned work; older assignments in ZooKeeper are stale."""

    def term_history(self) -> TermHistory:
        """The newest terms, each with its random nonce."""

    def recognise(self, other: ClusterId, term_history: TermHistory) -> str:
        """Store another cluster's newest term and nonce; return "" when its history fits what is stored.

        Otherwise return why not: the other cluster is a copy of the known one, or its original.
        """

    def knows(self, other: ClusterId, term_history: TermHistory) -> bool:
        """Whether ``term_history`` has the newest term and nonce that were stored of another cluster."""

    def role(self) -> RoleState:
        """The newest stored role, ACTIVE with epoch 1 at first; the role in force is in ZooKeeper."""

    def keep_credential(self, drawn: str) -> str:
        """Store the credential of the cluster's nodes in ZooKeeper if none is stored; return the stored one."""

    def keep_role(self, state: RoleState) -> None:
        """Store a role in case ZooKeeper's data are lost; a lower epoch changes nothing."""
