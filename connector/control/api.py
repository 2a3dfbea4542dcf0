"""The agent's HTTP API: the same as the commands, with the same validation, as JSON.

Reads use the agent's memory, and the store for anything else. A POST writes a request to the landing zone, as
the commands do: it survives this agent, and the same id runs only once. An error is JSON with `error` and
`hint`, never a traceback. `control.guard` has checked before who may ask what.

Answers from memory alone (health, metrics, the agent's own state, the page) run in the server's own thread.
Anything that may wait for the store runs in a pool of threads, few enough at a time that a hanging store
leaves connections for the rest.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.exceptions import HTTPException

from connector import __version__
from connector.control.dump_requests import DumpList, list_dumps, request_control, request_dump
from connector.control.last_hour import History
from connector.control.live_agent import LiveAgent
from connector.control.manifest_list import MOST, ManifestList, ManifestSummary
from connector.control.metrics import CONTENT_TYPE, Metrics
from connector.control.status import Status, status
from connector.errors import DeltatideError, PreconditionError, RequestError, TransientError
from connector.landing.manifest import Gap
from connector.landing.manifest_store import ManifestReader
from connector.landing.requests import WantedSettings

log = logging.getLogger(__name__)

PAGE = {
    "/": "index.html",
    "/docs": "docs.html",
    **{
        f"/{name}": name
        for name in ("page.css", "page.js", "summary.js", "details.js", "draw.js", "format.js", "docs.js")
    },
}
"""The files of the page by path."""

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

MANIFESTS_SHOWN = 15

MOST_WAITING = 30
"""Requests that may wait for the store at a time: fewer than the pool's 40 threads, and than connections."""

_GAPS = TypeAdapter(list[Gap])
_SUMMARIES = TypeAdapter(list[ManifestSummary])


class Error(BaseModel):
    """What went wrong, and what to do."""

    error: str
    hint: str | None = None


class Requested(BaseModel):
    """The request that was left in the landing zone; dumps show its id."""

    id: str


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str | None = Field(default=None, description="Sent twice with the same content, it runs once.")

    def given(self) -> dict[str, Any]:
        """Return what was given."""
        return self.model_dump(exclude_none=True)


class DumpBody(_Body):
    """All tables (`all`), some, or rows of one: by a condition in the source's SQL, or by keys."""

    tables: list[str] | None = Field(default=None, min_length=1, description="As namespace.table.")
    all: bool = False
    where: str | None = None
    keys: list[list[str]] | None = Field(default=None, description="Values as text, in the key's order.")


class ControlBody(_Body):
    """One dump, by its id or that of the request that asked for it; or all of them."""

    dump: str | None = None
    all: bool = False


class SetBody(_Body):
    """Settings of one dump, or without `dump` of all; `defaults` drops what was set before."""

    dump: str | None = None
    settings: WantedSettings = WantedSettings()
    defaults: bool = False


