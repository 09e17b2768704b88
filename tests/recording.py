"""What tests of recorded copies share: a copy that is recorded on a timeline, and a reader of that timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.timeline.client import TimelineAddress
from peer.timeline.reading.dataset import TimelineDataset
from replication.datasets.job import CopyJob
from replication.datasets.publication.recording import RecordedDataset
from replication.datasets.stores.base import Store
from replication.datasets.stores.local import LocalStore
from replication.settings import TimelineSection, TlsSection
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records
from tests.copying import job


def timeline(at: Path) -> RecordedTimeline:
    return RecordedTimeline(open_records(str(at / "timeline")))


def recorded(at: Path, target: Store | None = None, **given: Any) -> CopyJob:
    """A copy of ``src`` to ``dst`` that is recorded as the dataset "lake"; it has not run."""
    made = job(LocalStore(str(at / "src")), target or LocalStore(str(at / "dst")), **given)
    made.recorded = RecordedDataset(str(at / "timeline"), "lake")
    return made


def reader(at: Path) -> TimelineDataset:
    """The dataset "lake" as a reader without a server sees it."""
    return TimelineDataset("lake", TimelineAddress("east", str(at / "timeline"), TimelineSection(), TlsSection()))
