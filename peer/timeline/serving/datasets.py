"""Datasets and their partitions, and having them listed again."""

from typing import Any

from fastapi import APIRouter

from peer.timeline.serving import models
from peer.timeline.serving.parameters import AsciiJson, Dataset, Partition, Served, Synced, check_known

router = APIRouter(prefix="/v1")


@router.get("/datasets", response_model=models.Names)
def datasets(state: Synced) -> Any:
    """The datasets that the timeline names."""
    return {"names": sorted(state.roots), "instant": state.instant, "hash": state.hash}


@router.get("/partitions", response_model=models.Names)
def partitions(views: Served, state: Synced, dataset: Dataset) -> Any:
    """The partitions of a dataset."""
    check_known(state, dataset)
    return AsciiJson({"names": views.partitions(dataset), "instant": state.instant, "hash": state.hash})


@router.post("/refresh", response_model=models.TimelineHash)
def refresh(views: Served, state: Synced, dataset: Dataset, partition: Partition | None = None) -> Any:
    """List a partition, or all of a dataset, again, since something else changed its files."""
    check_known(state, dataset)
    views.refresh(dataset, partition)
    return models.TimelineHash.of(state)


@router.get("/health", response_model=models.Health)
def health(views: Served) -> Any:
    """Whether the server answers; reads the timeline, so that a lost store shows."""
    return {"status": "ok", **models.TimelineHash.of(views.sync()), "listed": views.listed}
