"""Views of a dataset of a million files: which files a reader sees in a partition, by each store, and by a listing.

The dataset has partitions of a hundred files. Partitions are asked for at random, each once. The listing is that of
fsspec over an S3 server on this host. The spillable store is also measured in memory.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import fsspec

from peer.timeline.listing import FolderListings
from peer.timeline.stores.base import ViewStore
from peer.timeline.stores.embedded import EmbeddedViews
from peer.timeline.stores.memory import MemoryViews, SpillableViews
from peer.timeline.views import Views
from replication.core.timeline.instants import Action, Changes, FileVersion
from replication.timeline.recorded import RecordedTimeline
from tests.bench.measure import QUICK, Figure, at_least, at_most
from tests.fakes.timeline import MemoryRecords
from tests.file_servers import s3_server

FILES = 50_000 if QUICK else 1_000_000
EACH = 100
PARTITIONS = FILES // EACH
ASKED = 300
SPILL_BYTES = (FILES // 10) * 400  # a tenth of what they take
_PER_INSTANT = 10  # partitions


def run() -> list[Figure]:
    """Milliseconds of an answer, median; the ratio to listings; the memory of the spillable store over its bound."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="walship-bench-") as scratch, ExitStack() as stack:
        base = Path(scratch)
        timeline = filled()
        stores: dict[str, Callable[[], ViewStore]] = {
            "memory": MemoryViews,
            "embedded": lambda: EmbeddedViews(base / "embedded"),
            "spillable": lambda: SpillableViews(base / "spilled.db", SPILL_BYTES),
        }
        answers: dict[str, float] = {}
        for name, opened in stores.items():
            with closing(Views(timeline, opened(), _Listed())) as views:
                began = time.perf_counter()
                views.sync()
                rate = FILES / (time.perf_counter() - began)
                answers[name] = asked(lambda part, views=views: len(views.latest("lake", part)))  # type: ignore[misc]
            figures.append(Figure(f"timeline, {name}: files taken from instants", rate, "files/s"))
        bars = {"memory": 1.0, "embedded": 5.0}
        for name, took in answers.items():
            said = f"timeline, {name}: a partition of {EACH} of {FILES:,} files"
            figures.append(at_most(said, took, "ms", bars[name]) if name in bars else Figure(said, took, "ms"))
        listed = stack.enter_context(listing_in_s3())
        figures.append(Figure("timeline: that partition listed in S3", listed, "ms"))
        figures.append(at_least("timeline, memory: against a listing in S3", listed / answers["memory"], "×", 50))
        figures.append(at_most("timeline, spillable: memory over its bound", spilled(timeline, base), "×", 1.0))
    return figures


class _Listed:
    """The dataset as its store has it; each partition is listed when it is first asked for."""

    def partitions(self, dataset: str, root: str) -> list[str]:
        return [partition(number) for number in range(PARTITIONS)]

    def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
        return files_of(partition)


def partition(number: int) -> str:
    return f"date=2013/{number:05}"


def files_of(name: str) -> list[FileVersion]:
    return [FileVersion(name, f"{name}/part-{each:03}.parquet", 1 << 20) for each in range(EACH)]


def filled() -> RecordedTimeline:
    timeline = RecordedTimeline(MemoryRecords())
    for begin in range(0, PARTITIONS, _PER_INSTANT):
        numbers = range(begin, min(begin + _PER_INSTANT, PARTITIONS))
        adds = tuple(version for number in numbers for version in files_of(partition(number)))
        instant = timeline.start(timeline.request(Action.COPY, "lake"), Changes(adds))
        timeline.complete(instant, Changes(adds))
    return timeline


def asked(answer: Callable[[str], int]) -> float:
    """The median of an answer, in milliseconds."""
    took = []
    chosen = random.Random(1).sample(range(PARTITIONS), min(ASKED, PARTITIONS))
    for name in map(partition, chosen):
        answer(name)  # lists it
        began = time.perf_counter()
        count = answer(name)
        took.append(1000 * (time.perf_counter() - began))
        assert count == EACH, count
    return statistics.median(took)


@contextmanager
def listing_in_s3() -> Iterator[float]:
    """The median of a listing of one partition by an S3 server on this host, in milliseconds."""
    with s3_server() as (url, options):
        os.environ |= {"AWS_ACCESS_KEY_ID": options["key"], "AWS_SECRET_ACCESS_KEY": options["secret"]}
        os.environ["AWS_ENDPOINT_URL"] = options["endpoint_url"]
        fs, root = fsspec.core.url_to_fs(f"{url}/lake")
        for each in range(EACH):
            fs.pipe_file(f"{root}/{partition(0)}/part-{each:03}.parquet", b"x")
        took = []
        for _ in range(20):
            began = time.perf_counter()
            assert len(FolderListings().files("lake", f"{url}/lake", partition(0))) == EACH
            took.append(1000 * (time.perf_counter() - began))
        yield statistics.median(took)


def spilled(timeline: RecordedTimeline, base: Path) -> float:
    """How many times its bound the spillable store took at most, as Python's allocations have it."""
    tracemalloc.start()
    try:
        with closing(SpillableViews(base / "again.db", SPILL_BYTES - SPILL_BYTES // 8)) as store:
            views = Views(timeline, store, _Listed(), remembered_bytes_max=SPILL_BYTES // 8)
            before, _ = tracemalloc.get_traced_memory()
            views.sync()
            after, _ = tracemalloc.get_traced_memory()
        return (after - before) / SPILL_BYTES
    finally:
        tracemalloc.stop()
