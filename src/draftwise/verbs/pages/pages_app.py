"""The pages' server: loopback only, for its own host name only, and nothing changes without the token of a page."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwise.core import BackendError, Finding, InvalidSetup, cause_of
from draftwise.core.documents import to_json
from draftwise.core.progress import Progress
from draftwise.verbs import load_verb
from draftwise.verbs.error_documents import list_findings
from draftwise.verbs.jobs import Event, Jobs
from draftwise.verbs.listed_runs import ListedRun, list_runs, trace_run
from draftwise.verbs.pages.answers import answer, list_choices
from draftwise.verbs.verb import Result

_HERE = Path(__file__).parent
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.I)
_MOST_BYTES = 2_000_000
_MOST_JOBS = 20
"""Each page that watches a service runs one."""
_STARTED = {"watch": ("urls", "plain", "interval_s"), "report": ("run",)}
"""Long verbs that a page may start, and the fields that it may give."""
_FORECAST = ("profile", "calibration", "concurrency", "prompt_tokens", "output_tokens")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_REPORT = {"content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
"""A report is a page of a run, which may be somebody else's: it runs no scripts."""


class LoopbackOnly:
    """Refuses other host names (DNS rebinding), writes without the token, and bodies beyond a bound."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if refusal := self._refuse(Request(scope)):
            await JSONResponse({"error": refusal[1]}, refusal[0], headers=_HEADERS)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in own
                ]
            await send(message)

        await self.app(scope, receive, with_headers)

    def _refuse(self, request: Request) -> tuple[int, str] | None:
        host = request.headers.get("host", "")
        if not _HOST.fullmatch(host):
            return 421, "These pages answer to 127.0.0.1 and localhost only."
        if request.method in ("GET", "HEAD"):
            return None
        if request.headers.get("origin", f"http://{host}") != f"http://{host}":
            return 403, "The request comes from another site."
        if not secrets.compare_digest(request.headers.get("x-csrf-token", "").encode(), self.token.encode()):
            return 403, "The token is missing or old. Reload the page."
        if not request.headers.get("content-length", "").isdigit():
            return 411, "The length of the body is missing."
        if int(request.headers["content-length"]) > _MOST_BYTES:
            return 413, f"The body is larger than {_MOST_BYTES:,} bytes."
        return None


class Pages:
    """Handlers of the routes."""

    def __init__(self, folders: Iterable[Path], token: str) -> None:
        self.folders, self.token, self.jobs = tuple(folders), token, Jobs(_MOST_JOBS)
        self._pages = Environment(
            loader=PackageLoader("draftwise.verbs.pages", "templates"), autoescape=select_autoescape(default=True)
        )

    def _show(self, page: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._pages.get_template(f"{page}.html.j2").render(page=page, token=self.token, **values))

    def _find(self, key: str) -> ListedRun | None:
        return next((each for each in list_runs(self.folders) if each.key == key), None)

    def list(self, request: Request) -> Response:
        """Show the runs that fit the filters."""
        runs = list_runs(self.folders)
        asked = {name: request.query_params.get(name, "") for name in ("text", "model", "release", "verdict")}
        shown = [each for each in runs if _fits(each, asked)]
        return self._show(
            "runs",
            runs=shown,
            total=len(runs),
            asked=asked,
            choices={name: sorted({getattr(each, name) for each in runs} - {""}) for name in asked if name != "text"},
            trend=_draw_trend(shown),
        )

    def run(self, request: Request) -> Response:
        """Show one run: decision, verdicts, crossover."""
        run = self._find(request.path_params["key"])
        if run is None:
            return self._miss()
        try:
            summary = json.loads(Path(run.path, "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            summary = None
        charts = []
        if summary is not None and run.decision:
            charts = [*_draw_loads(summary["comparisons"]), *_draw_timeline(Path(run.path))]
        return self._show("run", run=run, summary=summary if run.decision else None, charts=charts)

    def report(self, request: Request) -> Response:
        """Send a run's report, which runs no scripts."""
        run = self._find(request.path_params["key"])
        if run is None or not (file := Path(run.path, "report.html")).is_file():
            return self._miss()
        return FileResponse(file, headers=_REPORT, media_type="text/html")

    def compare(self, request: Request) -> Response:
        """Show two runs, side by side."""
        runs = list_runs(self.folders)
        keys = [request.query_params.get(name, "") for name in ("before", "after")]
        pair = [next((each for each in runs if each.key == key), None) for key in keys]
        result, findings = None, tuple[Finding, ...]()
        if None not in pair:
            try:
                result = load_verb("compare")(*(each.path for each in pair if each is not None)).to_dict()
            except InvalidSetup as error:
                findings = error.findings
        return self._show("compare", runs=runs, keys=keys, pair=pair, result=result, findings=findings)

    def plain_page(self, request: Request) -> Response:
        """Show a page whose content its script asks for."""
        page = request.url.path.strip("/")
        return self._show(page, choices=list_choices() if page == "judge" else None)

    def _miss(self) -> Response:
        response = self._show("missing")
        response.status_code = 404
        return response

    async def answer(self, request: Request) -> Response:
        """Answer a form."""
        fields = await _read_fields(request)
        text = await run_in_threadpool(answer, request.path_params["verb"], fields)
        return Response(text, media_type="application/json")

    async def forecast(self, request: Request) -> Response:
        """Forecast what the sliders of a page ask for."""
        fields = await _read_fields(request)
        asked = {name: fields[name] for name in _FORECAST if fields.get(name) not in ("", None)}
        return await _run("forecast", asked)

    async def start(self, request: Request) -> Response:
        """Start a long verb."""
        name, fields = request.path_params["verb"], await _read_fields(request)
        allowed = _STARTED.get(name)
        if allowed is None:
            return JSONResponse({"error": []}, 404)
        asked = {each: fields[each] for each in allowed if fields.get(each) not in ("", None, [])}
        if name == "report":
            run = self._find(str(asked.get("run", "")))
            if run is None:
                return JSONResponse({"error": []}, 404)
            asked["run"] = run.path
        if name == "watch":
            asked["once"] = False

        def work(progress: Progress) -> Any:
            verb = load_verb(name)
            return verb.run(verb.request(**asked), progress)

        try:
            return JSONResponse({"job": self.jobs.start(name, work).name})
        except InvalidSetup as error:
            return JSONResponse({"error": to_json(error.findings)})

    async def stop(self, request: Request) -> Response:
        """Ask a job to stop."""
        try:
            self.jobs.get(request.path_params["job"]).stop()
        except InvalidSetup as error:
            return JSONResponse({"error": to_json(error.findings)}, 404)
        return JSONResponse({})

    async def follow(self, request: Request) -> Response:
        """Send the events of a job as they come."""
        try:
            job = self.jobs.get(request.path_params["job"])
        except InvalidSetup as error:
            return JSONResponse({"error": to_json(error.findings)}, 404)
        last = request.headers.get("last-event-id", "0")

        async def events(seen: int) -> AsyncIterator[str]:
            while not await request.is_disconnected():
                new = await run_in_threadpool(job.follow, seen, 1.0)
                for each in new:
                    yield f"id: {each.number}\ndata: {_describe_event(each)}\n\n"
                    seen = each.number
                if job.is_over and not new:
                    return
                yield ": \n\n"

        return StreamingResponse(events(int(last) if last.isdigit() else 0), media_type="text/event-stream")


