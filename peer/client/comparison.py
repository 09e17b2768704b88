"""Comparing a table of two clusters: the tables and columns that they share, and what answers for each side.

This process answers for its own cluster. For a peer, a process that the peer's receiver starts answers. So only the
receiver must be reachable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pyarrow as pa

from peer.client.cluster import Cluster
from peer.client.contacts import read_public
from peer.polling import polls
from peer.verify.answering import ComparisonServer
from peer.verify.compare import compare
from peer.verify.digest import KEY_HASHES, Digest, decode_buckets
from peer.verify.verdict import Verdict
from replication.core.definition.evolution import common
from replication.core.definition.schema import TableSpec
from replication.core.definition.types import storable_type
from replication.core.ids import ClusterId
from replication.core.shipping.chunk import Assignment
from replication.errors import (
    FormatError,
    PeerUnavailableError,
    ReplicationError,
    RequestError,
    TableExistsError,
    UnknownTableError,
)
from replication.link import questions as q
from replication.link.base import Conversation, PeerLink
from replication.settings import check_address
from replication.wall_clock import now_us

_POLL_S = 0.2
_FRESH_S = 10.0
_Answer = TypeVar("_Answer", bound=q.Answer)


class ComparedCluster:
    """A cluster that answers questions about its tables.

    Args:
        name: of the cluster.
        ask: gives the encoded answers to an encoded question.
    """

    def __init__(self, name: str, ask: Callable[[bytes], Iterator[bytes]]) -> None:
        self.name = name
        self._ask = ask

    def tables(self) -> frozenset[UUID]:
        """The cluster's tables."""
        return self.one(q.AskTables(), q.TablesAnswer).uuids

    def about(self, spec: TableSpec) -> q.About:
        """A table's definition there, and the times it can be read as of."""
        return self.one(q.AskTable(spec.uuid, spec.name), q.About)

    def one(self, question: q.Question, kind: type[_Answer]) -> _Answer:
        """The one answer to a question."""
        found = next(self.several(question))
        if not isinstance(found, kind):
            raise FormatError(f"{self.name} answered {type(question).__name__} with {type(found).__name__}")
        return found

    def several(self, question: q.Question) -> Iterator[q.Answer]:
        """All answers to a question."""
        return map(q.decode_answer, self._ask(q.encode_question(question)))


class ComparedTable:
    """``compare.Side``: a table of a cluster that is asked. It is its own ``compare.OpenedSide`` once it is opened."""

    def __init__(self, cluster: ComparedCluster, spec: TableSpec, groups: Sequence[str]) -> None:
        self.name = cluster.name
        self._cluster = cluster
        self._spec = spec
        self._groups = tuple(groups)
        self._digest: Digest | None = None

    def reached(self) -> tuple[int, int | None]:
        """Replicated time, and the earliest time that the table can be read as of."""
        about = self._cluster.about(self._spec)
        return about.replicated, about.earliest

    def open(self, as_of: int | None) -> ComparedTable:
        """All live rows."""
        question = q.AskRead(self._spec, self._groups, q.NOW if as_of is None else as_of)
        whole = self._cluster.one(question, q.Whole)
        self._digest = Digest(whole.rows, whole.content)
        return self

    def digest(self) -> Digest:
        """Rows and content hash."""
        assert self._digest is not None, "it is open"
        return self._digest

    def buckets(self) -> dict[int, tuple[int, int]]:
        """Rows and content hash of every bucket that holds rows."""
        return decode_buckets(self._cluster.one(q.AskBuckets(), q.Packed).buckets)

    def keys(self, buckets: Sequence[int]) -> Iterable[pa.RecordBatch]:
        """The keys of the rows of some buckets, and their hashes. FormatError when they are of other columns."""
        wanted = [(name, self._spec.by_name[name].type) for name in self._spec.key or self._spec.by_name]
        for answer in self._cluster.several(q.AskKeys(tuple(buckets))):
            if isinstance(answer, q.RowsAnswer):
                found = [(field.name, storable_type(field.type, field.name)) for field in answer.batch.schema]
                if found != [*wanted, *KEY_HASHES]:
                    raise FormatError(f"{self._cluster.name} answered with rows of other columns than were asked for")
                yield answer.batch


