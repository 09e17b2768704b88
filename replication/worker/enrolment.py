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

    def announce(self) -> None:
        """Create the entry, unless it exists. A failure is logged."""
        if self._member is not None:
            return
        host = self._config.cluster.host
        try:
            self._coordination.put_host(host_record(self._config))
            self._member = self._coordination.enrol(MemberKind.WORKERS, host, {"version": __version__})
        except (CoordinationError, FormatError) as error:
            _log.warning("worker_not_announced", host=host, error=str(error))

    def show(self, announcement: int) -> None:
        """Write that the rules of ``announcement`` are applied; ``pause`` waits for that. A failure is logged."""
        if announcement == self._shown or self._member is None:
            return
        try:
            self._member.update({"version": __version__, "announcement": announcement})
            self._shown = announcement
        except CoordinationError as error:
            _log.warning("worker_not_announced", host=self._config.cluster.host, error=str(error))

    def leave(self) -> None:
        """Delete the entry."""
        with contextlib.suppress(CoordinationError):
            if self._member is not None:
                self._member.leave()
