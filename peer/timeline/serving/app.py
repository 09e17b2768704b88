"""The REST interface of the timeline. Its types are documented at ``/docs`` and ``/openapi.json``.

A client sends ``instant`` and ``hash``, the last completed instant and the hash that it knows. A server that knows
less catches up before it answers; one that knows the same reads nothing.
"""

import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from peer.timeline.serving import models
from peer.timeline.views import Known, Views
from replication import __version__, log
from replication.core.timeline.instants import TimelineState
from replication.core.timeline.view import FileSlice
from replication.errors import ReplicationError, RequestError

PAGE_MAX = 10_000
#: Returns a job's specification; None if there is no such job.
Jobs = Callable[[str], Mapping[str, Any] | None]
_log = log.get(__name__)

Dataset = Annotated[str, Query(description="a dataset that the timeline names")]
Partition = Annotated[str, Query(description="a partition; for a folder, the folder below the root")]
File = Annotated[str | None, Query(description="only this file")]
After = Annotated[str | None, Query(description="only files after this one, in order")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": models.Problem, "description": text}
    for code, text in {
        400: "the request cannot be answered, as for an instant whose files are gone",
        404: "no such dataset, instant or job",
        409: "the client's timeline is not the server's",
        500: "the server failed",
        503: "the store of the timeline or dataset failed; try again",
    }.items()
}


class AsciiJson(JSONResponse):
    """JSON in which names that are not UTF-8 are escaped."""

    def render(self, content: Any) -> bytes:
        """The bytes of the answer."""
        return json.dumps(content, separators=(",", ":")).encode()


def make_app(views: Views, jobs: Jobs) -> FastAPI:
    """Return the application; it does not close ``views``."""
    app = FastAPI(title="walship timeline", version=__version__, responses=_PROBLEMS)

    def synced(
        instant: Annotated[int, Query(description="the last completed instant that the client knows")] = 0,
        hash: Annotated[str, Query(description="the hash of the timeline that the client knows")] = "",
    ) -> TimelineState:
        state = views.sync_for(Known(instant, hash) if hash else None)
        if state is None:
            raise HTTPException(409, "The client knows instants that this timeline does not have")
        return state

    Synced = Annotated[TimelineState, Depends(synced)]

    def paged(state: TimelineState, partition: str, found: list[FileSlice], after: str | None, limit: int) -> Any:
        left = (each for each in found if after is None or each.file > after)
        page = list(islice(left, limit + 1))
        more = len(page) > limit
        kept = page[:limit]
        while more and len(kept) > 1 and kept[-1].file == page[limit].file:  # a file's slices go together
            kept.pop()
        return AsciiJson(
            {
                "partition": partition,
                "slices": [models.Slice.of(each) for each in kept],
                "next": kept[-1].file if more else None,
                "instant": state.instant,
                "hash": state.hash,
            }
        )

    def known(state: TimelineState, dataset: str) -> None:
        if dataset not in state.roots:
            raise HTTPException(404, f"The timeline has no dataset {dataset}")

    _instants(app, views, Synced)
    _errors(app)

    @app.get("/v1/slices/latest", response_model=models.Slices)
    def latest(
        state: Synced,
        dataset: Dataset,
        partition: Partition = "",
        file: File = None,
        after: After = None,
        limit: Limit = PAGE_MAX,
    ) -> Any:
        """The newest slice of each file of a partition."""
        known(state, dataset)
        return paged(state, partition, views.latest(dataset, partition, file), after, limit)

    @app.get("/v1/slices/as-of", response_model=models.Slices)
    def as_of(
        state: Synced, dataset: Dataset, time: Annotated[int, Query(description="an instant")],
        partition: Partition = "", file: File = None, after: After = None, limit: Limit = PAGE_MAX,
    ) -> Any:  # fmt: skip
        """The slices that a reader as of an instant sees."""
        known(state, dataset)
        return paged(state, partition, views.as_of(dataset, partition, time, file), after, limit)

    @app.get("/v1/slices/all", response_model=models.Slices)
    def every(
        state: Synced,
        dataset: Dataset,
        partition: Partition = "",
        file: File = None,
        after: After = None,
        limit: Limit = PAGE_MAX,
    ) -> Any:
        """Every slice that exists, each file's oldest first, those of pending folds too."""
        known(state, dataset)
        return paged(state, partition, views.all(dataset, partition, file), after, limit)

    @app.get("/v1/partitions", response_model=models.Names)
    def partitions(state: Synced, dataset: Dataset) -> Any:
        """The partitions of a dataset."""
        known(state, dataset)
        return AsciiJson({"names": views.partitions(dataset), "instant": state.instant, "hash": state.hash})

    @app.get("/v1/datasets", response_model=models.Names)
    def datasets(state: Synced) -> Any:
        """The datasets that the timeline names."""
        return {"names": sorted(state.roots), "instant": state.instant, "hash": state.hash}

    @app.post("/v1/refresh", response_model=models.TimelineHash)
    def refresh(state: Synced, dataset: Dataset, partition: Annotated[str | None, Query()] = None) -> Any:
        """List a partition, or all of a dataset, again, since something else changed its files."""
        known(state, dataset)
        views.refresh(dataset, partition)
        return models.TimelineHash.of(state)

    @app.get("/v1/jobs/{job:path}")
    def job(job: str) -> dict[str, Any]:
        """The specification of a job."""
        found = jobs(job)
        if found is None:
            raise HTTPException(404, f"There is no job {job}")
        return dict(found)

    @app.get("/v1/health", response_model=models.Health)
    def health() -> Any:
        """Whether the server answers; reads the timeline, so that a lost store shows."""
        return {"status": "ok", **models.TimelineHash.of(views.sync()), "listed": views.listed}

    return app


