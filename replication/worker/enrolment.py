"""The worker's entry among the members in ZooKeeper: that it is alive, and which announcement it has applied."""

from __future__ import annotations

import contextlib

from replication import __version__, log
from replication.config import Config
from replication.coordination.host import host_record
from replication.coordination.membership import Membership
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.errors import CoordinationError, FormatError

_log = log.get(__name__)


class Enrolment:
    """Writes the entry. For one thread. When ZooKeeper cannot be read, shipping goes on and the next call retries."""

    def __init__(self, config: Config, coordination: Coordination) -> None:
        self._config = config
        self._coordination = coordination
        self._member: Membership | None = None
        self._shown = 0  # the announcement in the entry
        self._is_failing = False

    def announce(self, announcement: int | None = None) -> None:
        """Create the entry, unless it exists. A failure is logged, once per run of failures.

        Args:
            announcement: its rules are applied; ``pause`` waits until that is written. None leaves what is written.
        """
        host = self._config.cluster.host
        try:
            if self._member is None:
                self._coordination.put_host(host_record(self._config))
                self._member = self._coordination.enrol(MemberKind.WORKERS, host, {"version": __version__})
            if announcement is not None and announcement != self._shown:
                self._member.update({"version": __version__, "announcement": announcement})
                self._shown = announcement
            self._is_failing = False
        except (CoordinationError, FormatError) as error:
            if not self._is_failing:
                _log.warning("worker_not_announced", host=host, error=str(error))
            self._is_failing = True

    def leave(self) -> None:
        """Delete the entry."""
        with contextlib.suppress(CoordinationError):
            if self._member is not None:
                self._member.leave()
