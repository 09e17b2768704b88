"""Who calls, and what a caller may do here: what is not granted is refused. Pure.

A caller is a cluster: its certificate names it, and its incarnation is the one that was pinned. Without TLS only the
same user on one machine is known, or whoever a network that is trusted lets through.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from replication.core.ids import NIL_UUID, ClusterId
from replication.errors import PeerRefusedError

Accept = Literal["defined", "ask", "any-certified"]
BY_PERSON = "person"
NOT_GRANTED = "NOT_GRANTED"
WRONG_CLUSTER = "WRONG_CLUSTER"
CARRIED = "@carried"  # no cluster can have that name
#: Calls that any caller may make: the answer tells strangers no more than ZooKeeper's public node does.
PUBLIC_CALLS = frozenset({"Describe"})
#: Calls that check their grant themselves: a restored cluster proves there that it is the one that was pinned.
CHECKED_LATER = frozenset({"OpenRoute", "Ship"})
#: Calls between hosts of one cluster.
HOST_CALLS = frozenset({"Read"})
#: Calls about the caller itself, which an incarnation that is not known here yet may make, too.
OWN_CALLS = frozenset({"GetSuccessions"})
#: Calls that the origin of frames may make at every cluster that they reach, about its own streams.
ORIGIN_CALLS = frozenset({"Reached"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The cluster that a caller says it is, and what proves it.

    ``certified`` are the cluster names in its certificate, None without TLS. ``is_same_user``: the connection belongs
    to the user on this machine that the receiver runs as. ``invitation`` is the secret of one that it shows.
    ``fingerprint`` is the SHA-256 of its certificate.
    """

    cluster: ClusterId
    certified: frozenset[str] | None = None
    is_same_user: bool = False
    invitation: str = field(default="", repr=False)
    fingerprint: str = ""

    @property
    def proved_name(self) -> str:
        """The name that is proved, for counts of refused calls."""
        if self.certified is None:
            return self.cluster.name if self.is_same_user else "callers without TLS"
        return self.cluster.name if self.cluster.name in self.certified else min(self.certified, default="nobody")

    @property
    def bounded_name(self) -> str:
        """The name whose bounds hold: what its certificate proves, else what it says."""
        return self.cluster.name if self.certified is None else self.proved_name


@dataclass(frozen=True, slots=True)
class Grant:
    """What a cluster may do here.

    ``tables`` are names and patterns of tables here that it may send, ask about and compare. ``origins`` are names and
    patterns of clusters whose frames it may forward, beside its own; ``CARRIED`` among them stands for those that its
    routes carry. Without ``defines`` it changes no definition. ``by`` says where the grant comes from. A grant of no
    tables denies everything.
    """

    cluster: ClusterId
    tables: tuple[str, ...] = ("*",)
    origins: tuple[str, ...] = (CARRIED,)
    defines: bool = True
    by: str = ""

    def covers(self, table: str) -> bool:
        """Whether the grant is for the table of that name here."""
        return is_covered(table, self.tables)

    def forwards(self, origin: ClusterId, carried: Container[ClusterId] = ()) -> bool:
        """Whether frames of ``origin`` may come from this cluster, whose routes carry those origins."""
        if origin.name == self.cluster.name or CARRIED in self.origins and origin in carried:
            return True
        return is_covered(origin.name, self.origins)


def is_covered(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is among names and patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def administrator(caller: Caller, names: Container[str]) -> str:
    """The administrator among ``names`` whose certificate is shown for another name's cluster; "" for none."""
    if caller.certified is None or caller.cluster.name in caller.certified:
        return ""
    return min((name for name in caller.certified if name in names), default="")


def unknown_caller(caller: Caller, allow_plaintext: bool) -> PeerRefusedError | None:
    """Why a caller is not believed to be the cluster that it says it is; None when it is."""
    name = caller.cluster.name
    if caller.certified is not None:
        if name in caller.certified:
            return None
        return PeerRefusedError(
            f"the certificate is for {', '.join(sorted(caller.certified)) or 'nobody'}, not for {name}",
            "Give the cluster a certificate whose subject alternative name is its own name",
            reason=WRONG_CLUSTER,
        )
    if caller.is_same_user or allow_plaintext:
        return None
    return PeerRefusedError(
        f"{name} calls without TLS, and not as the user that the receiver runs as",
        "Without TLS only clusters of one user on one machine reach each other: set tls.ca, tls.cert and tls.key",
        reason=NOT_GRANTED,
    )


def grant_of(
    caller: Caller, own: ClusterId, made: Grant | None, peer: ClusterId | None, accept: Accept = "defined"
) -> Grant | PeerRefusedError:
    """What a caller may do here, or why nothing. A grant that was made comes before what policy says.

    ``caller`` is proved. ``made`` is the grant for its name, its incarnation zeros until it is pinned; ``peer`` the
    peer of its name that is defined here.
    """
    name = caller.cluster.name
    if made is not None and not made.tables:
        return _nothing(caller, own)
    if made is not None:
        is_pinned = made.cluster.incarnation != NIL_UUID
        if made.cluster == caller.cluster or not is_pinned or caller.is_same_user:
            return replace(made, cluster=caller.cluster)
        return _another(caller, own, made.cluster, f"walship grants add {name} --id {caller.cluster}")
    if caller.is_same_user:
        return Grant(caller.cluster, origins=("*",), by="same user")
    if peer == caller.cluster:
        return Grant(caller.cluster, by="peer")
    if peer is not None:
        return _another(caller, own, peer, f"walship deletecluster {name}, then definecluster")
    if accept == "any-certified" and caller.certified is not None:
        return Grant(caller.cluster, by="certificate")
    return _nothing(caller, own)


def _another(caller: Caller, own: ClusterId, known: ClusterId, verb: str) -> PeerRefusedError:
    return PeerRefusedError(
        f"{own.name} knows {known.name} as {known}, not as {caller.cluster}",
        f"If {known.name} was restored, say so on {own.name}: {verb}",
        reason=NOT_GRANTED,
    )


def _nothing(caller: Caller, own: ClusterId) -> PeerRefusedError:
    return PeerRefusedError(
        f"{own.name} grants nothing to {caller.cluster}",
        f"On {own.name}: walship grants add {caller.cluster.name} --id {caller.cluster}; or walship invite"
        f" {caller.cluster.name}, and on {caller.cluster.name} definecluster with --invitation",
        reason=NOT_GRANTED,
    )