def _instants(app: FastAPI, views: Views, Synced: Any) -> None:
    """Add what tells of instants."""

    @app.get("/v1/timeline", response_model=models.TimelineReply)
    def timeline(
        after: Annotated[int, Query(description="the last completed instant that the client knows")] = 0,
        hash: Annotated[str, Query(description="the hash that the client knows")] = "",
        dataset: Annotated[str | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 1000,
    ) -> Any:
        """The newest instants of the timeline; with what the client knows, just those that are new to it."""
        state = views.sync()
        found = views.news(Known(after, hash))
        instants = [i for i in (views.recent() if found is None else found) if dataset in (None, i.dataset)]
        return {
            "instants": [models.InstantAnswer.of(instant) for instant in instants[-limit:]],
            "complete": found is not None and len(instants) <= limit,
            "instant": state.instant,
            "hash": state.hash,
        }

    @app.get("/v1/timeline/hash", response_model=models.TimelineHash)
    def timeline_hash() -> Any:
        """The hash of the timeline, and its last completed instant."""
        return models.TimelineHash.of(views.sync())

    @app.get("/v1/timeline/instants/{time}", response_model=models.InstantAnswer)
    def instant(time: int) -> Any:
        """One recent or pending instant, by when it was requested or completed."""
        views.sync()
        for found in (*views.pending(), *reversed(views.recent())):
            if time in (found.time, found.completed):
                return models.InstantAnswer.of(found)
        raise HTTPException(404, f"The timeline has no recent instant {time}")

    @app.get("/v1/pending", response_model=list[models.InstantAnswer])
    def pending(state: Synced, dataset: Annotated[str | None, Query()] = None) -> Any:
        """What is requested or inflight."""
        return [models.InstantAnswer.of(found) for found in views.pending(dataset)]


def _errors(app: FastAPI) -> None:
    """Answer errors as ``Problem``."""

    @app.exception_handler(ReplicationError)
    def failed(request: Request, error: ReplicationError) -> JSONResponse:
        status = 400 if isinstance(error, RequestError) else 503
        if status == 503:
            _log.warning("timeline_request_failed", path=request.url.path, error=error.what)
        return JSONResponse({"error": error.what, "hint": error.hint}, status)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail), "hint": ""}, error.status_code)

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> JSONResponse:
        _log.error("timeline_request_error", path=request.url.path, error=f"{type(error).__name__}: {error}")
        return JSONResponse({"error": f"{type(error).__name__}: {error}", "hint": "See the server's log"}, 500)
