"""What a cluster answers to others: who it is, whether a sender may ship, which routes are open, what is applied.

Every refusal is typed and names the remedy. What is remembered here only saves questions to the ledger, which decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import structlog

from peer.receive.arrival import KnownSchemas
from peer.receive.clock_watch import ClockWatch
from peer.receive.inbound import Gate, InboundStream
from peer.receive.landing import Landing
from peer.receive.range_reads import RangeReads
from peer.receive.received import REMEMBERED
from peer.status.replay_report import silence
from replication import __version__
from replication.core.coverage import Span
from replication.core.definition.define import unusable_name
from replication.core.definition.evolution import join, lacking
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.roles import RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import Reach
from replication.errors import PeerRefusedError, SchemaError, TableExistsError, UnknownTableError
from replication.ledger.base import Ledger
from replication.link.base import (
    PROTOCOL,
    Conversation,
    Description,
    Hello,
    Loss,
    OpenReply,
    Reason,
    Refusal,
    Reply,
    Route,
    id_clash,
)

_SETTLE_S = 1.0
_log = structlog.get_logger(__name__)


class Reception:
    """``ReceiverService`` over a ledger and a landing. Safe for threads."""

    def __init__(
        self,
        ledger: Ledger,
        landing: Landing,
        role: Callable[[], RoleState],
        message_bytes_max: int = 8 << 20,
        keeps_tables: Callable[[], bool] = lambda: True,
        answer: Callable[[ClusterId], Conversation] | None = None,
        reads: RangeReads | None = None,
    ) -> None:
        self._ledger = ledger
        self._landing = landing
        self._role = role
        self._keeps_tables = keeps_tables
        self._answer = answer
        self._reads = reads or RangeReads(ledger, "")
        self._lock = threading.Lock()
        self._terms: dict[FileId, int] = {}
        self._schemas: set[bytes] = set()
        self._joined: dict[UUID, TableSpec] = {}
        self._tables: frozenset[UUID] = frozenset()
        self._gate = Gate(
            KnownSchemas(ledger.cluster, self._has_table, self._has_schema),
            message_bytes_max,
            self._accept_term,
            self._learn,
            ClockWatch(ledger).look,
        )

    def describe(self) -> Description:
        """Who this is."""
        role = self._role()
        replicated = {origin: found.t for origin, found in self._ledger.time.replicated().items()}
        peers = {peer.name: peer.zookeepers for peer in self._ledger.rules.peers()}
        return Description(self._ledger.cluster, __version__, role.role.value, role.epoch, replicated, peers=peers)

    def get_schema(self, name: bytes) -> SchemaVersion | None:
        """The schema version of that hash."""
        return self._ledger.tables.schema(name)

    def get_table(self, name: str) -> TableSpec | None:
        """The definition of the table of that name; None when there is none."""
        try:
            return self._ledger.tables.get(name)
        except UnknownTableError:
            return None

    def progress(self, files: Sequence[FileId]) -> dict[FileId, int]:
        """How far each source file is applied here."""
        return dict(self._ledger.landing.applied_prefix(files, keeps_tables=self._keeps_tables()))

    def lost(self, files: Sequence[FileId]) -> dict[FileId, Loss]:
        """Those source files of which a landing file was salvaged, and what is received of them now."""
        found = self._ledger.landing.losses(files)
        return {file: Loss(count, kept.spans) for file, (count, kept) in found.items()}

    def reached(self, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
        """Whether everything up to these sequences is here, by whatever route it came; and whether replay is silent."""
        found = self._ledger.time.reached(sequences)
        if all(each.applied or not each.durable for each in found.values()):
            return found
        silent = silence(self._ledger.replay)
        return {
            stream: replace(each, held_by=f"{each.held_by} (replay there {silent})")
            if silent and each.durable and not each.applied
            else each
            for stream, each in found.items()
        }

    def open_route(self, source: ClusterId, expected: ClusterId, route: Route, caller: frozenset[str] | None) -> None:
        """Make a table ready: create it when missing, with the sender's uuid; learn schemas; note what is required."""
        self._check_caller(source, expected, caller)
        full = self._landing.room.lacking_for(route.bootstrap_bytes)
        if full:
            raise Refusal(
                Reason.DISK_FULL,
                full,
                "Free disk space there, or send only what is written from now on: enablereplication --from-now, after"
                " disablereplication if it is sent",
            ).error()
        self.refresh()
        self._open_route(source, route, self._declared(source))

    def ship(
        self, hello: Hello, reply: Callable[[Reply], None], caller: frozenset[str] | None
    ) -> tuple[OpenReply, InboundStream]:
        """Open a stream; routes that cannot be opened are named in the answer and hold up no other."""
        self._check_caller(hello.source, hello.expected, caller)
        if hello.protocol != PROTOCOL:
            older = "this cluster" if hello.protocol > PROTOCOL else hello.source.name
            raise Refusal(
                Reason.VERSION,
                f"{hello.source.name} (walship {hello.version}) speaks protocol {hello.protocol}, not {PROTOCOL}",
                f"Upgrade walship on {older}",
            ).error()
        self._check_term_history(hello)
        self._check_epoch(hello)
        self.refresh()  # a table dropped just now is refused, not landed
        declared = self._declared(hello.source)
        self._close_ended(hello, declared)
        self._forget_former(hello)
        refused: dict[tuple[UUID, str], Refusal] = {}
        for route in hello.routes:
            try:
                self._open_route(hello.source, route, declared)
            except PeerRefusedError as error:
                refused[route.spec.uuid, route.group] = replace(Refusal.of(error), table=route.spec.uuid)
        files: dict[FileId, tuple[Span, ...]] = {}
        lost = self.lost([file for file, _ in hello.files])
        self._landing.received.forget_former(hello.former)
        self._landing.received.heed({file: loss.count for file, loss in lost.items()})
        generation = max((route.generation for route in hello.routes), default=0)
        if hello.files:
            self._landing.settle(_SETTLE_S)  # what came by the stream before need not come again
        for file, _ in hello.files:
            files[file] = self._landing.received.complete(file, generation).spans
        _log.info("stream_opened", source=str(hello.source), routes=len(hello.routes), files=len(files))
        inbound = InboundStream(self._gate, self._landing, reply, hello.source.name, generation)
        term_history, newest = self._ledger.terms.term_history(), self._ledger.landing.newest(hello.source)
        return OpenReply(self._ledger.cluster, __version__, files, refused, lost, term_history, newest), inbound

    def compare(self, source: ClusterId, expected: ClusterId, caller: frozenset[str] | None) -> Conversation:
        """Begin to answer about tables."""
        self._check_caller(source, expected, caller)
        if self._answer is None or not self._keeps_tables():
            raise Refusal(
                Reason.NOT_READY,
                f"{self._ledger.cluster.name} keeps no tables to compare with",
                "Compare with a cluster that replays what it lands",
            ).error()
        return self._answer(source)

    def read(self, ask: bytes, caller: frozenset[str] | None) -> Iterator[bytes]:
        """Give registered bytes of this host's files to another host of the cluster."""
        return self._reads.read(ask, caller)

    def _check_caller(self, source: ClusterId, expected: ClusterId, caller: frozenset[str] | None) -> None:
        own = self._ledger.cluster
        if expected != own:
            raise Refusal(
                Reason.WRONG_CLUSTER,
                f"this is {own}, not {expected}",
                "The peer was restored or another listens there: define it again (deletecluster, definecluster)",
            ).error()
        if source == own:
            raise Refusal(
                Reason.WRONG_CLUSTER, f"{own.name} ships to itself", "Remove the peer that points to its own cluster"
            ).error()
        if source.name == own.name:
            raise Refusal(
                Reason.WRONG_CLUSTER,
                f"another cluster is named {own.name} too ({source})",
                "Give each cluster its own name",
            ).error()
        if caller is not None and source.name not in caller:
            raise Refusal(
                Reason.WRONG_CLUSTER,
                f"the certificate speaks for {', '.join(sorted(caller)) or 'nobody'}, not for {source.name}",
                "Give the cluster a certificate whose subject alternative name is its own name",
            ).error()

    def _check_term_history(self, hello: Hello) -> None:
        clash = self._ledger.terms.recognise(hello.source, hello.term_history)
        if clash:
            _log.error("id_clash", source=str(hello.source), error=clash)
            raise id_clash(hello.source, clash).error()

    def _check_epoch(self, hello: Hello) -> None:
        highest = self._ledger.landing.keep_epoch(hello.source, hello.role_epoch)
        if highest <= hello.role_epoch:
            return
        raise Refusal(
            Reason.STALE_EPOCH,
            f"{hello.source.name} had role epoch {highest} already and says {hello.role_epoch}",
            "That worker has not seen a role change yet; it reads its role again and comes back",
        ).error()

    def _declared(self, source: ClusterId) -> dict[tuple[UUID, str], InboundRoute]:
        """The open routes of a source, as the ledger has them."""
        return {(route.table, route.group): route for route in self._ledger.landing.routes() if route.source == source}

    def _close_ended(self, hello: Hello, declared: dict[tuple[UUID, str], InboundRoute]) -> None:
        """Close the routes that the sender names no more; one younger than what it knows of, it may not know yet."""
        named = {(route.spec.uuid, route.group) for route in hello.routes}
        newest = max((route.generation for route in hello.routes), default=0)
        newest = max(newest, hello.generation)
        for key, route in list(declared.items()):
            if key not in named and route.generation <= newest:
                self._ledger.landing.close_route(hello.source, *key, route.generation)
                del declared[key]
                _log.info("route_closed", source=str(hello.source), table=str(route.table), group=route.group)

    def _forget_former(self, hello: Hello) -> None:
        """What the sender was before it was restored sends nothing any more: replicated time need not wait for it."""
        if not hello.former:
            return
        for gone in {route.source for route in self._ledger.landing.routes()} & set(hello.former):
            if gone.name == hello.source.name and gone != hello.source:
                self._ledger.time.forget(gone)
                _log.info("former_forgotten", source=str(hello.source), former=str(gone))

    def _open_route(self, source: ClusterId, route: Route, declared: Mapping[tuple[UUID, str], InboundRoute]) -> None:
        if route.closed:
            self._ledger.landing.close_route(source, route.spec.uuid, route.group, route.generation)
            _log.info("route_closed", source=str(source), table=str(route.spec.uuid), group=route.group)
            return
        self._check_names(source, route)
        spec = replace(route.spec, name=route.remote_table)
        if spec.uuid not in self._tables:
            self._make(source, spec)
        self._learn((spec, *route.schemas))
        known = declared.get((spec.uuid, route.group))
        told = (route.generation, dict(route.required_from), dict(route.acknowledged), route.carried, route.phase)
        if known is None or told != (
            known.generation,
            dict(known.required_from),
            dict(known.acknowledged),
            known.carried,
            known.phase,
        ):
            self._ledger.landing.declare_route(source, spec.uuid, route.group, *told)

    def _check_names(self, source: ClusterId, route: Route) -> None:
        """Names become folders, and tables in a catalog: a sender is not trusted to have checked them."""
        for name in (route.remote_table, route.spec.name):
            if unusable := unusable_name(name):
                raise Refusal(
                    Reason.TABLE_CONFLICT,
                    f"{self._ledger.cluster.name} takes no table of that name: {unusable}",
                    f"Send it under a name it can have: on {source.name}, disablereplication, then"
                    " enablereplication --remote-table namespace.name",
                ).error()

    def _make(self, source: ClusterId, spec: TableSpec) -> None:
        """Create a table that was not here when the live ones were last read, unless it is there by now."""
        if (known := self._ledger.tables.by_uuid(spec.uuid)) is not None:
            if self._has_table(spec.uuid):
                return  # another stream made it meanwhile
            raise Refusal(
                Reason.UNKNOWN_TABLE,
                f"table {known.name} was dropped on {self._ledger.cluster.name}",
                "It does not come back there: if its rows are wanted there, write them to a new table of another name."
                f" Stop sending this one (disablereplication), or drop it on {source.name}, too, with"
                " dropped_tables = skip",
            ).error()
        try:
            self._ledger.tables.create(spec)
        except TableExistsError:
            raise Refusal(
                Reason.TABLE_CONFLICT,
                f"{self._ledger.cluster.name} has another table named {spec.name}",
                f"droptable {spec.name} there, then enablereplication again if that was refused; or send it under"
                " another name (enablereplication --remote-table)",
            ).error() from None
        _log.info("table_created", table=spec.name, uuid=str(spec.uuid), source=str(source))
        self._tables |= {spec.uuid}

    def _learn(self, known: Sequence[SchemaVersion | TableSpec]) -> None:
        """Definitions join those here; versions are remembered when the definition has their columns.

        So whatever has landed can be replayed into the table as it is defined by then.
        """
        for each in known:
            if isinstance(each, TableSpec):
                self._join(each)
            elif not self._has_schema(each.hash):
                spec = self._ledger.tables.by_uuid(each.table)
                if spec is None or not lacking(spec, each):
                    self._ledger.tables.put_schema(each)
                    self._schemas.add(each.hash)

    def _join(self, spec: TableSpec) -> None:
        if self._joined.get(spec.uuid) == spec or not self._has_table(spec.uuid):
            return
        own = self._ledger.tables.by_uuid(spec.uuid)
        try:
            if own is not None and join(own, spec) != own:
                self._ledger.tables.alter(spec.uuid, lambda now: join(now, spec))
                _log.info("table_altered", table=own.name, uuid=str(spec.uuid))
        except SchemaError as error:
            raise Refusal(Reason.TABLE_CONFLICT, error.what, error.hint, table=spec.uuid).error() from None
        self._joined[spec.uuid] = spec

    def _has_table(self, table: UUID) -> bool:
        if table not in self._tables:
            self.refresh()
        return table in self._tables

    def refresh(self) -> None:
        """Read again which tables are live, so that dropped ones are refused; called every few seconds, too."""
        self._tables = frozenset(spec.uuid for spec in self._ledger.tables.all())

    def _has_schema(self, name: bytes) -> bool:
        if name not in self._schemas and self._ledger.tables.schema(name) is not None:
            self._schemas.add(name)
        return name in self._schemas

    def _accept_term(self, file: FileId, term: int) -> bool:
        if self._terms.get(file) == term:
            return True
        accepted = self._ledger.landing.accept_term(file, term)
        if accepted:
            with self._lock:
                if len(self._terms) >= REMEMBERED:
                    self._terms.clear()
                self._terms[file] = max(term, self._terms.get(file, 0))
        return accepted
