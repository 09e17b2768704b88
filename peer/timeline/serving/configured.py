"""The server of a cluster's timeline, as its configuration has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from peer.timeline.client import address_file
from peer.timeline.configured import configured_timeline, configured_views
from peer.timeline.serving.server import TimelineServer
from replication.config import Config
from replication.core.timeline.instants import Instant
from replication.datasets.declared.definitions import DatasetFile, specification


@contextmanager
def serving_timeline(config: Config) -> Iterator[TimelineServer]:
    """The server, running. Raises as ``TimelineServer`` and ``configured_views``."""
    timeline = configured_timeline(config)

    with (
        closing(configured_views(config, timeline)) as views,
        TimelineServer(
            config.cluster.name, views, _Configured(config), config.timeline, config.tls, address_file(config)
        ) as server,
    ):
        yield server


class _Configured:
    def __init__(self, config: Config) -> None:
        self._config = config

    def job(self, name: str) -> Mapping[str, Any] | None:
        found = [each for each in DatasetFile(self._config.datasets_file).all() if each.name == name]
        return specification(found[0]) if found else None

    def table_instants(self, name: str) -> list[Instant] | None:
        from peer.timeline.of_tables import instants_of_table  # it loads the catalog's library

        return instants_of_table(self._config, name)
