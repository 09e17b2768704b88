"""The timeline and the views of it that a cluster's configuration names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peer.timeline.listing import FolderListings
from peer.timeline.remembered import BYTES_MAX
from peer.timeline.stores.base import ViewStore
from peer.timeline.stores.memory import SpillableViews
from peer.timeline.stores.partition_file import CACHE_BYTES
from peer.timeline.views import Views
from replication.config import Config
from replication.datasets.declared.definitions import DatasetFile
from replication.errors import LockedFileError
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records

_VERB_BYTES = 32 << 20


def configured_timeline(config: Config) -> RecordedTimeline:
    """The cluster's timeline. ConfigError when its store cannot keep one."""
    return RecordedTimeline(open_records(config.timeline_url))


def configured_views(config: Config, timeline: RecordedTimeline) -> Views:
    """Views over it, in the configured store; the caller closes them.

    Raises:
        ConfigError: the embedded store needs ``walship[timeline]``.
        LockedFileError: another process has that store open.
    """
    options = DatasetFile(config.datasets_file).target_options
    return _views(config, timeline, FolderListings(options), config.data_dir / "timeline-views", sys.maxsize)


@contextmanager
def verb_views(
    config: Config, timeline: RecordedTimeline, options: Callable[[str, str], Mapping[str, Any]]
) -> Iterator[Views]:
    """The same for a verb, with few partitions in memory: it asks for each once, with these options of its store.

    While the server has that store open the verb has views of its own, and forgets them.
    """
    listings = FolderListings(options)
    with ExitStack() as stack:
        try:
            views = _views(config, timeline, listings, config.data_dir / "timeline-views", _VERB_BYTES)
        except LockedFileError:
            folder = stack.enter_context(TemporaryDirectory(prefix="walship-views-"))
            views = _views(config, timeline, listings, Path(folder), _VERB_BYTES)
        yield stack.enter_context(closing(views))


def _views(
    config: Config, timeline: RecordedTimeline, listings: FolderListings, folder: Path, unspilled_bytes_max: int
) -> Views:
    """Views in the configured store; one that does not spill takes at most that much memory."""
    spills, given = config.timeline.store == "spillable", config.timeline.memory_bytes_max
    remembered = given // 8 if spills else BYTES_MAX
    store: ViewStore
    if config.timeline.store == "embedded":
        from peer.timeline.stores.embedded import EmbeddedViews  # deferred: only this store needs RocksDB

        store = EmbeddedViews(folder)
    elif spills:
        store = SpillableViews(folder / "spilled.db", max(given - remembered - CACHE_BYTES, 0))
    else:
        store = SpillableViews(folder / "memory.db", unspilled_bytes_max)
    incremental = config.timeline.incremental
    return Views(timeline, store, listings, incremental=incremental, remembered_bytes_max=remembered)
