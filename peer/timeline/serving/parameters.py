"""What requests share: the views that they are answered from, their parameters, and JSON of any name.

A client sends ``instant`` and ``hash``, the last completed instant and the hash that it knows. A server that knows
less catches up before it answers; one that knows the same reads nothing.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from peer.timeline.views import Known, Views
from replication.core.timeline.instants import TimelineState

PAGE_MAX = 10_000

_NAME_CHARS_MAX = 4096  # names that were asked for are remembered
Hash = Annotated[str, Query(description="the hash of the timeline that the client knows", max_length=_NAME_CHARS_MAX)]
Dataset = Annotated[str, Query(description="a dataset that the timeline names", max_length=_NAME_CHARS_MAX)]
OneDataset = Annotated[str | None, Query(description="only this dataset", max_length=_NAME_CHARS_MAX)]
Partition = Annotated[
    str, Query(description="a partition; for a folder, the folder below the root", max_length=_NAME_CHARS_MAX)
]


class AsciiJson(JSONResponse):
    """JSON in which names that are not UTF-8 are escaped."""

    def render(self, content: Any) -> bytes:
        """The bytes of the answer."""
        return json.dumps(content, separators=(",", ":")).encode()


def views_of(request: Request) -> Views:
    """The application's views."""
    views: Views = request.app.state.views
    return views


Served = Annotated[Views, Depends(views_of)]


def synced(
    views: Served,
    instant: Annotated[int, Query(description="the last completed instant that the client knows")] = 0,
    hash: Hash = "",
) -> TimelineState:
    """The state of views that know what the client knows; 409 if the client knows another timeline."""
    state = views.sync_for(Known(instant, hash) if hash else None)
    if state is None:
        raise HTTPException(409, "the client knows instants that this timeline does not have")
    return state


Synced = Annotated[TimelineState, Depends(synced)]


@dataclass
class SlicesAsked:
    """Which file slices a client asks for, and the state of the views that answer. 404 if there is no such dataset."""

    state: Synced
    dataset: Dataset
    partition: Partition = ""
    file: Annotated[str | None, Query(description="only this file", max_length=_NAME_CHARS_MAX)] = None
    after: Annotated[
        str | None, Query(description="only files after this one, in order", max_length=_NAME_CHARS_MAX)
    ] = None
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_MAX

    def __post_init__(self) -> None:
        """Refuse a dataset that the timeline does not name."""
        check_known(self.state, self.dataset)


def check_known(state: TimelineState, dataset: str) -> None:
    """404 if the timeline has no such dataset."""
    if dataset not in state.roots:
        raise HTTPException(404, f"the timeline has no dataset {dataset}")
