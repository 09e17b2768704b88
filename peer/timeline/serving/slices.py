"""File slices of a partition: the newest, those of an instant, and all; a page at a time."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from peer.timeline.serving import models
from peer.timeline.serving.parameters import AsciiJson, Served, SlicesAsked
from peer.timeline.views import Views
from replication.core.timeline.view import FileSlice

router = APIRouter(prefix="/v1/slices")
Asked = Annotated[SlicesAsked, Depends()]


@router.get("/latest", response_model=models.Slices)
def latest(views: Served, asked: Asked) -> Any:
    """The newest slice of each file of a partition."""
    return _page(asked, views, lambda: views.latest(asked.dataset, asked.partition, asked.file))


@router.get("/as-of", response_model=models.Slices)
def as_of(views: Served, asked: Asked, time: Annotated[int, Query(description="an instant")]) -> Any:
    """The slices that a reader as of an instant sees."""
    return _page(asked, views, lambda: views.as_of(asked.dataset, asked.partition, time, asked.file))


@router.get("/all", response_model=models.Slices)
def every(views: Served, asked: Asked) -> Any:
    """Every slice that exists, each file's oldest first, those of pending folds too."""
    return _page(asked, views, lambda: views.all(asked.dataset, asked.partition, asked.file))


def _page(asked: SlicesAsked, views: Views, read: Callable[[], list[FileSlice]]) -> Any:
    """One page, with the state that all of it is of: a client puts pages of one state together."""
    state, found = views.state(), read()
    while (after := views.state()).hash != state.hash:  # another request has caught up meanwhile
        state, found = after, read()
    left = [each for each in found if asked.after is None or each.file > asked.after]
    end = _end(left, asked.limit)
    return AsciiJson(
        {
            "partition": asked.partition,
            "slices": [models.Slice.of(each) for each in left[:end]],
            "next": left[end - 1].file if end < len(left) else None,
            "instant": state.instant,
            "hash": state.hash,
        }
    )


def _end(left: list[FileSlice], limit: int) -> int:
    """Where a page ends: a file's slices go together, even if there are more of them than the limit."""
    if len(left) <= limit:
        return len(left)
    ends = [at for at in range(1, len(left) + 1) if at == len(left) or left[at].file != left[at - 1].file]
    return max((at for at in ends if at <= limit), default=ends[0])
