"""The timeline and the views of it that a cluster's configuration names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from peer.timeline.listing import FolderListings
from peer.timeline.remembered import BYTES_MAX
from peer.timeline.stores.base import ViewStore
from peer.timeline.stores.memory import MemoryViews, SpillableViews
from peer.timeline.stores.partition_file import CACHE_BYTES
from peer.timeline.views import Views
from replication.config import Config
from replication.errors import LockedFileError
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records


def configured_timeline(config: Config) -> RecordedTimeline:
    """The cluster's timeline. ConfigError when its store cannot keep one."""
    return RecordedTimeline(open_records(config.timeline_url))


def configured_views(config: Config, timeline: RecordedTimeline) -> Views:
    """Views over it, in the configured store; the caller closes them.

    Raises:
        ConfigError: the embedded store needs ``walship[timeline]``.
        LockedFileError: another process has that store open.
    """
    folder = config.data_dir / "timeline-views"
    return _views(config, timeline, folder, folder / "memory.db")


@contextmanager
def verb_views(config: Config, timeline: RecordedTimeline) -> Iterator[Views]:
    """The same for a verb. While the server has that store open the verb has views of its own, and forgets them."""
    with ExitStack() as stack:
        try:
            views = configured_views(config, timeline)
        except LockedFileError:
            folder = stack.enter_context(TemporaryDirectory(prefix="walship-views-"))
            views = _views(config, timeline, Path(folder), None)
        yield stack.enter_context(closing(views))


def _views(config: Config, timeline: RecordedTimeline, folder: Path, checkpoint: Path | None) -> Views:
    spills, given = config.timeline.store == "spillable", config.timeline.memory_bytes_max
    remembered = given // 8 if spills else BYTES_MAX
    store = _store(config, folder, checkpoint, max(given - remembered - CACHE_BYTES, 0))
    incremental = config.timeline.incremental
    return Views(timeline, store, FolderListings(), incremental=incremental, remembered_bytes_max=remembered)


def _store(config: Config, folder: Path, checkpoint: Path | None, memory_bytes_max: int) -> ViewStore:
    kind = config.timeline.store
    if kind == "embedded":
        from peer.timeline.stores.embedded import EmbeddedViews  # deferred: only this store needs RocksDB

        return EmbeddedViews(folder)
    if kind == "spillable":
        return SpillableViews(folder / "spilled.db", memory_bytes_max)
    return SpillableViews(checkpoint, sys.maxsize) if checkpoint is not None else MemoryViews()