def _describe_event(event: Event) -> str:
    value = event.value
    if isinstance(value, BaseException):
        value = list_findings(value)
    return json.dumps({"kind": event.kind, "value": value.to_dict() if isinstance(value, Result) else to_json(value)})


async def _read_fields(request: Request) -> Mapping[str, Any]:
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _run(name: str, asked: Mapping[str, Any]) -> Response:
    def work() -> Any:
        try:
            return load_verb(name)(**asked).to_dict()
        except InvalidSetup as error:
            return {"error": to_json(error.findings)}
        except TypeError:
            needed = "profile and calibration"
            return {"error": to_json(InvalidSetup.because("invalid-request", f"Give {needed}.").findings)}

    return JSONResponse(await run_in_threadpool(work))


def _fits(run: ListedRun, asked: Mapping[str, str]) -> bool:
    text = f"{run.path} {run.decision} {run.candidate}".lower()
    return asked["text"].lower() in text and all(
        getattr(run, name) == value for name, value in asked.items() if value and name != "text"
    )


def _draw_trend(runs: Iterable[ListedRun]) -> dict[str, Any]:
    """Return the speed-up of runs over time as a chart's values: a series a model and release."""
    series: dict[str, list[Any]] = {}
    for run in sorted(runs, key=lambda each: each.started):
        date = re.match(r"\d{4}-\d\d-\d\d", run.started)
        if run.speedup is not None and date:
            name = f"{run.model}, {run.release}".strip(", ")
            label = f"{run.name}: {run.candidate} {run.verdict}"
            point = _point(run.started[:19], {"value": run.speedup, "low": run.low, "high": run.high}, label)
            series.setdefault(name, []).append(point | {"href": f"/run/{run.key}"})
    return {
        "title": "Speed-up over time", "x": "time", "xLabel": "", "yLabel": "speed-up", "dots": True,
        "series": [{"name": name, "points": points} for name, points in series.items()],
    }  # fmt: skip