class _StoreQueue:
    """Limits the requests that may wait for the store, and refuses further ones."""

    def __init__(self) -> None:
        self._waiting = 0

    async def __call__(self) -> AsyncIterator[None]:
        """Count a request while it is answered."""
        if self._waiting >= MOST_WAITING:
            raise TransientError(
                "too many requests wait for the landing zone's store", hint="it answers slowly, or not at all"
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1


def build_app(live: LiveAgent, history: History) -> FastAPI:
    """Build an agent's application; it needs no other files or hosts."""
    app = FastAPI(
        title="Deltatide",
        version=__version__,
        description="Status and control of a capture agent.",
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": Error}},
    )
    secured = [Depends(HTTPBearer(auto_error=False, description="Needed if tokens are configured."))]
    patient = [*secured, Depends(_StoreQueue())]
    app.include_router(_memory_reads(live, history), prefix="/api", dependencies=secured)
    app.include_router(_store_reads(live, history), prefix="/api", dependencies=patient)
    app.include_router(_requests(live), prefix="/api", dependencies=patient)
    app.include_router(_health(live))
    _add_metrics(app, live)
    _add_page(app)
    _add_errors(app)
    return app


def _memory_reads(live: LiveAgent, history: History) -> APIRouter:
    reads = APIRouter(tags=["status"])

    @reads.get("/agent")
    async def agent() -> dict[str, Any]:
        """State of this agent (starting, standby, active, stuck) and its figures; needs no store.

        Seconds for which the store has not answered, and the source's log can't have been read; 0: it is.
        """
        progress = live.progress
        return {
            "state": live.state,
            "version": __version__,
            "source": live.config.source.name,
            "figures": None if progress is None else progress.figures(live.newest_known()),
            "load": {} if progress is None else dict(progress.load),
            "store_errors": dict(live.store_errors),
            "store_failing_seconds": round(live.store_failing_seconds, 1),
            "log_lost_seconds": 0.0 if progress is None else round(progress.lost_seconds, 1),
        }

    @reads.get("/history")
    async def get_history() -> list[dict[str, Any]]:
        """Lag and rows per second in the last hour, every ten seconds, oldest first."""
        return history.points()

    return reads


def _store_reads(live: LiveAgent, history: History) -> APIRouter:
    reads = APIRouter(tags=["status"])
    manifests = ManifestList(ManifestReader(live.store).stored)

    @reads.get("/status", response_model=Status)
    def get_status() -> Response:
        """What `deltatide status --json` prints: who is active, how far the log has landed, each table."""
        return JSONResponse(status(live).as_json())

    @reads.get("/dumps")
    def get_dumps() -> list[dict[str, Any]]:
        """What `deltatide dumps --json` prints: all dumps with their progress, oldest first.

        Then the last requests that were rejected, in state `rejected`.
        """
        return list_dumps(live).as_json()

    @reads.get("/settings")
    def get_settings() -> dict[str, Any]:
        """The settings for all dumps; whether new ones begin paused; why dumps are held back."""
        return _settings(list_dumps(live))

    @reads.get("/tables")
    def get_tables() -> dict[str, Any]:
        """The tables: state, reason and hint; rows per second of those that change."""
        rates, known = history.rows_per_second(), status(live).as_json()["tables"]
        return {name: {**table, "rows_per_second": rates.get(name, 0.0)} for name, table in known.items()}

    @reads.get("/gaps", response_model=list[Gap])
    def get_gaps() -> Response:
        """Log that was lost, and where."""
        return JSONResponse(_GAPS.dump_python(live.newest().gaps, mode="json"))

    @reads.get("/manifests", response_model=list[ManifestSummary])
    def get_manifests(limit: Annotated[int, Query(ge=1, le=MOST)] = 20) -> Response:
        """The last manifests, the newest first: position, rows by table, notices."""
        return JSONResponse(_SUMMARIES.dump_python(manifests.last(live.newest(), limit), mode="json"))

    @reads.get("/notices")
    def get_notices() -> list[dict[str, Any]]:
        """What happened to tables, dumps and the source in the last hundred manifests, the newest first."""
        return _notices(manifests.last(live.newest(), MOST))

    @reads.get("/overview")
    def get_overview() -> Response:
        """What the status page shows, in one answer; `rates`: rows per second by table, null on a standby."""
        dumps, last = list_dumps(live), manifests.last(live.newest(), MOST)
        return JSONResponse(
            {
                "status": status(live).as_json(),
                "rates": None if live.progress is None else history.rows_per_second(),
                "dumps": dumps.as_json(),
                "settings": _settings(dumps),
                "gaps": _GAPS.dump_python(live.newest().gaps, mode="json"),
                "manifests": _SUMMARIES.dump_python(last[:MANIFESTS_SHOWN], mode="json"),
                "notices": _notices(last),
            }
        )

    return reads


def _settings(dumps: DumpList) -> dict[str, Any]:
    return {**vars(dumps.settings), "pause_new": dumps.pause_new, "held_back": dumps.held_back}


def _notices(manifests: list[ManifestSummary]) -> list[dict[str, Any]]:
    return [notice for manifest in manifests for notice in reversed(manifest.notices)]


def _requests(live: LiveAgent) -> APIRouter:
    requests = APIRouter(tags=["control"])

    @requests.post("/dump", status_code=202)
    def dump(body: DumpBody) -> Requested:
        """Request dumps of all tables, some, or rows of one, while the log keeps flowing."""
        if (body.tables is None) != body.all:
            raise RequestError("name tables, or all", hint='{"tables": ["public.orders"]} or {"all": true}')
        return Requested(id=request_dump(live, body.tables, body.where, body.keys, body.id))

    @requests.post("/pause", status_code=202)
    def pause(body: ControlBody) -> Requested:
        """Pause a dump after the chunk that is being read; all: also those queued later."""
        return Requested(id=request_control(live, kind="pause", **body.given()))

    @requests.post("/resume", status_code=202)
    def resume(body: ControlBody) -> Requested:
        """Resume a paused dump where it left off."""
        return Requested(id=request_control(live, kind="resume", **body.given()))

    @requests.post("/cancel", status_code=202)
    def cancel(body: ControlBody) -> Requested:
        """Cancel a dump; what it has landed stays."""
        return Requested(id=request_control(live, kind="cancel", **body.given()))

    @requests.post("/set", status_code=202)
    def set_(body: SetBody) -> Requested:
        """Change how fast dumps are read, while they run; kept across restarts."""
        return Requested(id=request_control(live, kind="set", **body.given()))

    @requests.post("/reload", status_code=202)
    def reload(body: _Body) -> Requested:
        """Have the active agent read its configuration file again: tables, dump and limits."""
        return Requested(id=request_control(live, kind="reload", **body.given()))

    @requests.post("/handover", status_code=202)
    def handover(body: _Body) -> Requested:
        """Have the active agent hand over to a standby; /api/status shows who is active."""
        return Requested(id=request_control(live, kind="handover", **body.given()))

    return requests


def _health(live: LiveAgent) -> APIRouter:
    health = APIRouter(tags=["health"])

    @health.get("/healthz")
    async def healthz() -> Response:
        """200 unless the agent is stuck, with its state."""
        state = live.state
        return JSONResponse({"state": state}, 503 if state == "stuck" else 200)

    @health.get("/readyz")
    async def readyz() -> Response:
        """200 if the agent captures: neither starting, nor a standby, nor stuck."""
        state = live.state
        return JSONResponse({"state": state}, 200 if state == "active" else 503)

    return health


def _add_metrics(app: FastAPI, live: LiveAgent) -> None:
    metrics = Metrics(live)

    @app.get("/metrics", tags=["status"], response_class=Response)
    async def get_metrics() -> Response:
        """Metrics for Prometheus, in its text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    folder = resources.files("connector.control.page")

    def add(path: str, name: str) -> None:
        content, media_type = (folder / name).read_bytes(), f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8"

        @app.get(path, include_in_schema=False)
        async def file() -> Response:
            return Response(content, media_type=media_type)

    for path, name in PAGE.items():
        add(path, name)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(DeltatideError)
    async def ours(_: Request, error: DeltatideError) -> Response:
        kinds = {RequestError: 400, PreconditionError: 409, TransientError: 503}
        found = (status for kind, status in kinds.items() if isinstance(error, kind))
        return _error(next(found, 500), str(error), error.hint)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        message = first["msg"][:1].lower() + first["msg"][1:]
        return _error(422, f"{where}: {message}".removeprefix(": "), "see /docs")

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail).lower(), "see /docs")

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        log.error("a request failed: %s", type(error).__name__)
        return _error(500, "the agent failed to answer", "see its log")


def _error(status_code: int, error: str, hint: str | None) -> Response:
    return JSONResponse(Error(error=error, hint=hint).model_dump(), status_code)
