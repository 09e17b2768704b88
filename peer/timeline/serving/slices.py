"""File slices of a partition: the newest, those of an instant, and all; a page at a time."""

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from peer.timeline.serving import models
from peer.timeline.serving.parameters import AsciiJson, Served, SlicesAsked
from peer.timeline.views import Views
from replication.core.timeline.view import FileSlice

router = APIRouter(prefix="/v1/slices")
ComparedCluster = Annotated[SlicesAsked, Depends()]


@router.get("/latest", response_model=models.Slices)
def latest(views: Served, asked: ComparedCluster) -> Any:
    """The newest slice of each file of a partition."""
    return _page(asked, views, lambda: views.latest(asked.dataset, asked.partition, asked.file))


@router.get("/as-of", response_model=models.Slices)
def as_of(views: Served, asked: ComparedCluster, time: Annotated[int, Query(description="an instant")]) -> Any:
    """The slices that a reader as of an instant sees."""
    return _page(asked, views, lambda: views.as_of(asked.dataset, asked.partition, time, asked.file))


@router.get("/all", response_model=models.Slices)
def every(views: Served, asked: ComparedCluster) -> Any:
    """Every slice that exists, each file's oldest first, those of pending folds too."""
    return _page(asked, views, lambda: views.all(asked.dataset, asked.partition, asked.file))


def _page(asked: SlicesAsked, views: Views, read: Callable[[], list[FileSlice]]) -> Any:
    """One page, with the state that all of it is of: a client puts pages of one state together."""
    state, found = views.state(), read()
    while (after := views.state()).hash != state.hash:  # another request has caught up meanwhile
        state, found = after, read()
    left = (each for each in found if asked.after is None or each.file > asked.after)
    page = list(islice(left, asked.limit + 1))
    more = len(page) > asked.limit
    kept = page[: asked.limit]
    while more and len(kept) > 1 and kept[-1].file == page[asked.limit].file:  # a file's slices go together
        kept.pop()
    return AsciiJson(
        {
            "partition": asked.partition,
            "slices": [models.Slice.of(each) for each in kept],
            "next": kept[-1].file if more else None,
            "instant": state.instant,
            "hash": state.hash,
        }
    )