@contextmanager
def own_side(cluster: Cluster, other: str) -> Iterator[ComparedCluster]:
    """A cluster that answers in this process; ``other`` is the name of the cluster it is compared with."""
    with tempfile.TemporaryDirectory(prefix="walship-verify-") as spill:
        answering = ComparisonServer(cluster.config, cluster.ledger, other, Path(spill))
        with closing(answering):
            yield ComparedCluster(cluster.name, answering.answers)


@contextmanager
def peer_side(link: PeerLink, source: ClusterId, expected: ClusterId) -> Iterator[ComparedCluster]:
    """A cluster that answers over the link.

    Raises:
        PeerUnavailableError: the receiver does not answer.
        PeerRefusedError: it does not answer this cluster, or not now.
    """
    with closing(link.compare(source, expected)) as conversation:
        yield ComparedCluster(expected.name, lambda question: _converse(conversation, question))


@contextmanager
def other_side(cluster: Cluster, other: str, zookeepers: str = "", receiver: str = "") -> Iterator[ComparedCluster]:
    """Another cluster, which answers through one of its receivers.

    Args:
        cluster: this one.
        other: a peer of it, or any name for messages.
        zookeepers: the address of a cluster that is not a peer.
        receiver: ``host:port`` of a peer's receiver. Without it, the receivers are looked up in the peer's ZooKeeper.
            If that does not answer, the assignments in this cluster's ZooKeeper are used.

    Raises:
        RequestError: it is this cluster itself, or a receiver was given for a cluster that is not a peer.
        PeerUnavailableError, PeerRefusedError: as ``peer_side``.
    """
    peer = next((peer for peer in cluster.ledger.rules.peers() if peer.name == other), None)
    if peer is None and receiver:
        raise RequestError(f"{other} is not a peer of {cluster.name}", "Define it, or leave out --receiver")
    identity = peer.cluster if peer is not None else None
    addresses: Sequence[str] = (receiver,)
    if receiver:
        check_address(receiver)
    else:
        try:
            public = read_public(peer.zookeepers if peer is not None else zookeepers, cluster.contacts.zookeeper_tls)[1]
            identity, addresses = identity or public.cluster, public.receivers
        except PeerUnavailableError:
            addresses = _assigned_addresses(cluster, other) if peer is not None else ()
            if not addresses:
                raise
    assert identity is not None
    if identity == cluster.id:
        raise RequestError(f"{other} is this cluster itself", "Name another")
    with cluster.contacts.link_to(identity.name, addresses) as link, peer_side(link, cluster.id, identity) as asked:
        yield asked


def _assigned_addresses(cluster: Cluster, peer: str) -> tuple[str, ...]:
    """The addresses of a peer's receivers that the master assigned to the workers."""
    reads = cluster.coordination.assignments().values()
    tails = [Assignment.decode(read.content).tail(peer) for read in reads]
    return tuple(sorted({address for tail in tails if tail is not None for address in tail.receivers}))


def _converse(conversation: Conversation, question: bytes) -> Iterator[bytes]:
    """The answers to a question: one, or for keys all up to ``End``."""
    conversation.ask(question)
    many = isinstance(q.decode_question(question), q.AskKeys)
    while True:
        answer = conversation.answer()
        yield answer
        if not many or not isinstance(q.decode_answer(answer), q.RowsAnswer):
            return


def shared_tables(left: Cluster, right: ComparedCluster) -> list[str]:
    """Names, on ``left``, of the tables that both clusters have."""
    there = right.tables()
    return [spec.name for spec in left.tables() if spec.uuid in there]


def unmatched_tables(left: Cluster, right: ComparedCluster) -> list[ReplicationError]:
    """Why tables of ``left`` cannot be compared: ``right`` lacks those that it is sent, or has others so named."""
    there = right.tables()
    sent = {rule.table for rule in left.ledger.rules.all() if rule.peer == right.name}
    asked = [(spec, right.about(spec)) for spec in left.tables() if spec.uuid not in there]
    return [_absent(left, right.name, spec, other) for spec, other in asked if other.is_taken or spec.uuid in sent]


