"""Serve requests of other clusters: describe this one, open routes and streams. Each refusal names a remedy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

from peer.folders.shared import SharedFolders
from peer.grants.rights import CallerRights, check_own, namesake
from peer.grants.scope import RouteKey, StreamScope
from peer.receive.admission import Admission
from peer.receive.definitions import Definitions
from peer.receive.inbound_stream import InboundStream
from peer.receive.landing import Landing
from peer.receive.range_reads import RangeReads
from peer.receive.reached import ReachedAnswers
from peer.receive.routes import Routes
from peer.receive.successions import SuccessionRequests
from peer.status.drills import drill_health
from replication import __version__, log
from replication.core.coverage import Ranges
from replication.core.definition.define import unusable_name
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.grants import Caller, Grant
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.roles import RoleState
from replication.core.routes.freshness import Reach, Until
from replication.core.status import reported
from replication.core.succession import Succession, check_epoch
from replication.errors import CoordinationError, PeerRefusedError, UnknownTableError
from replication.files.boot import boot_id
from replication.ledger.base import Ledger
from replication.ledger.changes import LedgerChanges
from replication.link import file_calls
from replication.link.base import (
    PROTOCOL,
    AskedLease,
    Conversation,
    Description,
    FileStatus,
    Hello,
    OpenReply,
    Reason,
    Refusal,
    Reply,
    Route,
    TakeOver,
    id_clash,
)
from replication.link.file_calls import SharedEntry
from replication.roles.takeover import Takeover
from replication.settings import ReceiverSection

_WAIT_EMPTY_S = 1.0
_UNKNOWN, _DEFAULTS = RoleState(), ReceiverSection()
_log = log.get(__name__)


@dataclass(slots=True)
class SeenCluster:
    """What ZooKeeper said last about this cluster. The receiver writes it; a watch may lag behind."""

    role: RoleState = _UNKNOWN
    keeps_tables: bool = True


class Reception:
    """Implements ``ReceiverService`` with a ledger and a landing. Safe for threads.

    Args:
        seen: this cluster's role, and whether it keeps tables.
        answer: begins a comparison of tables; None where tables cannot be compared.
        rights: what callers may do.
        wal_directory: where the processes of this host notify each other.
        takeover: makes this cluster ACTIVE; None where it cannot become so.

    Attributes:
        answers: what senders wait for; it is told of what has landed.
    """

    def __init__(
        self,
        ledger: Ledger,
        landing: Landing,
        seen: SeenCluster,
        settings: ReceiverSection = _DEFAULTS,
        answer: Callable[[Grant], Conversation] | None = None,
        rights: CallerRights | None = None,
        wal_directory: str = "",
        takeover: Takeover | None = None,
    ) -> None:
        self._ledger, self._landing = ledger, landing
        self._seen = seen
        self._answer = answer
        self._boot = boot_id()
        self._folders = SharedFolders(ledger.cluster.name, settings.folders, settings.disk_free_min_bytes)
        self._reads = RangeReads(ledger, landing.host)
        self._rights = rights or CallerRights(ledger)
        self._successions = SuccessionRequests(ledger, self._rights, takeover)
        self.answers = ReachedAnswers(ledger, wal_directory)
        self._changes = LedgerChanges(ledger)
        self._lock = threading.Lock()
        self._streams: WeakSet[InboundStream] = WeakSet()
        self._definitions = Definitions(ledger, settings.commit_ahead_max_s)
        self._routes = Routes(ledger, self._definitions)
        self._admission = Admission(ledger, self._definitions, settings.message_bytes_max, settings.commit_ahead_max_s)
        self._scopes: WeakSet[StreamScope] = WeakSet()

    def refresh(self) -> None:
        """Read the live tables, the grants of open streams and ended epochs again, if any may have changed.

        Called every few seconds.
        """
        has_changed = self._changes.any()
        try:
            if has_changed:
                self._definitions.refresh()
                self.answers.refresh()
                self._end_older_streams()
            if has_changed or self._rights.may_revoke:
                self._refresh_scopes()
        except CoordinationError:
            self._changes.forget()
            raise

    def _refresh_scopes(self) -> None:
        with self._lock:
            scopes = list(self._scopes)
        for scope in scopes:
            scope.refresh(self._rights.find(scope.caller))

    def _end_older_streams(self) -> None:
        with self._lock:
            streams = list(self._streams)
        if streams and (ended := self._ledger.successions.known()).all:
            for stream in streams:
                stream.end_if_older(ended)

    def admit(self, call: str, caller: Caller) -> None:
        """Raise PeerRefusedError unless ``caller`` may make that call."""
        with self._counted(caller):
            self._rights.admit(call, caller)

    def describe(self, caller: Caller) -> Description:
        """Describe this cluster: id, version and role; also its peers, to callers with a grant."""
        role = max(self._seen.role, self._ledger.terms.role(), key=lambda state: state.epoch)
        grant, own = self._rights.find(caller), (self._ledger.cluster, __version__, role.role.value, role.epoch)
        if caller.cluster != self._ledger.cluster and grant is None:
            return Description(*own)
        peers = {peer.name: peer.zookeepers for peer in self._ledger.rules.peers()}
        drills, common = drill_health(self._ledger.drills.all()), (*own, PROTOCOL, peers)
        return Description(*common, () if grant is None else grant.tables, drills.drilled, drills.failure)

    def get_table(self, name: str, caller: Caller) -> TableSpec | None:
        """Return the definition of the table with this name, or None. PeerRefusedError when it is not the caller's."""
        if unusable_name(name):
            return None
        try:
            spec = self._ledger.tables.get(name)
        except UnknownTableError:
            return None
        self._rights.check_sees(caller, [spec])
        return spec

    def progress(self, files: Sequence[FileId], caller: Caller) -> dict[FileId, FileStatus]:
        """Return how far each of the caller's files is applied here, and what is left of files that lost bytes."""
        check_own(caller, [file.cluster for file in files])
        lost = self._ledger.salvage.losses(files)  # read first: a loss in between may shorten the applied prefix
        applied = self._ledger.landing.applied_prefix(files, keeps_tables=self._seen.keeps_tables)
        found = {}
        for file, end in applied.items():
            losses, there = lost.get(file, (0, Ranges.of((FILE_HEADER_BYTES, end))))
            found[file] = FileStatus(reported(there, end), losses)
        return found

    def reached(
        self, sequences: Mapping[StreamId, int], caller: Caller, until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        """Return whether this cluster has everything up to these sequences, and what holds up the rest.

        It waits until that is reached, for a second at most, unless many others wait already.
        """
        others = [stream for stream in sequences if stream.wal.cluster.name != caller.cluster.name]
        if others and self._rights.find(caller) is None:
            check_own(caller, (stream.wal.cluster for stream in others))
        if others:
            known = self._ledger.tables.definitions({stream.table for stream in others})
            self._rights.check_sees(caller, (spec for spec, _ in known.values()))
        return self.answers.find(sequences) if until is None else self.answers.wait(sequences, until, wait_s)

    def open_route(self, source: ClusterId, expected: ClusterId, routes: Sequence[Route], caller: Caller) -> None:
        """Open routes: create missing tables, with the sender's uuids, and store their schemas and the routes."""
        self._check_caller(source, expected, caller)
        if full := self._landing.space.shortage_for(max((route.bootstrap_bytes for route in routes), default=0)):
            raise Refusal(
                Reason.DISK_FULL,
                full,
                "Free disk space there, or send only rows written from now on: enablereplication --from-now, after"
                " disablereplication if it is sent",
            ).error()
        self._definitions.refresh()
        with self._counted(caller):
            for refused in self._routes.open(self._rights.of_sender(caller, (), ()), routes).values():
                raise refused.error()

    def take_over(self, asked: TakeOver, caller: Caller) -> None:
        """Originate in place of the caller, or get ready for it."""
        self._check_caller(asked.source, asked.expected, caller)
        self._successions.take_over(asked, caller)

    def successions(
        self, source: ClusterId, expected: ClusterId, caller: Caller, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        """Return the successions of the caller, once ``lease`` is stored."""
        self._check_caller(source, expected, caller)
        if lease is not None:
            self._rights.of(caller)
        return self._successions.of(source, lease)

    def ship(self, hello: Hello, reply: Callable[[Reply], None], caller: Caller) -> tuple[OpenReply, InboundStream]:
        """Open a stream. The reply lists routes that could not be opened; the other routes go on."""
        self._check_caller(hello.source, hello.expected, caller)
        with self._counted(caller):
            grant = self._rights.of_sender(caller, hello.former, hello.term_history)
        check_own(caller, [file.cluster for file, _ in hello.files])
        self._check_hello(hello)
        self._definitions.refresh()  # a table dropped just now is refused, not landed
        self._routes.close_ended(hello)
        self._forget_former(hello)
        refused = self._routes.open(grant, hello.routes)
        for each in refused.values():
            self._count(hello.source.name, each.error())
        self._successions.learn(hello)
        found = self._ledger.salvage.losses([file for file, _ in hello.files])
        lost = {file: FileStatus(reported(there), losses) for file, (losses, there) in found.items()}
        generation = max((route.generation for route in hello.routes), default=0)
        files = self._resume(hello, lost, generation)
        _log.info("stream_opened", source=str(hello.source), routes=len(hello.routes), files=len(files))
        scope = StreamScope(caller, grant, self._ledger, self._open_keys(hello, refused))
        inbound = InboundStream(self._admission, self._landing, reply, scope, hello.role_epoch, generation)
        with self._lock:
            self._scopes.add(scope)
            self._streams.add(inbound)
        self._changes.forget()  # what was checked above may have changed since
        term_history, newest = self._ledger.terms.term_history(), self._ledger.landing.newest(hello.source)
        return OpenReply(self._ledger.cluster, __version__, files, refused, lost, term_history, newest), inbound

    def compare(self, source: ClusterId, expected: ClusterId, caller: Caller) -> Conversation:
        """Begin a comparison of tables with the caller."""
        self._check_caller(source, expected, caller)
        if self._answer is None or not self._seen.keeps_tables:
            raise Refusal(
                Reason.NOT_READY,
                f"{self._ledger.cluster.name} keeps no tables to compare with",
                "Compare with a cluster that replays into tables",
            ).error()
        return self._answer(self._rights.of(caller))

    def read(self, ask: bytes, caller: Caller) -> Iterator[bytes]:
        """Yield registered bytes of this host's files to another host of the cluster."""
        return self._reads.read(ask)

    def files(self, ask: bytes, caller: Caller) -> Iterator[bytes]:
        """Answer a call about the files of a shared folder."""
        return file_calls.encode_replies(lambda: self._about_files(ask, caller), self._boot)

    def _about_files(self, ask: bytes, caller: Caller) -> Iterator[SharedEntry | bytes]:
        with self._counted(caller):
            yield from self._folders.answer(file_calls.decode_ask(ask), caller)

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """Count what is refused in the block, for ``status``."""
        try:
            yield
        except PeerRefusedError as error:
            self._count(caller.proved_name, error)
            raise

    def _count(self, name: str, error: PeerRefusedError) -> None:
        if error.reason == Reason.NOT_GRANTED:
            self._landing.refused.note(name, Reason.NOT_GRANTED, f"{error.what}. {error.hint}")

    def _check_caller(self, source: ClusterId, expected: ClusterId, caller: Caller) -> None:
        own = self._ledger.cluster
        if expected != own:
            raise Refusal(
                Reason.WRONG_CLUSTER,
                f"this is {own}, not {expected}",
                "The peer was restored, or another cluster has its address: define it again (deletecluster,"
                " definecluster)",
            ).error()
        if source.name == own.name:
            raise namesake(source, own)
        if source != caller.cluster:
            raise Refusal(
                Reason.WRONG_CLUSTER, f"{caller.cluster} calls in the name of {source}", "A cluster calls for itself"
            ).error()

    def _check_hello(self, hello: Hello) -> None:
        """Refuse another protocol version, a copy of the sender's cluster, and an old role epoch."""
        source = hello.source
        if hello.protocol != PROTOCOL:
            older = self._ledger.cluster if hello.protocol > PROTOCOL else source
            raise Refusal(
                Reason.VERSION,
                f"{source.name} (walship {hello.version}) speaks protocol {hello.protocol}, not {PROTOCOL}",
                f"Upgrade walship on {older.name}",
            ).error()
        clash = self._ledger.terms.recognise(source, hello.term_history)
        if clash:
            _log.error("id_clash", source=str(source), error=clash)
            raise id_clash(source, clash).error()
        check_epoch(hello.role_epoch, max(self._ledger.successions.highest_epoch(), self._ledger.terms.role().epoch))
        highest = self._ledger.landing.keep_epoch(source, hello.role_epoch)
        if highest > hello.role_epoch:
            raise Refusal(
                Reason.STALE_EPOCH,
                f"role epoch {hello.role_epoch} of {source.name} is older than {highest}",
                "The worker has not seen a role change yet; it reads its role and opens the stream again",
            ).error()

    def _forget_former(self, hello: Hello) -> None:
        """Forget the sender's former ids: they send nothing more, so replicated time does not wait for them."""
        routes = self._ledger.landing.routes() if hello.former else ()
        for gone in {route.source for route in routes} & set(hello.former):
            if gone.name == hello.source.name and gone != hello.source:
                self._ledger.time.forget(gone)
                _log.info("former_forgotten", source=str(hello.source), former=str(gone))

    def _resume(self, hello: Hello, lost: Mapping[FileId, FileStatus], generation: int) -> dict[FileId, FileStatus]:
        """Return the ranges of the files in ``hello`` that need not be sent again."""
        received = self._landing.received
        received.forget_former([former for former in hello.former if former.name == hello.source.name])
        received.forget_lost({file: left.losses for file, left in lost.items()})
        if hello.files:
            self._landing.wait_until_empty(_WAIT_EMPTY_S)  # messages of the stream before need not be sent again
        return {file: FileStatus(reported(received.complete(file, generation))) for file, _ in hello.files}

    def _open_keys(self, hello: Hello, refused: Collection[RouteKey]) -> set[RouteKey]:
        """Return the routes that are open to the sender of ``hello``, by that or by another stream or call."""
        opened = {(route.spec.uuid, route.group) for route in hello.routes if not route.closed}
        return {*opened.difference(refused), *self._routes.declared(hello.source)}
