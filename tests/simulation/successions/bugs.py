"""Planted bugs: each makes the code under test wrong in one place, and a schedule that is kept finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.failover import switchover as switching
from peer.failover.lease import OutliveLeases
from peer.failover.role_change import RoleChange
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession, Successions
from replication.errors import ReplicationError, StepFailedError
from replication.ledger.sql.parts.successions import SqlSuccessions
from replication.ledger.sql.parts.terms import SqlTerms
from replication.roles.takeover import Takeover
from replication.writer.wal.registration import WriterRegistration
from tests.simulation.successions.site import Site
from tests.simulation.successions.world import World

Plant = Callable[[pytest.MonkeyPatch, World], None]


def lease_read_before_fsync(patched: pytest.MonkeyPatch, world: World) -> None:
    """The lease is checked when the write begins, and not again after the sync."""
    patched.setattr(WriterRegistration, "publish", lambda self, epoch, publish: publish())


def old_epochs_are_acked(patched: pytest.MonkeyPatch, world: World) -> None:
    """What was stamped before two role changes is published after them."""
    real = WriterRegistration.publish

    def publish(self: WriterRegistration, epoch: int, act: Callable[[], None]) -> None:
        real(self, self._lease.epoch if self._lease is not None else epoch, act)

    patched.setattr(WriterRegistration, "publish", publish)
    # A switchover that drains before it stops writes seldom meets a write that is under way.
    plan = switching.plan_switchover
    patched.setattr(switching, "plan_switchover", lambda *given: replace(plan(*given), pending_bytes=0))


def writers_are_not_awaited(patched: pytest.MonkeyPatch, world: World) -> None:
    """A switchover goes on while writers still hold leases."""
    patched.setattr("tests.simulation.successions.commands.await_writers", lambda *_: None)


def old_epochs_are_applied_beyond_the_cut(patched: pytest.MonkeyPatch, world: World) -> None:
    """Replay applies what a cut leaves out."""
    patched.setattr(Successions, "leaving_out", lambda self, header: None)


def forwarded_frames_are_not_judged(patched: pytest.MonkeyPatch, world: World) -> None:
    """A cut is held against what its origin sends, and not against what others send on."""
    real = Site.apply

    def apply(self: Site, waiting: list[Any], known: Successions) -> None:
        for stored in waiting:
            real(self, [stored], known if len(stored.provenance) <= 2 else Successions())

    patched.setattr(Site, "apply", apply)


def anybody_is_believed(patched: pytest.MonkeyPatch, world: World) -> None:
    """A cluster believes whoever reports a succession."""
    patched.setattr(Takeover, "_check_source", lambda self, succession, source: None)


def cancelled_after_it_happened(patched: pytest.MonkeyPatch, world: World) -> None:
    """The successor agrees to a cancellation although it takes writes already."""
    patched.setattr(SqlSuccessions, "cancel", lambda self, origin, epoch: True)


def cancelled_and_forgotten(patched: pytest.MonkeyPatch, world: World) -> None:
    """A cancelled succession is accepted when it comes late."""
    patched.setattr(SqlSuccessions, "accept", lambda self, succession: self.record(succession))


def equal_epochs_are_no_alarm(patched: pytest.MonkeyPatch, world: World) -> None:
    """Two clusters take over under one epoch, and it is only in the log."""
    patched.setattr(SqlSuccessions, "contradict", lambda self, succession: None)


def undone_after_the_peer_was_asked(patched: pytest.MonkeyPatch, world: World) -> None:
    """A switchover that is run again, and does not reach the peer, is undone."""
    real = RoleChange.finish

    def finish(self: RoleChange, steps: Any) -> None:
        epoch = next((s.epoch for s in steps if isinstance(s, switching.StopWrites)), 0)
        try:
            real(self, steps)
        except StepFailedError as error:
            if epoch and error.number < 3:
                switching._take_writes(self, epoch + 1, steps)
            raise

    patched.setattr(RoleChange, "finish", finish)


def role_changes_before_the_succession_is_stored(patched: pytest.MonkeyPatch, world: World) -> None:
    """A cluster takes writes first, and then refuses the origin's older epochs."""

    def promote(self: Takeover, succession: Succession) -> RoleState:
        state = self._become(RoleState(Role.ACTIVE, succession.epoch))
        self.ledger.successions.accept(succession)
        return state

    patched.setattr(Takeover, "promote", promote)


def cuts_are_not_joined(patched: pytest.MonkeyPatch, world: World) -> None:
    """A merge of lost writes stays on the cluster where it was done."""
    patched.setattr(Succession, "joined", lambda self, other: self)


def role_is_only_in_zookeeper(patched: pytest.MonkeyPatch, world: World) -> None:
    """A ZooKeeper that lost its data brings back an old role."""
    patched.setattr(SqlTerms, "keep_role", lambda self, state: None)


def failover_does_not_wait(patched: pytest.MonkeyPatch, world: World) -> None:
    """A failover goes on while writers of the lost cluster hold leases that were confirmed before."""
    patched.setattr(OutliveLeases, "verify", lambda self, context: True)


def peer_is_not_asked(patched: pytest.MonkeyPatch, world: World) -> None:
    """A writer goes on when the peer or the witness, which must confirm its lease, does not answer."""
    real = WriterRegistration._read

    def read(self: WriterRegistration) -> RoleState:
        try:
            return real(self)
        except ReplicationError:
            return self._coordination.role().state

    patched.setattr(WriterRegistration, "_read", read)


def lost_peer_never_confirms_again(patched: pytest.MonkeyPatch, world: World) -> None:
    """A cluster that took over does not ask the one that was lost, although it has returned."""
    patched.setattr(SqlSuccessions, "has_answered", lambda self, succession: False)


ALL: tuple[Plant, ...] = (
    failover_does_not_wait,
    peer_is_not_asked,
    lost_peer_never_confirms_again,
    lease_read_before_fsync,
    old_epochs_are_acked,
    writers_are_not_awaited,
    old_epochs_are_applied_beyond_the_cut,
    forwarded_frames_are_not_judged,
    anybody_is_believed,
    cancelled_after_it_happened,
    cancelled_and_forgotten,
    equal_epochs_are_no_alarm,
    undone_after_the_peer_was_asked,
    role_changes_before_the_succession_is_stored,
    cuts_are_not_joined,
    role_is_only_in_zookeeper,
)
