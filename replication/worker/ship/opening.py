"""Opens a stream: checks the peer's identity, declares the routes to it, and reads what it already has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from replication import __version__, log
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import Tail
from replication.errors import PeerRefusedError
from replication.ledger.base import Ledger, PeerProgress, Phase, Rule
from replication.link.base import (
    HELLO_FILES_MAX,
    FileStatus,
    Hello,
    OpenReply,
    PeerLink,
    Reason,
    Route,
    ShipSession,
    id_clash,
)
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.routes import routes_of
from replication.worker.ship.schemas import PeerSchemas
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.shipment import Shipment

OLDER_COPY_REMEDY = (
    "{} are from a backup, or the original runs elsewhere. Stop the cluster, then{}: walship reincarnate; if only"
    " the ledger was restored: walship rebuildledger"
)
_REPLACED = (
    "{} was dropped here, and another table has its name now, here and there. To go on without the rows of the dropped"
    ' one: [worker] dropped_tables = "skip"'
)
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Resume:
    """What the peer has of the requested files, and the status of files of which it lost bytes."""

    have: Mapping[FileId, FileStatus]
    lost: Mapping[FileId, FileStatus]

    def durable(self, file: FileId, shipped: Ranges) -> Ranges:
        """Return the ranges of a file that are durable at the peer; ``shipped`` were durable at some time."""
        if file in self.lost:
            shipped = shipped.intersect(self.lost[file].status.shipped)
        return shipped.union(self.have[file].status.shipped) if file in self.have else shipped


@dataclass(frozen=True, slots=True)
class Destination:
    """What a stream is opened with: the peer, its rules, and the term and role epoch to send.

    ``generation`` is that of the newest rule when the rules were read; 0 when it was not read.
    """

    peer: str
    cluster: ClusterId
    rules: Sequence[Rule]
    term: int
    role_epoch: int
    generation: int = 0

    @staticmethod
    def of(ledger: Ledger, tail: Tail, term: int, role_epoch: int) -> Destination:
        """Read the peer's current rules."""
        generation = ledger.rules.generation()  # read first: no rule up to this generation is missing then
        rules = [rule for rule in ledger.rules.all() if rule.peer == tail.peer]
        return Destination(tail.peer, tail.peer_cluster, rules, term, role_epoch, generation)


def open_shipment(
    link: PeerLink, context: PeerContext, to: Destination, files: Sequence[FileId]
) -> tuple[Shipment, Resume]:
    """Open a stream. Tables that the peer refuses are withheld; its losses are reported to the ledger.

    Returns:
        The shipment, and what the peer has of each of ``files``.

    Raises:
        PeerRefusedError: the peer refuses this cluster, or another cluster answered.
        PeerUnavailableError: the peer did not answer.
    """
    routes = tuple(routes_of(context.ledger, to.rules, to.cluster))
    session = _open(link, context.ledger, to, routes, files)
    opened = session.opened
    with _closed_on_error(session):
        selection = _accepted(context, to, opened)
    known = [(version.table, version.hash) for route in routes for version in route.schemas]
    schemas = PeerSchemas(context.ledger, selection.rules, known)
    losses = {file: loss.losses for file, loss in opened.lost.items()}
    shipment = Shipment(session, to.peer, context, selection, schemas, to.term, losses)
    for file, loss in opened.lost.items():
        context.progress.report(PeerProgress(file, to.peer, losses=loss.losses, kept=loss.status.shipped))
    return shipment, Resume(opened.files, opened.lost)


