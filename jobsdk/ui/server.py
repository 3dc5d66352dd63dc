"""The page's server: files of the page, what the runs' folders hold as JSON, live news, and some actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from math import isfinite
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from jobsdk.errors import JobsdkError, RunNotFound
from jobsdk.ui import actions
from jobsdk.ui.guard import Guard, Tickets
from jobsdk.ui.listing import Listing
from jobsdk.views.markup import STYLE
from jobsdk.views.watched import Watch, Watched

_STATIC = Path(__file__).parent / "static"
_EVERY_S = 0.3  # seconds between two looks at a run that is followed
_ALIVE_S = 15.0  # seconds after which a silent stream says that it is there
_PAGE = 2000  # lines in one answer


def application(
    token: str, port: int, tickets: Tickets | None = None, is_ending: Callable[[], bool] = lambda: False
) -> Starlette:
    """The application, for a server on `port` of loopback; see `Guard`. Streams end when it `is_ending`."""
    watch, listing = Watch(), Listing()

    def of_run(answer: Callable[[Watched, Request], Any]) -> Callable[[Request], Any]:
        """An endpoint of a run: what `answer` gives as JSON."""

        async def endpoint(request: Request) -> Response:
            try:
                found = await run_in_threadpool(lambda: answer(watch.of(request.path_params["name"]), request))
            except RunNotFound as error:
                return JSONResponse({"error": str(error)}, 404)
            except IndexError as error:
                return JSONResponse({"error": str(error)}, 400)
            except ValueError as error:
                return JSONResponse({"error": f"not a request of the page: {error}"}, 400)
            except JobsdkError as error:
                return JSONResponse({"error": str(error)}, 409)
            return found if isinstance(found, Response) else _json(found)

        return endpoint

    async def live(request: Request) -> Response:
        """The summary of a run, each time that it has changed, until the run's end."""
        name = request.path_params["name"]
        try:
            await run_in_threadpool(watch.of, name)
        except RunNotFound as error:
            return JSONResponse({"error": str(error)}, 404)
        return StreamingResponse(_news(watch, name, request, is_ending), media_type="text/event-stream")

    async def runs(request: Request) -> Response:
        return _json(await run_in_threadpool(listing.runs, dict(request.query_params)))

    async def style(_: Request) -> Response:
        return Response(STYLE, media_type="text/css")

    async def page(_: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    def lines(run: Watched, request: Request) -> Any:
        ranks = _ranks(request)
        first, count = int(request.query_params.get("first", 0)), int(request.query_params.get("count", 500))
        if first < 0 or not 0 <= count <= _PAGE:
            raise ValueError("first and count")
        start = _start(request)
        return {"total": run.count(ranks, start), "lines": run.lines(first, count, ranks, start)}

    def find(run: Watched, request: Request) -> Any:
        words = request.query_params.get("words", "")[:200]
        return run.find(words, _ranks(request), _start(request))._asdict()

    routes = [
        Route("/", page),
        Route("/runs/{name}", page),
        Route("/api/runs", runs),
        Route("/api/runs/{name}", of_run(lambda run, _: {**actions.facts(run.folder), **run.summary()})),
        Route("/api/runs/{name}/live", live),
        Route("/api/runs/{name}/lines", of_run(lines)),
        Route("/api/runs/{name}/find", of_run(find)),
        Route("/api/runs/{name}/ranks/{rank:int}", of_run(lambda run, request: run.rank(request.path_params["rank"]))),
        Route("/api/runs/{name}/timeline", of_run(lambda run, _: run.timeline())),
        Route("/api/runs/{name}/metrics", of_run(lambda run, _: run.metrics())),
        Route("/api/runs/{name}/native", of_run(lambda run, _: actions.native(run.folder))),
        Route("/api/runs/{name}/download", of_run(lambda run, _: actions.archive(run.folder))),
        Route("/api/runs/{name}/report", of_run(lambda run, _: actions.report(run.folder))),
        Route("/api/runs/{name}/cancel", of_run(lambda run, _: actions.cancel(run.folder)), methods=["POST"]),
        Route("/api/runs/{name}/rerun", of_run(lambda run, _: actions.rerun(run.folder)), methods=["POST"]),
        Route("/api/runs/{name}/stacks", of_run(lambda run, _: actions.stacks(run.folder)), methods=["POST"]),
        Route("/static/views.css", style),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, port=port, tickets=tickets)])


def _ranks(request: Request) -> list[int] | None:
    """The ranks in the query `ranks=0,3`; None is all. Raises ValueError."""
    given = request.query_params.get("ranks", "")
    return [int(word) for word in given.split(",")] if given else None


def _start(request: Request) -> int | None:
    """Which start of the job the query `start` asks for; None is the latest. Raises ValueError."""
    given = request.query_params.get("start", "")
    return int(given) if given else None


async def _news(watch: Watch, name: str, request: Request, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    told, silent = "", 0.0
    while not is_ending() and not await request.is_disconnected():
        try:
            summary = dict(await run_in_threadpool(lambda: watch.known(name).news(_EVERY_S / 2)))
        except RunNotFound:  # somebody has deleted it
            yield "event: gone\ndata: {}\n\n"
            return
        now = summary.pop("now")
        said = _text(summary)
        if said != told:
            told, silent = said, 0.0
            yield f"data: {_text({**summary, 'now': now})}\n\n"
        if summary["is_over"] and not summary["is_behind"]:
            yield "event: over\ndata: {}\n\n"
            return
        await asyncio.sleep(_EVERY_S)
        silent += _EVERY_S
        if silent > _ALIVE_S:
            silent = 0.0
            yield ": still here\n\n"


def _text(data: Any) -> str:
    return json.dumps(_numbers(data), separators=(",", ":"), default=str)


def _json(data: Any) -> Response:
    return Response(_text(data), media_type="application/json")


def _numbers(data: Any) -> Any:
    """The data with text for numbers that JSON does not have."""
    if isinstance(data, float) and not isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: _numbers(value) for key, value in data.items()}
    return [_numbers(value) for value in data] if isinstance(data, list | tuple) else data
