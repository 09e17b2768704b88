"""Decide what a caller may do here, by its identity and the ledger."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import replace
from hashlib import sha256

from replication import log
from replication.core.definition.schema import TableSpec
from replication.core.grants import (
    CHECKED_LATER,
    HOST_CALLS,
    NOT_GRANTED,
    ORIGIN_CALLS,
    OWN_CALLS,
    PUBLIC_CALLS,
    WRONG_CLUSTER,
    Accept,
    Caller,
    Grant,
    administrator,
    grant_of,
    unknown_caller,
)
from replication.core.ids import NIL_UUID, ClusterId
from replication.core.routes.forks import TermHistory
from replication.errors import PeerRefusedError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

_log = log.get(__name__)


class CallerRights:
    """The rights of callers, read from the ledger at each call. Safe for threads.

    Args:
        allow_plaintext: whether callers without TLS are believed, because the network is trusted.
        accept: which callers without a grant get one.
        denied: fingerprints of revoked certificates.
        administrators: names in certificates of persons who may grant here.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        allow_plaintext: bool = False,
        accept: Accept = "defined",
        denied: Container[str] = frozenset(),
        administrators: Container[str] = frozenset(),
    ) -> None:
        self._ledger = ledger
        self._allow_plaintext = allow_plaintext
        self._accept: Accept = accept
        self._denied = denied
        self._administrators = administrators

    @property
    def may_revoke(self) -> bool:
        """Whether rights may also end without a decision in the ledger: certificates can be revoked."""
        return bool(self._denied)

    def admit(self, call: str, caller: Caller) -> None:
        """Raise PeerRefusedError unless ``caller`` may make a call of that name at all."""
        if (revoked := self._revoked(caller)) is not None:
            raise revoked
        if call in PUBLIC_CALLS and (name := administrator(caller, self._administrators)):
            self._grant(caller.cluster, name)
            return
        stranger = unknown_caller(caller, self._allow_plaintext)
        if stranger is not None:
            raise stranger
        if caller.invitation:
            self._redeem(caller)
        if call in PUBLIC_CALLS:
            return
        own = self._ledger.cluster
        if (call in HOST_CALLS) != (caller.cluster.name == own.name):
            if call in HOST_CALLS:
                raise PeerRefusedError(
                    f"this is {own}, not {caller.cluster}",
                    "Only hosts of one cluster share files",
                    reason=WRONG_CLUSTER,
                )
            raise namesake(caller.cluster, own)
        if call in HOST_CALLS:
            return
        grant = self._grant_of(caller)
        if isinstance(grant, PeerRefusedError):
            if call in CHECKED_LATER and self._may_prove(caller):
                return
            if call in OWN_CALLS and self._knows(caller.cluster.name):
                return
            if not (call in ORIGIN_CALLS and self._is_origin(caller.cluster)):
                raise grant

    def _knows(self, name: str) -> bool:
        """Whether a cluster of that name is a peer, or has a grant, under whichever id."""
        made = self._ledger.grants.of(name)
        if made is not None and not made.asked:
            return bool(made.grant.tables)
        return any(peer.name == name for peer in self._ledger.rules.peers())

    def _may_prove(self, caller: Caller) -> bool:
        """Whether an opening may show that a caller is the pinned cluster, restored. If not, it asks for a grant."""
        made = self._ledger.grants.of(caller.cluster.name)
        if made is not None and not made.asked:
            return bool(made.grant.tables)
        if self._accept == "ask" and caller.certified is not None:
            self._ledger.grants.put(Grant(caller.cluster, by="asked"), now_us(), asked=True)
        return False

    def find(self, caller: Caller) -> Grant | None:
        """What is granted to ``caller``; None for nothing."""
        grant = self._grant_of(caller)
        return None if isinstance(grant, PeerRefusedError) else grant

    def of(self, caller: Caller) -> Grant:
        """What is granted to ``caller``; PeerRefusedError for nothing."""
        grant = self._grant_of(caller)
        if isinstance(grant, PeerRefusedError):
            raise grant
        return grant

    def of_sender(self, caller: Caller, former: Collection[ClusterId], history: TermHistory) -> Grant:
        """As ``of``, for a caller that opens routes: its incarnation is pinned.

        A cluster that was restored keeps its grant if it names the pinned id among its ``former`` ids. Its terms are
        those that were seen of it.
        """
        made = self._ledger.grants.of(caller.cluster.name)
        pinned = None if made is None or made.asked else made.grant.cluster
        if pinned is not None and pinned in former and self._ledger.terms.knows(pinned, history):
            self._pin(caller.cluster)
        grant = self.of(caller)
        if grant.by == "certificate":
            self._ledger.grants.put(grant, now_us())
        elif pinned is not None and pinned != grant.cluster:
            self._pin(grant.cluster)
        return grant

    def _pin(self, cluster: ClusterId) -> None:
        self._ledger.grants.pin(cluster)
        _log.info("grant_pinned", cluster=str(cluster))

    def _grant(self, cluster: ClusterId, administrator: str) -> None:
        """Grant a cluster what a usual route needs, unless a person has decided about it here."""
        own, made = self._ledger.cluster, self._ledger.grants.of(cluster.name)
        if cluster.name == own.name:
            raise namesake(cluster, own)
        if made is None or made.asked:
            self._ledger.grants.put(Grant(cluster, by=f"administrator {administrator}"), now_us())
            _log.info("administrator_granted", cluster=str(cluster), administrator=administrator)
        elif not made.grant.tables or made.grant.cluster not in (cluster, replace(cluster, incarnation=NIL_UUID)):
            raise PeerRefusedError(
                f"a person has decided on {own.name} what {cluster.name} may do: {made.grant.cluster},"
                f" tables {', '.join(made.grant.tables) or 'none'}",
                f"Change it there: walship grants add {cluster.name} --id {cluster}",
                reason=NOT_GRANTED,
            )

    def _redeem(self, caller: Caller) -> None:
        if not self._ledger.grants.redeem(digest_of(caller.invitation), caller.cluster, now_us()):
            name, own = caller.cluster.name, self._ledger.cluster.name
            raise PeerRefusedError(
                f"{own} has no open invitation of {name} like that: it was used, has expired, or was copied wrong",
                f"If {name} has used it, leave it out. Else on {own}, for another one: walship invite {name}",
                reason=NOT_GRANTED,
            )
        _log.info("invitation_used", cluster=str(caller.cluster))

    def check_sees(self, caller: Caller, specs: Iterable[TableSpec]) -> None:
        """Raise PeerRefusedError unless a caller may ask about tables here: they are granted, or sent to it."""
        grant = self.of(caller)
        if not (others := [spec for spec in specs if not grant.covers(spec.name)]):
            return
        peers = {peer.name for peer in self._ledger.rules.peers() if peer.cluster == caller.cluster}
        are_sent = {rule.table for rule in self._ledger.rules.all() if rule.peer in peers}
        for spec in others:
            if spec.uuid not in are_sent:
                check_table(grant, self._ledger.cluster, spec.name)

    def _revoked(self, caller: Caller) -> PeerRefusedError | None:
        if not caller.fingerprint or caller.fingerprint not in self._denied:
            return None
        name, own = caller.cluster.name, self._ledger.cluster.name
        what = f"{own} takes the certificate {caller.fingerprint[:16]}... of {name} no more: it is revoked"
        return PeerRefusedError(
            what, f"Give {name} another certificate, or take it out of tls.deny on {own}", reason=NOT_GRANTED
        )

    def _grant_of(self, caller: Caller) -> Grant | PeerRefusedError:
        name = caller.cluster.name
        if (revoked := self._revoked(caller)) is not None:
            return revoked
        made = self._ledger.grants.of(name)
        grant = None if made is None or made.asked else made.grant
        peer = None
        if grant is None and not caller.is_same_user:  # else it does not matter
            peer = next((peer.cluster for peer in self._ledger.rules.peers() if peer.name == name), None)
        return grant_of(caller, self._ledger.cluster, grant, peer, self._accept)

    def _is_origin(self, cluster: ClusterId) -> bool:
        return any(route.brings(cluster) for route in self._ledger.landing.routes())


