"""Opens the fork of a running drill, for its probes: ``walship.drill()``, and SQL of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from peer.client.connect import find_config
from replication.config import Config
from replication.errors import RequestError

if TYPE_CHECKING:
    from peer.drill.session import OpenFork

VARIABLE = "WALSHIP_DRILL"


def drill() -> OpenFork:
    """Open the fork of the drill that runs this script as a probe. Close it, or use it as a context.

    Raises:
        RequestError: no drill runs this process, or it is over.
    """
    if not os.environ.get(VARIABLE) or not os.environ.get("WALSHIP_CLUSTER"):
        raise RequestError("no drill runs this script", "Give it to one: walship drill CLUSTER --probe SCRIPT")
    fork = fork_of(find_config(os.environ["WALSHIP_CLUSTER"]), os.environ)
    assert fork is not None, "the environment names it"
    return fork


def fork_of(config: Config, environ: Mapping[str, str]) -> OpenFork | None:
    """The fork that an environment names; None when it names none. RequestError when the drill is over."""
    id = environ.get(VARIABLE, "")
    if not id:
        return None
    from peer.drill.fork import Fork  # deferred: most programs that import walship open no fork
    from peer.drill.session import OpenFork
    from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog

    fork = Fork.load(config.drills_dir / id)
    return OpenFork(IcebergCatalog(configured_catalog(config)), fork)
