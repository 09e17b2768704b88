"""The REST interface of the timeline, by resource. Its types are documented at ``/openapi.json``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from peer.timeline.serving import models
from peer.timeline.serving.parameters import (
    PAGE_MAX,
    AsciiJson,
    Dataset,
    Hash,
    OneDataset,
    Partition,
    Served,
    SlicesAsked,
    Synced,
    check_known,
)
from peer.timeline.views import Views
from replication import __version__, log
from replication.core.timeline.instants import Instant
from replication.core.timeline.view import FileSlice
from replication.error_text import one_line
from replication.errors import ConfigError, ReplicationError, RequestError

_log = log.get(__name__)
router = APIRouter(prefix="/v1")
Asked = Annotated[SlicesAsked, Depends()]

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": models.Problem, "description": text}
    for code, text in {
        400: "the request cannot be answered, as for an instant whose files are gone",
        404: "no such dataset, instant, job or table",
        409: "the client's timeline is not the server's",
        500: "the server failed",
        503: "the store of the timeline or dataset failed; try again",
    }.items()
}


class JobsAndTables(Protocol):
    """What the server tells beside the timeline. Both return None for what the cluster does not have."""

    def job(self, name: str) -> Mapping[str, Any] | None:
        """A job's specification."""

    def table_instants(self, name: str) -> Sequence[Instant] | None:
        """The instants of a table, oldest first."""


def make_app(views: Views, known: JobsAndTables) -> FastAPI:
    """Return the application; it does not close ``views``."""
    pages = None  # they would load scripts from elsewhere
    app = FastAPI(title="walship timeline", version=__version__, responses=_PROBLEMS, docs_url=pages, redoc_url=pages)
    app.state.views = views
    app.include_router(router)

    @app.get("/v1/jobs/{job:path}")
    def job(job: str) -> dict[str, Any]:
        """The specification of a job."""
        found = known.job(job)
        if found is None:
            raise HTTPException(404, f"there is no job {job}")
        return dict(found)

    @app.get("/v1/tables/{table}/instants", response_model=list[models.InstantAnswer])
    def table_instants(table: str) -> Any:
        """What replay, folds, bootstraps and drills did to a table, oldest first."""
        found = known.table_instants(table)
        if found is None:
            raise HTTPException(404, f"there is no table {table}")
        return AsciiJson([models.InstantAnswer.of(instant) for instant in found])

    _errors(app)
    return app


_CLOSED = {"Connection": "close"}  # uvicorn closes it after such an error: a client must not use it again


def _errors(app: FastAPI) -> None:
    """Answer errors as ``Problem``."""

    @app.exception_handler(ReplicationError)
    def failed(request: Request, error: ReplicationError) -> JSONResponse:
        status = 400 if isinstance(error, RequestError) else 500 if isinstance(error, ConfigError) else 503
        if status >= 500:
            _log.warning("timeline_request_failed", path=request.url.path, error=error.what)
        return JSONResponse({"error": error.what, "hint": error.hint}, status)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail), "hint": ""}, error.status_code)

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> JSONResponse:
        what = log.redact(one_line(error))  # of a library, which may quote an address or a statement with its values
        _log.error("timeline_request_error", path=request.url.path, error=what)
        return JSONResponse({"error": what, "hint": "See the server's log"}, 500, _CLOSED)


@router.get("/timeline", response_model=models.TimelineReply)
def timeline(
    views: Served,
    hash: Hash = "",
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
    raise HTTPException(404, f"the timeline has no recent instant {time}")


@router.get("/pending", response_model=list[models.InstantAnswer])
def pending(views: Served, state: Synced, dataset: OneDataset = None) -> Any:
    """What is requested or inflight."""
    return AsciiJson([models.InstantAnswer.of(found) for found in views.pending(dataset)])


@router.get("/slices/latest", response_model=models.Slices)
def latest(views: Served, asked: Asked) -> Any:
    """The newest slice of each file of a partition."""
    return _page(asked, views, lambda: views.latest(asked.dataset, asked.partition, asked.file))


@router.get("/slices/as-of", response_model=models.Slices)
def as_of(views: Served, asked: Asked, time: Annotated[int, Query(description="an instant")]) -> Any:
    """The slices that a reader as of an instant sees."""
    return _page(asked, views, lambda: views.as_of(asked.dataset, asked.partition, time, asked.file))


@router.get("/slices/all", response_model=models.Slices)
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


@router.get("/datasets", response_model=models.Names)
def datasets(state: Synced) -> Any:
    """The datasets that the timeline names."""
    return AsciiJson({"names": sorted(state.roots), "instant": state.instant, "hash": state.hash})


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
