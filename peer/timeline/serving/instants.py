"""Instants: the newest, those that are new to a client, one of them, and those that are pending."""

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from peer.timeline.serving import models
from peer.timeline.serving.parameters import PAGE_MAX, AsciiJson, OneDataset, Served, Synced

router = APIRouter(prefix="/v1")


@router.get("/timeline", response_model=models.TimelineReply)
def timeline(
    views: Served,
    hash: Annotated[str, Query(description="the hash that the client knows")] = "",
    dataset: OneDataset = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 1000,
) -> Any:
    """The newest instants of the timeline; with what the client knows, just those that are new to it."""
    state = views.sync()
    found = views.news(hash)
    instants = [i for i in (views.recent() if found is None else found) if dataset in (None, i.dataset)]
    return AsciiJson(
        {
            "instants": [models.InstantAnswer.of(instant) for instant in instants[-limit:]],
            "complete": found is not None and len(instants) <= limit,
            "instant": state.instant,
            "hash": state.hash,
        }
    )


@router.get("/timeline/hash", response_model=models.TimelineHash)
def timeline_hash(views: Served) -> Any:
    """The hash of the timeline, and its last completed instant."""
    return models.TimelineHash.of(views.sync())


@router.get("/timeline/instants/{time}", response_model=models.InstantAnswer)
def instant(views: Served, time: int) -> Any:
    """One recent or pending instant, by when it was requested or completed."""
    views.sync()
    for found in (*views.pending(), *reversed(views.recent())):
        if time in (found.time, found.completed):
            return AsciiJson(models.InstantAnswer.of(found))
    raise HTTPException(404, f"The timeline has no recent instant {time}")


@router.get("/pending", response_model=list[models.InstantAnswer])
def pending(views: Served, state: Synced, dataset: OneDataset = None) -> Any:
    """What is requested or inflight."""
    return AsciiJson([models.InstantAnswer.of(found) for found in views.pending(dataset)])
