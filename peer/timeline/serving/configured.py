"""The server of a cluster's timeline, as its configuration has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from peer.timeline.client import address_file
from peer.timeline.configured import configured_timeline, configured_views
from peer.timeline.serving.server import TimelineServer
from replication.config import Config
from replication.datasets.declared.definitions import DatasetFile, specification


@contextmanager
def serving_timeline(config: Config) -> Iterator[TimelineServer]:
    """The server, running. Raises as ``TimelineServer`` and ``configured_views``."""
    timeline = configured_timeline(config)

    def jobs(name: str) -> Mapping[str, Any] | None:
        found = [each for each in DatasetFile(config.datasets_file).all() if each.name == name]
        return specification(found[0]) if found else None

    with (
        closing(configured_views(config, timeline)) as views,
        TimelineServer(config.cluster.name, views, jobs, config.timeline, config.tls, address_file(config)) as server,
    ):
        yield server
