"""grants list, grants add, grants remove, invite: what other clusters may do here."""

from __future__ import annotations

import secrets
from typing import Annotated

from typer import Argument, Option

from replication.core.grants import BY_PERSON
from replication.core.ids import NIL_UUID, ClusterId, check_name
from replication.errors import RequestError
from replication.wall_clock import now_us
from shell.cli.invocation import Invocation
from shell.cli.render import moment_text

Name = Annotated[str, Argument(metavar="NAME", help="The other cluster's name.")]
Tables = Annotated[
    list[str] | None,
    Option("--table", "-t", metavar="PATTERN", help="Tables here, such as ops.*; all if none is given."),
]
Origins = Annotated[
    list[str] | None,
    Option(
        "--origin",
        metavar="NAME",
        help="Clusters whose rows it may forward, beside its own; @carried, the default, for those its routes carry.",
    ),
]
Defines = Annotated[bool, Option("--define/--no-define", help="It may make tables here, and change them.")]


def grants_list(invocation: Invocation) -> None:
    """List what other clusters may do here: grants, peers, and clusters of the same user that send to this one."""
    from peer.grants.listed import listed

    with invocation.connect() as (cluster, printer):
        rows = [
            {
                "name": grant.cluster.name,
                "id": str(grant.cluster) if grant.cluster.incarnation != NIL_UUID else "",
                "tables": ", ".join(grant.tables) or "none",
                "origins": ", ".join(grant.origins),
                "defines": grant.defines,
                "by": grant.by,
                "since": moment_text(at) if at else "",
            }
            for grant, at in listed(cluster.ledger)
        ]
        printer.rows(rows, empty="nothing is granted to other clusters; see walship grants add")


def grants_add(
    invocation: Invocation,
    name: Name,
    tables: Tables = None,
    origins: Origins = None,
    defines: Defines = True,
    cluster_id: Annotated[
        str, Option("--id", metavar="NAME:UUID", help="Its id; else that of its first call is pinned.")
    ] = "",
) -> None:
    """Grant another cluster to send tables here, in place of what was granted to it before."""
    from peer.grants.listed import granting

    pinned = ClusterId.parse(cluster_id) if cluster_id else ClusterId(check_name(name, "cluster name"), NIL_UUID)
    if pinned.name != name:
        raise RequestError(f"{pinned} is not the id of {name}", "Give the id that `walship listclusters` shows")
    with invocation.connect() as (cluster, printer):
        grant = granting(cluster.ledger, pinned, tables or (), origins or (), defines=defines, by=BY_PERSON)
        cluster.ledger.grants.put(grant, now_us())
        define = " and define them" if defines else ""
        printer.value(grant, f"{name} may send {', '.join(grant.tables)} to {cluster.name}{define}")


def grants_remove(invocation: Invocation, name: Name) -> None:
    """Grant another cluster nothing any more, even if it is a peer or invited; grants add or invite ends that."""
    from replication.core.grants import Grant

    with invocation.connect() as (cluster, printer):
        known = cluster.ledger.grants.of(check_name(name, "cluster name"))
        of = known.grant.cluster if known is not None else ClusterId(name, NIL_UUID)
        cluster.ledger.grants.put(Grant(of, (), (), False, BY_PERSON), now_us())
        printer.value({"removed": name}, f"{name} may do nothing at {cluster.name} from now on")


def invite(
    invocation: Invocation,
    name: Name,
    tables: Tables = None,
    origins: Origins = None,
    defines: Defines = True,
    hours: Annotated[float, Option(metavar="HOURS", min=0.01, max=720, help="How long it can be used.")] = 24.0,
) -> None:
    """Invite another cluster to send tables here: it shows the text that this prints, once."""
    from peer.grants.listed import granting
    from peer.grants.rights import digest_of
    from replication.ledger.base import Invitation

    with invocation.connect() as (cluster, printer):
        now, secret = now_us(), secrets.token_urlsafe(24)
        invited = ClusterId(check_name(name, "cluster name"), NIL_UUID)
        grant = granting(cluster.ledger, invited, tables or (), origins or (), defines=defines, by="invitation")
        expires = now + int(hours * 3.6e9)
        cluster.ledger.grants.invite(Invitation(digest_of(secret), grant, expires), now)
        zookeepers = f"{cluster.config.zookeeper_servers}{cluster.config.zookeeper_root}"
        shown = {"invitation": secret, "expires": moment_text(expires)}
        printer.value(shown, secret)
        printer.note(
            f"On {name}, until {moment_text(expires)}: walship definecluster {cluster.name} {zookeepers}"
            " --invitation TEXT, where TEXT is this invitation"
        )
