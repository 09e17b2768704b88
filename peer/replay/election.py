"""Elect the host that replays, in a cluster of several hosts; the others stand by.

The election alone protects nothing. The elected host first raises the replay epoch in the ledger, and tables refuse
commits of an older epoch. So it can go on without ZooKeeper, and it ends when it finds a newer epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from replication import log
from replication.coordination.paths import Election
from replication.coordination.session import Coordination
from replication.errors import CoordinationError

_ASK_S = 0.5
_log = log.get(__name__)


def await_election(coordination: Coordination, host: str, stop: threading.Event, ready: Callable[[], None]) -> bool:
    """Campaign until this host is elected (True) or ``stop`` is set (False).

    ``ready`` is called when the host stands by because another one replays.
    """
    candidacy = coordination.campaign(host, Election.REPLAYERS)
    reported = is_failing = False
    while not stop.is_set():
        try:
            if candidacy.leads():
                _log.info("replay_elected", host=host)
                return True
            is_failing = False
            if not reported:
                reported = True
                _log.info("replay_stands_by", host=host, leader=coordination.leader(Election.REPLAYERS))
                ready()
        except CoordinationError as error:
            if not is_failing:
                _log.warning("replay_not_elected", host=host, error=str(error))
            is_failing = True
        stop.wait(_ASK_S)
    return False
