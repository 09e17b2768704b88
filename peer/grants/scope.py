"""What one stream may bring: frames of its routes, of origins that it may forward, and never this cluster's own."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from replication.core.definition.schema import TableSpec
from replication.core.frame import SealedHeader
from replication.core.grants import NOT_GRANTED, Caller, Grant
from replication.core.ids import ClusterId
from replication.errors import PeerRefusedError
from replication.ledger.base import Ledger
from replication.link.base import Known

RouteKey = tuple[UUID, str]  # table and group


class StreamScope:
    """The rights of one stream, decided when it opens. For the thread that reads the stream.

    Args:
        ledger: the cluster's, to read again what a sender's routes carry.
        routes: the routes that the stream opened.

    Attributes:
        revoked: why nothing more is taken, since the grant has changed; None while it has not.
    """

    def __init__(self, caller: Caller, grant: Grant, ledger: Ledger, routes: Collection[RouteKey]) -> None:
        self.caller = caller
        self.grant = grant
        self.revoked: PeerRefusedError | None = None
        self._ledger = ledger
        self._routes = frozenset(routes)
        self._tables = frozenset(table for table, _ in routes)
        self._origins = {caller.cluster}

    def refresh(self, grant: Grant | None) -> None:
        """Take nothing more when the caller's grant is no longer that with which the stream was opened."""
        if grant != self.grant:
            name, own = self.caller.cluster.name, self._ledger.cluster.name
            what = f"{own} has changed what it grants {name} since the stream was opened"
            hint = f"The stream is opened again. On {own}: walship grants list"
            self.revoked = PeerRefusedError(what, hint, reason=NOT_GRANTED)

    def check_origin(self, origin: ClusterId) -> None:
        """Raise PeerRefusedError when a frame is of this cluster itself, and not of before it was restored."""
        if origin.name == self._ledger.cluster.name and origin not in self._ledger.former:
            raise PeerRefusedError(
                f"a frame of {origin} is of this cluster itself",
                "A cluster takes frames of its own only after a restore: check that no other cluster has its name",
                reason=NOT_GRANTED,
            )

    def check_frame(self, header: SealedHeader) -> None:
        """Raise PeerRefusedError when a frame is of no route of the stream, or of an origin that it may not bring.

        It is of a table; of others ``believes`` says whether they count.
        """
        name, own = self.caller.cluster.name, self._ledger.cluster.name
        if (header.table, header.group) not in self._routes:
            raise PeerRefusedError(
                f"{name} has no open route of group {header.group!r} of table {header.table} to {own}",
                f"Open it on {name}: walship enablereplication",
                reason=NOT_GRANTED,
            )
        if header.wal.cluster not in self._origins and not self.believes(header.wal.cluster):
            origin = header.wal.cluster.name
            raise PeerRefusedError(
                f"{name} forwards a frame of {origin}, which none of its routes to {own} carries",
                f"On {own}, if that is right: walship grants add {name} --origin @carried --origin {origin}",
                reason=NOT_GRANTED,
            )

    def believes(self, origin: ClusterId) -> bool:
        """Whether frames of ``origin`` count when this stream brings them."""
        if origin in self._origins:
            return True
        if origin in self._ledger.former:
            found = True
        else:
            found = self.grant.forwards(origin, self._ledger.landing.carried_by(self.caller.cluster))
        if found:
            self._origins.add(origin)
        return found

    def believes_times(self, origin: ClusterId) -> bool:
        """Whether closed times of ``origin`` count. Another id of the sender's name writes nothing, so its do not."""
        is_other = origin.name == self.caller.cluster.name and origin != self.caller.cluster
        return not is_other and self.believes(origin)

    def check_known(self, known: Collection[Known]) -> None:
        """Raise PeerRefusedError when a definition or schema version is of a table that has no route of the stream."""
        for each in known:
            table: UUID = each.uuid if isinstance(each, TableSpec) else each.table
            if table not in self._tables:
                raise PeerRefusedError(
                    f"{self.caller.cluster.name} defines table {table} of {self._ledger.cluster.name} without a route",
                    "Open a route of the table first: walship enablereplication",
                    reason=NOT_GRANTED,
                )