def digest_of(secret: str) -> str:
    """What the ledger keeps of an invitation's secret."""
    return sha256(secret.encode()).hexdigest()


def check_table(grant: Grant, own: ClusterId, table: str) -> None:
    """Raise PeerRefusedError unless ``grant`` is for the table of that name here."""
    if not grant.covers(table):
        name = grant.cluster.name
        raise PeerRefusedError(
            f"{own.name} grants {name} no table {table}, only {', '.join(grant.tables) or 'none'}",
            f"On {own.name}: walship grants add {name} --table {table}",
            reason=NOT_GRANTED,
        )


def check_own(caller: Caller, clusters: Iterable[ClusterId]) -> None:
    """Raise PeerRefusedError unless all ``clusters`` are the caller, now or before it was restored."""
    for cluster in clusters:
        if cluster.name != caller.cluster.name:
            raise PeerRefusedError(
                f"{caller.cluster.name} asks about {cluster.name}", "A cluster asks for itself", reason=NOT_GRANTED
            )


def namesake(caller: ClusterId, own: ClusterId) -> PeerRefusedError:
    """The refusal of a caller that has this cluster's name."""
    if caller == own:
        what, remedy = f"{own.name} ships to itself", "Delete the peer that is the cluster itself"
    else:
        what, remedy = f"another cluster is named {own.name} too ({caller})", "Give each cluster its own name"
    return PeerRefusedError(what, remedy, reason=WRONG_CLUSTER)
