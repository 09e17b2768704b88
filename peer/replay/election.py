"""Who replays, where a cluster has several hosts: one at a time, the others stand by.

Being first in line proves nothing: who replays raises the replay epoch in the ledger first, and tables refuse what
comes under an older one. So the one that replays needs no ZooKeeper to go on, and ends when it finds a newer epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from replication.coordination.paths import Election
from replication.coordination.session import Coordination
from replication.errors import CoordinationError

_ASK_S = 0.5
_log = structlog.get_logger(__name__)


def await_turn(coordination: Coordination, host: str, stop: threading.Event, ready: Callable[[], None]) -> bool:
    """Stand in line until this host is the one to replay, or ``stop`` is set; whether it is.

    ``ready`` is called when it stands by, once another host replays.
    """
    candidacy = coordination.campaign(host, Election.REPLAYERS)
    reported = trouble = False
    while not stop.is_set():
        try:
            if candidacy.leads():
                _log.info("replay_elected", host=host)
                return True
            trouble = False
            if not reported:
                reported = True
                _log.info("replay_stands_by", host=host, leader=coordination.leader(Election.REPLAYERS))
                ready()
        except CoordinationError as error:
            if not trouble:
                _log.warning("replay_not_elected", host=host, error=str(error))
            trouble = True
        stop.wait(_ASK_S)
    return False
