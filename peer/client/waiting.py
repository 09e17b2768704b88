"""Waiting until what was written has got somewhere: durable, applied or visible, at home or at a peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from peer.client.contacts import Contacts
from peer.status.replay_report import silence
from replication.core.ids import StreamId
from replication.core.phase import Phase
from replication.core.position import Position
from replication.core.routes.freshness import NO_ROUTE, Reach
from replication.errors import (
    FormatError,
    PeerUnavailableError,
    ReplayError,
    UnknownPeerError,
    UnknownTableError,
    WaitTimeoutError,
)
from replication.ledger.base import Ledger, Peer
from replication.link.base import PeerLink

_POLL_FIRST_S, _POLL_MAX_S = 0.005, 0.1
_OWN_LEDGER_S = 2.0  # then the peer itself is asked, where another route may have been faster


class Until(StrEnum):
    """How far. ``applied`` counts quarantined frames; ``visible`` is in ``<table>__latest``."""

    DURABLE = "durable"
    APPLIED = "applied"
    VISIBLE = "visible"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits for positions of any cluster's appends, here or elsewhere.

    What arrives by another route than the direct one counts as well, and what comes through other clusters.
    """

    ledger: Ledger
    contacts: Contacts

    def wait(self, position: Position, peer_name: str | None, until: str, timeout_s: float) -> None:
        """Return once everything up to ``position`` is there.

        Args:
            position: what an append returned, on this cluster or another.
            peer_name: at that peer, or another cluster that peers lead to; None for this cluster itself.
            until: ``durable``, ``applied`` or ``visible``.
            timeout_s: the longest it may take.

        Raises:
            WaitTimeoutError: the data is safe, but did not get there in time; the message says how far it is.
            ReplayError: a frame of it was quarantined, so it will not become visible.
            FormatError: ``until`` is not known, or the others are no position or time.
            UnknownPeerError: no such cluster, or it is a peer that the table does not go to.
            UnknownTableError: the table was dropped there.
        """
        if not isinstance(position, Position):
            raise FormatError(f"{position!r} is no position", "Give what an append returned")
        if not isinstance(timeout_s, int | float) or not timeout_s >= 0:  # which nan is not either
            raise FormatError(f"timeout_s={timeout_s!r} is no time to wait", "Give seconds")
        goal = _goal(until)
        deadline = time.monotonic() + timeout_s
        at_home = position.cluster == self.ledger.cluster
        if peer_name is None or peer_name == self.ledger.cluster.name:
            if not at_home:
                reached = self.ledger.time.reached
                self._wait_here(lambda: _lacking(reached(position.sequences), goal), deadline, goal, timeout_s)
            elif goal is not Until.DURABLE:
                self._wait_here(lambda: self._lacking_here(position, goal), deadline, goal, timeout_s)
            return
        what = f"{goal} at {peer_name}"
        peer = self._located(peer_name, deadline, what, timeout_s)
        is_direct = at_home and any(known == peer for known in self.ledger.rules.peers())
        soon = min(deadline, time.monotonic() + _OWN_LEDGER_S)
        if is_direct and goal is Until.DURABLE and self._is_told_durable(position, peer, soon):
            return
        while True:
            try:
                with self.contacts.link(peer) as link:
                    self._await(position, peer, link, goal, deadline, what, timeout_s, is_direct=is_direct)
                    return
            except WaitTimeoutError as error:
                raise WaitTimeoutError(self._with_names(error.what), self._hint(peer, position, error.what)) from None
            except PeerUnavailableError as error:
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"Not {what} within {timeout_s:g} s: {error.what}", error.hint) from None
                time.sleep(_POLL_MAX_S)

    def _wait_here(self, missing: Callable[[], str], deadline: float, goal: Until, timeout_s: float) -> None:
        try:
            _poll(missing, deadline, f"{goal} here", timeout_s)
        except WaitTimeoutError as error:
            silent = silence(self.ledger.replay) if goal is not Until.DURABLE else ""
            hint = f"Replay here {silent}: see walship status" if silent else error.hint
            raise WaitTimeoutError(error.what, hint) from None

    def _located(self, name: str, deadline: float, what: str, timeout_s: float) -> Peer:
        """Where that cluster is, once those that lead there answer."""
        while True:
            try:
                return self.contacts.locate(name)
            except PeerUnavailableError as error:
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"Not {what} within {timeout_s:g} s: {error.what}", error.hint) from None
                time.sleep(_POLL_MAX_S)

    def _with_names(self, text: str) -> str:
        """A peer knows tables by uuid, which says little to a person."""
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
                on_its_way = f"The bootstrap of {rule.table} is on its way to {rule.peer}"
                return self._with_names(f"{on_its_way}: walship status says how far it is, and whether it is throttled")
            here = [
                (s, last) for s, last in position.sequences.items() if (s.table, s.group) == (rule.table, rule.group)
            ]
            if rule.phase is Phase.LIVE and any(last < rule.required_from.get(s.wal, 0) for s, last in here):
                return self._with_names(f"It was written before the table went there; {remedy} brings what it lacks")
        for held in self.ledger.sending.held():
            if (held.peer in names or not names) and held.table in tables:  # one that is no peer lies behind one
                return self._with_names(f"{held.table} is held for {held.peer}: {held.reason}")
        if NO_ROUTE in what:
            return f"Unless a route is just being opened nothing brings it to {peer.name}: see walship status there"
        return "It goes on by itself, unless walship status says what holds it"

    def _goes_to(self, position: Position, peer: Peer) -> bool:
        """Whether all of the position goes to the peer by a direct route."""
        sent = {(rule.table, rule.group) for rule in self.ledger.rules.all() if rule.peer == peer.name}
        return all((stream.table, stream.group) in sent for stream in position.sequences)

    def _await(
        self,
        position: Position,
        peer: Peer,
        link: PeerLink,
        goal: Until,
        deadline: float,
        what: str,
        timeout_s: float,
        *,
        is_direct: bool,
    ) -> None:
        wanted = position.sequences
        if not (is_direct and self._goes_to(position, peer)):
            wanted = self._coming(position, link.reached(wanted), peer, is_direct=is_direct)
        _poll(lambda: _lacking(link.reached(wanted), goal), deadline, what, timeout_s)

    def _coming(
        self, position: Position, reached: Mapping[StreamId, Reach], peer: Peer, *, is_direct: bool
    ) -> Mapping[StreamId, int]:
        """What of the position to wait for: of a table of which only some groups go there, those.

        Raises:
            UnknownPeerError: a table goes to a peer neither directly nor through another cluster.
        """
        sent = {(rule.table, rule.group) for rule in self.ledger.rules.all() if rule.peer == peer.name}
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

    def _lacking_here(self, position: Position, goal: Until) -> str:
        missing = []
        # first what is registered, which grows: what is not pending afterwards has been applied
        for file, end in position.ends.items():
            row = self.ledger.files.get(file)
            if row is not None and row.length < end:
                missing.append(f"{end - row.length} bytes of WAL {file.local} are not registered yet by a worker")
        for pending in self.ledger.replay.pending():
            upto = position.ends.get(pending.row.file)
            if upto is None:
                continue
            tables = {stream.table for stream in position.sequences if stream.wal == pending.row.file}
            reached = min((pending.behind.get(table, pending.begin) for table in tables), default=pending.begin)
            if reached < upto:
                missing.append(f"{upto - reached} bytes of WAL {pending.row.file.local} to go")
        if not missing and goal is Until.VISIBLE:
            self._check_quarantine(position)
        return ", ".join(missing)

    def _check_quarantine(self, position: Position) -> None:
        tables = {stream.table for stream in position.sequences}
        for frame in self.ledger.replay.quarantined():
            if frame.table in tables and frame.end <= position.ends.get(frame.file, 0):
                raise ReplayError(
                    f"A frame at offset {frame.begin} of {frame.file.local} is quarantined: {frame.reason}",
                    f"Its copy is {frame.copy}; see walship status",
                )

    def _is_told_durable(self, position: Position, peer: Peer, deadline: float) -> bool:
        """Whether the ledger here says, until a moment, that the peer has it; False where the peer must be asked."""
        pause = _POLL_FIRST_S
        missing = self._not_durable(position, peer)
        while missing:
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX_S)
            missing = self._not_durable(position, peer)
        return missing == 0

    def _not_durable(self, position: Position, peer: Peer) -> int | None:
        """Bytes of the position that the direct route has yet to bring; None where that route need not bring all of it.

        Such are rows from before the route, those of a table that needs a bootstrap, and a file that is gone.
        """
        statuses = {
            (file, rule.table, rule.group): (rule, status)
            for file, rule, status in self.ledger.files.statuses(peer.name)
            if file in position.ends
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


def _lacking(reached: Mapping[StreamId, Reach], goal: Until) -> str:
    """What the goal still lacks; "" when it is reached.

    Raises:
        ReplayError: all of it has arrived, but some was quarantined, so it will not become visible.
        UnknownTableError: a table of it was dropped there.
    """
    for found in reached.values():
        if found.dropped:
            raise UnknownTableError(found.held_by, "What is written to it does not come there: walship status")
    done = {Until.DURABLE: "durable", Until.APPLIED: "applied", Until.VISIBLE: "visible"}[goal]
    missing = {stream: found for stream, found in reached.items() if not getattr(found, done)}
    if missing and goal is Until.VISIBLE and all(found.applied for found in missing.values()):
        raise ReplayError("; ".join(found.held_by for found in missing.values()), "See walship quarantine list there")
    return "; ".join(found.held_by for found in missing.values())


def _goal(until: str) -> Until:
    try:
        return Until(until)
    except ValueError:
        raise FormatError(f"until={until!r} is not known", f"One of {', '.join(Until)}") from None


def _poll(missing: Callable[[], str], deadline: float, what: str, timeout_s: float) -> None:
    pause = _POLL_FIRST_S
    while rest := missing():
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"Not {what} within {timeout_s:g} s: {rest}", "It goes on by itself")
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX_S)
