"""The REST interface of the timeline, by resource. Its types are documented at ``/openapi.json``."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from peer.timeline.serving import datasets, instants, models, slices
from peer.timeline.serving.parameters import AsciiJson
from peer.timeline.views import Views
from replication import __version__, log
from replication.core.timeline.instants import Instant
from replication.errors import ConfigError, ReplicationError, RequestError

_log = log.get(__name__)

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
    for resource in (instants, slices, datasets):
        app.include_router(resource.router)

    @app.get("/v1/jobs/{job:path}")
    def job(job: str) -> dict[str, Any]:
        """The specification of a job."""
        found = known.job(job)
        if found is None:
            raise HTTPException(404, f"There is no job {job}")
        return dict(found)

    @app.get("/v1/tables/{table}/instants", response_model=list[models.InstantAnswer])
    def table_instants(table: str) -> Any:
        """What replay, folds, bootstraps and drills did to a table, oldest first."""
        found = known.table_instants(table)
        if found is None:
            raise HTTPException(404, f"There is no table {table}")
        return AsciiJson([models.InstantAnswer.of(instant) for instant in found])

    _errors(app)
    return app


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
        _log.error("timeline_request_error", path=request.url.path, error=f"{type(error).__name__}: {error}")
        return JSONResponse({"error": f"{type(error).__name__}: {error}", "hint": "See the server's log"}, 500)
