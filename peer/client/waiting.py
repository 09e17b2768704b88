"""Waiting until a position is durable, applied or visible, on this cluster or on another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peer.client.contacts import Contacts, may_succeed_later
from peer.replay_report import silence
from replication.core.ids import StreamId
from replication.core.phase import Phase
from replication.core.position import Position
from replication.core.routes.freshness import LOST_WRITES, NO_ROUTE, Reach, Until
from replication.errors import (
    FormatError,
    ReplayError,
    TransferError,
    UnknownPeerError,
    UnknownTableError,
    WaitTimeoutError,
)
from replication.files.notifier import OF_ROWS, Subscriber
from replication.ledger.base import Ledger, Peer
from replication.link.base import PeerLink

_LATER = "No row is lost. Wait again; walship status shows what delays them"
_POLL_FIRST_S, _POLL_MAX_S = 0.005, 0.1  # where the answer does not wait
_ANSWER_S = 1.0  # how long a peer's answer may wait


@dataclass(frozen=True, slots=True)
class _Deadline:
    """The end of a wait that may take ``timeout_s``; ``at_s`` is of the monotonic clock."""

    at_s: float
    timeout_s: float

    @property
    def has_passed(self) -> bool:
        return time.monotonic() > self.at_s

    def text(self, what: str, missing: str) -> str:
        """An error message."""
        return f"Not {what} within {self.timeout_s:g} s: {missing}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits for positions of any cluster's appends. Rows count by whichever route they arrive.

    ``wal_directory`` is this host's, whose processes notify of changes; without it the ledger is polled.
    """

    ledger: Ledger
    contacts: Contacts
    wal_directory: str = ""

    def wait(self, position: Position, peer_name: str | None, until: str, timeout_s: float) -> None:
        """Return once everything up to ``position`` is there.

        Args:
            position: what an append returned, on this cluster or another.
            peer_name: a peer, or another cluster that peers lead to; None for this cluster itself.
            until: ``durable``, ``applied`` or ``visible``.
            timeout_s: the longest it may take.

        Raises:
            WaitTimeoutError: it took too long. The data is safe; the message says what is missing there.
            ReplayError: a frame of it was quarantined or discarded, or is a lost write, so it will not become visible.
            FormatError: ``until``, the position or the time is not valid.
            UnknownPeerError: no such cluster, or it is a peer that the table does not go to.
            UnknownTableError: the table was dropped there.
        """
        if not isinstance(position, Position):
            raise FormatError(f"{position!r} is not a position", "Give what an append returned")
        if not isinstance(timeout_s, int | float) or not timeout_s >= 0:  # also refuses nan
            raise FormatError(f"timeout_s={timeout_s!r} is not a time to wait", "Give seconds")
        goal = _goal(until)
        deadline = _Deadline(time.monotonic() + timeout_s, timeout_s)
        if peer_name is not None and peer_name != self.ledger.cluster.name:
            self._wait_there(position, peer_name, goal, deadline)
        elif position.cluster != self.ledger.cluster:
            reached = self.ledger.time.reached
            self._wait_here(lambda: _missing(reached(position.sequences), goal), goal, deadline)
        elif goal is not Until.DURABLE:
            self._wait_here(lambda: self._missing_here(position, goal), goal, deadline)

    def _wait_here(self, missing: Callable[[], str], goal: Until, deadline: _Deadline) -> None:
        try:
            with Subscriber(self.wal_directory, *OF_ROWS) as changes:
                _poll(missing, f"{goal} here", deadline, changes)
        except WaitTimeoutError as error:
            silent = silence(self.ledger.replay) if goal is not Until.DURABLE else ""
            hint = f"Replay here {silent}: see walship status" if silent else error.hint
            raise WaitTimeoutError(error.what, hint) from None

    def _wait_there(self, position: Position, peer_name: str, goal: Until, deadline: _Deadline) -> None:
        what = f"{goal} at {peer_name}"
        while True:
            try:
                own = next((each for each in self.ledger.rules.peers() if each.name == peer_name), None)
                is_direct = own is not None and position.cluster == self.ledger.cluster
                peer = own or self.contacts.locate(peer_name, deadline.at_s)
                may_be_away = not self.contacts.has_link(peer)  # else it is asked at once, and answers sooner
                if is_direct and goal is Until.DURABLE and may_be_away and self._not_durable(position, peer) == 0:
                    return
                with self.contacts.kept_link(peer) as link:
                    wanted = self._wanted(position, peer, link, is_direct=is_direct)
                    _ask(link, wanted, goal, what, deadline)
                    return
            except WaitTimeoutError as error:
                raise WaitTimeoutError(self._with_names(error.what), self._hint(peer, position, error.what)) from None
            except TransferError as error:
                if not may_succeed_later(error):
                    raise
                if deadline.has_passed:
                    raise WaitTimeoutError(deadline.text(what, error.what), error.hint) from None
                time.sleep(_POLL_MAX_S)

    def _with_names(self, text: str) -> str:
        """``text`` with the names of tables in place of their uuids, by which a peer knows them."""
        for spec in self.ledger.tables.all():
            text = text.replace(str(spec.uuid), spec.name)
        return text

    def _hint(self, peer: Peer, position: Position, what: str) -> str:
        known = [known for known in self.ledger.rules.peers() if known.cluster == peer.cluster]
        if any(each.paused for each in known):
            return f"{peer.name} is paused. First: walship resume {peer.name}"
        tables = {stream.table for stream in position.sequences}
        names = {each.name for each in known}
        for rule in self.ledger.rules.all():
            if rule.peer not in names or rule.table not in tables:
                continue
            remedy = f"walship bootstrap {peer.name} -t {rule.table}"
            if rule.phase is Phase.NEEDS_BOOTSTRAP:
                return self._with_names(f"First: {remedy}")
            if rule.phase is Phase.BOOTSTRAPPING:
                under_way = f"The bootstrap of {rule.table} is on its way to {rule.peer}"
                return self._with_names(f"{under_way}: walship status shows its progress, and a throttle")
            here = [
                (s, last) for s, last in position.sequences.items() if (s.table, s.group) == (rule.table, rule.group)
            ]
            if rule.phase is Phase.LIVE and any(last < rule.required_from.get(s.wal, 0) for s, last in here):
                return self._with_names(f"It was written before the table went there. To send it: {remedy}")
        for held in self.ledger.sending.held():
            if (held.peer in names or not names) and held.table in tables:  # other clusters lie behind a peer
                return self._with_names(f"{held.table} is held for {held.peer}: {held.reason}")
        if NO_ROUTE in what:
            return f"No open route brings it to {peer.name}: see walship status there"
        return "Replication goes on; walship status shows what delays it"

    def _wanted(self, position: Position, peer: Peer, link: PeerLink, *, is_direct: bool) -> Mapping[StreamId, int]:
        """The part of a position to wait for. Of a table with some groups that do not go there, only the others.

        Raises:
            UnknownPeerError: a table goes to a peer neither directly nor through another cluster.
        """
        sent = {(rule.table, rule.group) for rule in self.ledger.rules.to(peer.name)}
        if is_direct and all((stream.table, stream.group) in sent for stream in position.sequences):
            return position.sequences
        reached = link.reached(position.sequences)
        coming = {s for s, found in reached.items() if found.comes or (is_direct and (s.table, s.group) in sent)}
        tables = {stream.table for stream in coming}
        for stream in position.sequences:
            if is_direct and stream.table not in tables:
                spec = self.ledger.tables.by_uuid(stream.table)
                raise UnknownPeerError(
                    f"{spec.name if spec else stream.table} (group {stream.group}) does not go to {peer.name}",
                    "First: walship enablereplication",
                )
        return {s: last for s, last in position.sequences.items() if s in coming or s.table not in tables}

    def _missing_here(self, position: Position, goal: Until) -> str:
        missing = []
        # The registered length is read first, and only grows. So what is not pending afterwards was applied.
        for file, end in position.ends.items():
            row = self.ledger.files.get(file)
            if row is not None and row.length < end:
                missing.append(f"{end - row.length} bytes of WAL {file.local} are not yet registered by a worker")
        for pending in self.ledger.replay.pending():
            upto = position.ends.get(pending.row.file)
            if upto is None:
                continue
            tables = {stream.table for stream in position.sequences if stream.wal == pending.row.file}
            reached = min((pending.behind.get(table, pending.begin) for table in tables), default=pending.begin)
            if reached < upto:
                missing.append(f"{upto - reached} bytes of WAL {pending.row.file.local} are not yet replayed")
        landed = {s: last for s, last in position.sequences.items() if s.wal.cluster != self.ledger.cluster}
        if landed and (rest := _missing(self.ledger.time.reached(landed), goal)):  # of a batch that went on here
            missing.append(rest)
        if not missing and goal is Until.VISIBLE:
            self._check_quarantine(position)
        return ", ".join(missing)

    def _check_quarantine(self, position: Position) -> None:
        tables = {stream.table for stream in position.sequences}
        for frame in self.ledger.replay.quarantined():
            if frame.table in tables and frame.end <= position.ends.get(frame.file, 0):
                noun, act = ("lostwrites", "merge") if frame.succession else ("quarantine", "retry")
                raise ReplayError(
                    f"a frame at offset {frame.begin} of {frame.file.local} is quarantined: {frame.reason}",
                    f"walship {noun} list, then {noun} {act} or discard. Its copy is {frame.copy}",
                )

    def _not_durable(self, position: Position, peer: Peer) -> int | None:
        """Bytes of the position that the direct route has yet to bring.

        None when the direct route does not bring all of it: rows from before the route, a table that needs a bootstrap,
        or a deleted file.
        """
        statuses = {
            (file, rule.table, rule.group): (rule, status)
            for file, rule, status in self.ledger.files.statuses(peer.name, position.ends.keys())
        }
        missing = 0
        for stream, last in position.sequences.items():
            end = position.ends.get(stream.wal, 0)
            found = statuses.get((stream.wal, stream.table, stream.group))
            if found is None:
                return None
            rule, status = found
            if last < rule.required_from.get(stream.wal, 0) or end <= status.begin:
                return None
            missing += max(end - status.finished, 0)
        return missing