def _draw_loads(comparisons: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chart of the speed-up by load for each workload and temperature. A single load has them as rows."""
    charts: dict[tuple[str, float, str], dict[str, list[Any]]] = {}
    for each in comparisons:
        axis = "rate" if "rate" in each["load"] else "concurrency"
        load, deciding = each["load"].get(axis), each["deciding"]
        if isinstance(load, (int, float)) and deciding["value"] is not None:
            series = charts.setdefault((each["workload"], each["temperature"], axis), {})
            label = f"{each['candidate']}: {each['verdict']}"
            series.setdefault(each["candidate"], []).append(_point(load, deciding, label))
    units = {"rate": "requests a second", "concurrency": "requests in flight"}
    drawn: dict[str, dict[str, Any]] = {}
    for (workload, temperature, axis), series in charts.items():
        loads = {point["x"] for points in series.values() for point in points}
        title, names = f"{workload}, temperature {temperature:g}", {"x": "log", "xLabel": units[axis]}
        if len(loads) == 1:
            title = f"{units[axis].capitalize()}: {loads.pop():g}, temperature {temperature:g}"
            names = {"x": "rows", "xLabel": "workload"}
        chart = drawn.setdefault(title, {"title": title, **names, "yLabel": "speed-up", "series": []})
        for name, points in series.items():
            if (one := next((each for each in chart["series"] if each["name"] == name), None)) is None:
                chart["series"].append(one := {"name": name, "points": []})
            points.sort(key=lambda each: float(each["x"]))
            one["points"] += [each | {"x": workload} for each in points] if names["x"] == "rows" else points
    return list(drawn.values())


def _draw_timeline(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a chart of speed over time, unless every prompt was asked once: nothing then tells slow from long."""
    traced = trace_run(path)
    if any(y != 1.0 for points in traced.values() for _, y in points):
        yield {
            "title": "The run over time",
            "x": "linear",
            "xLabel": "minutes since the first turn",
            "yLabel": "speed over its median",
            "series": [
                {"name": arm, "points": [{"x": round(x, 2), "y": y} for x, y in points]}
                for arm, points in traced.items()
            ],
        }


def _point(place: Any, ratio: Mapping[str, Any], label: str) -> dict[str, Any]:
    return {"x": place, "y": ratio["value"], "low": ratio["low"], "high": ratio["high"], "label": label}


def make_app(folders: Iterable[Path], token: str) -> tuple[ASGIApp, Jobs]:
    """Return the application over runs in folders, and its jobs."""
    pages = Pages(folders, token)
    routes = [
        Route("/", pages.list),
        Route("/run/{key}", pages.run),
        Route("/run/{key}/report", pages.report),
        Route("/compare", pages.compare),
        *(Route(f"/{name}", pages.plain_page) for name in ("judge", "forecast", "watch")),
        Route("/favicon.ico", lambda _: RedirectResponse("/static/icon.svg")),
        Route("/api/answer/{verb}", pages.answer, methods=["POST"]),
        Route("/api/forecast", pages.forecast, methods=["POST"]),
        Route("/api/start/{verb}", pages.start, methods=["POST"]),
        Route("/api/jobs/{job}/stop", pages.stop, methods=["POST"]),
        Route("/api/jobs/{job}/events", pages.follow),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    return LoopbackOnly(Starlette(routes=routes), token), pages.jobs


def serve(folders: Iterable[Path], port: int, token: str, progress: Progress, tell: Callable[[str], None]) -> str:
    """Serve the pages on loopback until a signal or a stop. Return their address; tell it once they listen.

    Raises:
        BackendError: the port is taken.
    """
    app, jobs = make_app(folders, token)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # a browser that opens the address at once waits, and is not refused
        except OSError as error:
            raise BackendError(f"Port {port} cannot be taken ({cause_of(error)}). Give another --port.") from None
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        progress.status(f"Open {address} in a browser; Ctrl-C ends it.")
        tell(address)
        ended = threading.Event()
        threading.Thread(target=_stop_when_asked, args=(server, progress, ended), daemon=True).start()
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
        ended.set()
        jobs.stop_all(0)
    return address


def _stop_when_asked(server: uvicorn.Server, progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(0.5):
        server.should_exit = server.should_exit or progress.stop_requested