def _accepted(context: PeerContext, to: Destination, opened: OpenReply) -> FrameFilter:
    """Return the filter of the rules, with the refused tables withheld.

    With ``dropped_tables = "skip"``, frames of a table that is dropped here and at the peer are skipped: they count as
    sent. So are those of one that is dropped here, if a table that was made here since has its name at the peer.
    """
    selection = FrameFilter.of(to.cluster, to.rules)
    for rule in to.rules:
        if rule.phase is Phase.NEEDS_BOOTSTRAP:
            _log.error("table_needs_bootstrap", peer=to.peer, table=rule.remote_table, group=rule.group)
    skip_dropped = context.limits.dropped_tables == "skip"
    live = {spec.uuid for spec in context.ledger.tables.all()} if opened.refused else set()
    names = {rule.table: rule.remote_table for rule in to.rules}
    there = [rule for rule in to.rules if rule.table in live and (rule.table, rule.group) not in opened.refused]
    taken = {rule.remote_table for rule in there}
    for (table, group), refusal in opened.refused.items():
        replaced = refusal.reason is Reason.TABLE_CONFLICT and table not in live and names.get(table) in taken
        if skip_dropped and table not in live and (refusal.reason is Reason.UNKNOWN_TABLE or replaced):
            _log.warning("dropped_table_skipped", peer=to.peer, table=str(table), group=group)
            selection = selection.passing_over(table)
            continue
        error = _REPLACED.format(names[table]) if replaced else str(refusal.error())
        _log.warning("route_refused", peer=to.peer, table=str(table), group=group, error=error)
        selection = selection.without(table, error)
    return selection


def _open(
    link: PeerLink, ledger: Ledger, to: Destination, routes: tuple[Route, ...], files: Sequence[FileId]
) -> ShipSession:
    """Open a stream, and check that the intended cluster answered.

    An id clash is tried a second time: the first may come from a message that another stream had overtaken.
    """
    try:
        return _open_once(link, ledger, to, routes, files)
    except PeerRefusedError as error:
        if error.reason != Reason.ID_CLASH.value:
            raise
    return _open_once(link, ledger, to, routes, files)


def _open_once(
    link: PeerLink, ledger: Ledger, to: Destination, routes: tuple[Route, ...], files: Sequence[FileId]
) -> ShipSession:
    terms = tuple((file, to.term) for file in files[:HELLO_FILES_MAX])  # of others the ledger says what is there
    term_history = ledger.terms.term_history()
    acked = ledger.files.last_seen_by(to.cluster)  # read before the peer lists the files that it has seen
    hello = Hello(
        ledger.cluster,
        to.cluster,
        to.role_epoch,
        __version__,
        routes,
        terms,
        term_history=term_history,
        generation=to.generation,
        former=ledger.former,
        zookeepers=ledger.successions.address(ledger.cluster),
        successions=tuple(each.encode() for each in ledger.successions.known().reported),
    )
    session = link.ship(hello)
    with _closed_on_error(session):
        error = _identity_error(ledger, to, session.opened, acked)
        if error is not None:
            raise error
    return session


@contextmanager
def _closed_on_error(session: ShipSession) -> Iterator[None]:
    """End a stream that nobody gets since the block raises: its threads would wait for ever."""
    try:
        yield
    except BaseException:
        session.close()
        raise


def _identity_error(
    ledger: Ledger, to: Destination, opened: OpenReply, acked: Sequence[FileId]
) -> PeerRefusedError | None:
    """Return an error when another cluster answered, or when one of the two clusters is an older copy."""
    if opened.cluster != to.cluster:
        return PeerRefusedError(
            f"{opened.cluster} answered instead of {to.cluster}",
            "The peer was restored, or another cluster has its address; define it again (deletecluster, definecluster)",
            reason="WRONG_CLUSTER",
        )
    clash = ledger.terms.recognise(opened.cluster, opened.term_history)
    if clash:
        return id_clash(opened.cluster, clash).error()
    ahead = ledger.files.overtaken(to.cluster, opened.newest)
    if ahead is not None:
        why = f"{to.cluster.name} knew file {ahead.local} before the ledger here had given that number"
        remedy = OLDER_COPY_REMEDY.format("This cluster's data", "")
        return id_clash(ledger.cluster, why, remedy).error()
    newest = {file.slot: file for file in opened.newest}
    forgotten = next((file for file in acked if file.slot not in newest or newest[file.slot] < file), None)
    if forgotten is not None:
        why = f"it acked bytes of file {forgotten.local} but no longer knows that file"
        remedy = OLDER_COPY_REMEDY.format(f"The data of {opened.cluster.name}", " on it")
        return id_clash(opened.cluster, why, remedy).error()
    return None