def compare_clusters(left: Cluster, right: Cluster, tables: Sequence[str], timeout_s: float) -> list[Verdict]:
    """Compare tables of two clusters whose files this process can read; see ``compare_sides``."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(own_side(one, other.name)) for one, other in ((left, right), (right, left)))
        since = now_us()
        return [compare_sides(left, here, there, table, timeout_s, since) for table in tables]


def _remedy(cluster: Cluster, spec: TableSpec, there: str) -> str:
    if all(peer.name != there for peer in cluster.ledger.rules.peers()):
        return f"Define {there} as a peer of {cluster.name} first: walship definecluster"
    if all(rule.table != spec.uuid or rule.peer != there for rule in cluster.ledger.rules.all()):
        return f"walship enablereplication {there} -t {spec.name} --bootstrap"
    return (
        "It is sent there: see walship status. A table that was dropped there cannot be made again: write its rows"
        " to a new table of another name"
    )


def _absent(cluster: Cluster, there: str, spec: TableSpec, other: q.About) -> ReplicationError:
    if other.is_taken:
        return TableExistsError(
            f"{spec.name} on {there} is another table than on {cluster.name}",
            "One of them was made by hand; drop that one, then enable replication again",
        )
    return UnknownTableError(
        f"{there} does not have the table {spec.name} of {cluster.name}", _remedy(cluster, spec, there)
    )


def _shared(
    cluster: Cluster, here: ComparedCluster, there: ComparedCluster, spec: TableSpec
) -> tuple[TableSpec, list[str]]:
    """What both sides have of a table: the definition with their columns, and the groups; errors are as below."""
    mine, other = here.about(spec), there.about(spec)
    if other.spec is None or other.is_taken:
        raise _absent(cluster, there.name, spec, other)
    groups = [g.name for g in spec.groups if g.name in {*mine.groups, *other.groups}] or [g.name for g in spec.groups]
    shared = common(spec, other.spec, groups)
    if not shared.columns:
        raise UnknownTableError(
            f"{spec.name} has no column on both {here.name} and {there.name}",
            f"Compare them: walship describetable {spec.name}, on both",
        )
    return shared, groups


def compare_sides(
    cluster: Cluster,
    here: ComparedCluster,
    there: ComparedCluster,
    table: str,
    timeout_s: float,
    since: int | None = None,
) -> Verdict:
    """Compare a table that both clusters have.

    Args:
        cluster: one of them.
        here: answers for it.
        there: answers for the other, where the same table may have another name.
        table: ``namespace.name`` on ``cluster``.
        timeout_s: how long to wait until both have what was under way at ``since``; less for a table that is held.
        since: microseconds since 1970; None for now. Who compares many tables gives the time it began, and waits once.

    Raises:
        UnknownTableError: one side does not have the table.
        TableExistsError: the other side has another table of that name.
        PeerUnavailableError, PeerRefusedError: the other side stopped answering.
    """
    spec = cluster.table(table)
    shared, groups = _shared(cluster, here, there, spec)
    sides = ComparedTable(here, shared, groups), ComparedTable(there, shared, groups)
    wait = _Wait((here, there), shared, timeout_s, since or now_us())
    verdict = compare(table, spec.key, *sides, wait, values=[name for name in shared.by_name if name not in spec.key])
    left, right = (replace(each, held=wait.held.get(each.cluster, "")) for each in (verdict.left, verdict.right))
    return replace(verdict, left=left, right=right)


class _Wait:
    """Waits until both clusters have what was under way. Once one was held all through a wait, it is not awaited again.

    ``held`` has the reasons of the last wait, by cluster.
    """

    def __init__(self, clusters: Sequence[ComparedCluster], spec: TableSpec, timeout_s: float, since: int) -> None:
        first = (min(timeout_s, _FRESH_S), since)  # which need not be up to date
        self._rounds = chain([first], ((timeout_s, now_us()) for _ in count()))
        self._clusters = clusters
        self._spec = spec
        self.held: dict[str, str] = {}

    def __call__(self) -> bool:
        within_s, moment = next(self._rounds)
        before, self.held = self.held, {}
        for look, _ in enumerate(polls(within_s, _POLL_S)):
            found = {cluster.name: cluster.about(self._spec) for cluster in self._clusters}
            held = {name: about.held for name, about in found.items() if about.held}
            self.held = {name: why for name, why in held.items() if not look or name in self.held}
            if min(about.replicated for about in found.values()) >= moment:
                self.held = {}
                return True
            if before.keys() & self.held.keys():
                break
        return False