def _missing(reached: Mapping[StreamId, Reach], goal: Until) -> str:
    """What is missing for the goal; "" when it is reached.

    Raises:
        ReplayError: all of it has arrived, but some was kept out of the table, so it will not become visible.
        UnknownTableError: a table of it was dropped there.
    """
    for found in reached.values():
        if found.dropped:
            raise UnknownTableError(found.held_by, "Rows written to it do not go there: see walship status")
    missing = [found for found in reached.values() if not found.has(goal)]
    text = "; ".join(found.held_by for found in missing)
    if missing and goal is Until.VISIBLE and all(found.applied for found in missing):
        noun, act = ("lostwrites", "merge") if LOST_WRITES in text else ("quarantine", "retry")
        raise ReplayError(text, f"There: walship {noun} list, then {noun} {act} or discard")
    return text


def _goal(until: str) -> Until:
    try:
        return Until(until)
    except ValueError:
        raise FormatError(f"until={until!r} is not known", f"One of {', '.join(Until)}") from None


def _poll(missing: Callable[[], str], what: str, deadline: _Deadline, changes: Subscriber) -> None:
    rest = ""

    def is_reached() -> bool:
        nonlocal rest
        rest = missing()
        return not rest

    if not changes.wait_for(is_reached, deadline.at_s):
        raise WaitTimeoutError(deadline.text(what, rest), _LATER)


def _ask(link: PeerLink, wanted: Mapping[StreamId, int], goal: Until, what: str, deadline: _Deadline) -> None:
    """Ask the peer, whose answer waits until it has what is wanted."""
    pause = _POLL_FIRST_S
    while True:
        begun_s = time.monotonic()
        wait_s = max(0.0, min(deadline.at_s - begun_s, _ANSWER_S))
        if not (rest := _missing(link.reached(wanted, goal, wait_s), goal)):
            return
        if deadline.has_passed:
            raise WaitTimeoutError(deadline.text(what, rest), _LATER)
        if time.monotonic() - begun_s < wait_s / 2:  # too many wait there already
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX_S)
