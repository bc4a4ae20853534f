"""The verbs as a server of the Model Context Protocol: tools, jobs and pages, over stdio or HTTP on the loopback."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from threading import Thread
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp_types as types
import uvicorn
from anyio.lowlevel import current_token
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from draftwise.core import InvalidRequest, InvalidSetup, cause_of
from draftwise.core.document_schema import json_schema
from draftwise.core.documents import to_json
from draftwise.core.exit_codes import ExitCode
from draftwise.core.progress import Progress, Silent
from draftwise.knowledge.messages import fault, refusal
from draftwise.machine.folders import cache_folder
from draftwise.serve.entrance import AccessRules, Entrance
from draftwise.verbs import VERBS
from draftwise.verbs.error_documents import ErrorDocument
from draftwise.verbs.explain import ExplainRequest, explain
from draftwise.verbs.jobs import Job, Jobs, JobState
from draftwise.verbs.tool_calls import TOOLS, Permissions, Tool, ToolAnswer, answer_of, call, make_request, refusal_of
from draftwise.version import __version__

PAGES = {
    "methods": ("method", "A drafting method: what it does, and the vLLM releases that have it."),
    "releases": ("release", "A vLLM release: what it added, removed and mended for speculation."),
    "findings": ("", "A finding: what it means, the fix and the source."),
}
"""Kinds of pages, and the kind of explanation that each shows; the code of a finding is one of several kinds."""
_ABOUT = (
    "draftwise checks, sizes, chooses, measures, deploys and watches speculative decoding in vLLM. "
    "Check a config before you propose it. Quote numbers with their ranges. Unknown results are marked unknown."
)
_MOST_CALLS = 4
_LARGEST_BODY = 2_000_000
_LAST_WAIT_S = 30.0
_JOB_ARGUMENT = {
    "type": "object",
    "properties": {"job": {"type": "string", "description": "Name of the job, as its start returned it."}},
    "required": ["job"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One tool of the protocol."""

    tool: types.Tool
    run: Callable[[Mapping[str, Any], Progress], ToolAnswer]


async def _run_aside(run: Callable[[], ToolAnswer]) -> ToolAnswer:
    """Return what a call gives; its thread, unlike anyio's, does not hold the process up once nobody waits for it."""
    answers: list[ToolAnswer] = []
    ended, loop = anyio.Event(), current_token()

    def work() -> None:
        try:
            answers.append(run())
        except BaseException as error:
            answers.append(refusal_of(error))
        with suppress(RuntimeError):  # the loop is over
            anyio.from_thread.run_sync(ended.set, token=loop)

    Thread(target=work, name="draftwise-mcp-call", daemon=True).start()
    await ended.wait()
    return answers[0]


def make_server(permissions: Permissions, jobs: Jobs, *, call_seconds: float = 120.0) -> Server[Any]:
    """Return a server whose tools are the verbs.

    Args:
        permissions: what agents may read, write and send.
        jobs: holds the measurements that agents start.
        call_seconds: time limit of a call; a longer one gets an error, and its verb is asked to stop.
    """
    operations = {each.tool.name: each for each in _list_operations(permissions, jobs)}
    limiter = anyio.CapacityLimiter(_MOST_CALLS)

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[each.tool for each in operations.values()])

    async def call_tool(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if (operation := operations.get(params.name)) is None:
            return _wrap(refusal_of(refusal("no-such-tool", name=params.name[:60], names=", ".join(operations))))
        progress = Silent()
        run = partial(operation.run, params.arguments or {}, progress)
        try:
            with anyio.move_on_after(call_seconds):
                async with limiter:
                    return _wrap(await _run_aside(run))
        finally:
            progress.stop_requested = True
        return _wrap(refusal_of(refusal("call-too-long", seconds=call_seconds)))

    async def list_resources(_ctx: Any, _params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=_list_resources())

    async def list_templates(_ctx: Any, _params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    name=kind, uri_template=f"draftwise://{kind}/{{name}}", description=about, mime_type="text/plain"
                )
                for kind, (_, about) in PAGES.items()
            ]
        )

    async def read_resource(_ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = await anyio.to_thread.run_sync(partial(_read_page, str(params.uri)))
        contents = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        "draftwise",
        version=__version__,
        instructions=_ABOUT,
        website_url="https://draftwise.dev/",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


def _wrap(answer: ToolAnswer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=answer.text)],
        structured_content=answer.document,
        is_error=answer.is_error,
    )


def _list_operations(permissions: Permissions, jobs: Jobs) -> list[_Operation]:
    found = []
    for name, tool in TOOLS.items():
        if tool.is_job:
            found += _list_job_operations(name, tool, permissions, jobs)
            continue
        about, schemas = tool.request.__doc__ or "", (tool.input_schema(), tool.output_schema())
        described = _describe(name, about, *schemas, writes=bool(tool.written))
        found.append(_Operation(tool=described, run=partial(call, name, permissions=permissions)))
    return found


def _list_job_operations(name: str, tool: Tool, permissions: Permissions, jobs: Jobs) -> list[_Operation]:
    """Return the four tools of a verb that takes minutes."""

    def start(given: Mapping[str, Any], _progress: Progress) -> ToolAnswer:
        request = make_request(tool, given, permissions)
        job = jobs.start(name, partial(tool.request.run, request))
        job.wait(0.3)  # most mistakes show at once
        return _finish(job, tool) if job.is_over and job.state.state == "failed" else _show(job.state)

    def status(given: Mapping[str, Any], _progress: Progress) -> ToolAnswer:
        return _show(_find(given).state)

    def stop(given: Mapping[str, Any], _progress: Progress) -> ToolAnswer:
        job = _find(given)
        job.stop()
        job.wait(1.0)
        return _show(job.state)

    def result(given: Mapping[str, Any], _progress: Progress) -> ToolAnswer:
        return _finish(_find(given), tool)

    def _find(given: Mapping[str, Any]) -> Job:
        if not isinstance(given.get("job"), str) or set(given) != {"job"}:
            raise InvalidRequest(fault("missing-argument", case="job", name=name))
        job = jobs.get(given["job"])
        if not job.name.startswith(f"{name}-"):
            raise InvalidRequest(fault("no-such-job", case="other", job=job.name, name=name))
        return job

    about = VERBS[name].summary
    state = json_schema(JobState, title="job")
    texts = {
        "start": (f"{about} Starts a job that takes minutes, and returns its name. {tool.request.__doc__}", start),
        "status": (f"How far a job of {name} is.", status),
        "stop": (f"Ask a job of {name} to end; it keeps what it has.", stop),
        "result": (f"Result of a job of {name} that is over.", result),
    }
    return [
        _Operation(
            tool=_describe(
                f"{name}_{step}",
                text,
                tool.input_schema() if step == "start" else _JOB_ARGUMENT,
                tool.output_schema() if step == "result" else state,
                writes=step in ("start", "stop"),
            ),
            run=partial(_guarded, tool, run),
        )
        for step, (text, run) in texts.items()
    ]


def _guarded(tool: Tool, run: Callable[..., ToolAnswer], given: Mapping[str, Any], progress: Progress) -> ToolAnswer:
    try:
        return run(given, progress)
    except Exception as error:
        return refusal_of(error, tool)


def _show(state: JobState) -> ToolAnswer:
    planned = "" if state.planned is None else f" of {state.planned}"
    left = "" if state.seconds_left is None else f", about {state.seconds_left:.0f} s left"
    text = (
        f"{state.job} {state.state}: {state.done}{planned} steps in {state.seconds:.0f} s{left}. {state.doing}".strip()
    )
    return ToolAnswer(text="\n".join((text, *map(str, state.notices))), document=to_json(state))


def _finish(job: Job, tool: Tool) -> ToolAnswer:
    if not job.is_over:
        raise InvalidRequest(fault("job-running", case="result", job=job.name, state=job.state.state))
    if isinstance(job.answer, BaseException):
        refused = refusal_of(job.answer, tool)
        if job.so_far is None:
            return refused
        so_far = answer_of(job.so_far)
        return ToolAnswer(text=f"{so_far.text}\n\n{refused.text}", document=so_far.document)
    return answer_of(job.answer)


def _describe(name: str, about: str, given: dict[str, Any], answer: dict[str, Any], *, writes: bool) -> types.Tool:
    text = " ".join(about.partition("Raises:")[0].split())
    return types.Tool(
        name=name,
        description=text,
        input_schema=given,
        output_schema={**answer, "type": "object"},
        annotations=types.ToolAnnotations(read_only_hint=not writes, destructive_hint=False),
    )


@cache
def _list_resources() -> list[types.Resource]:
    names = explain.run(ExplainRequest(list_names=True)).explanations
    return [
        types.Resource(
            name=f"{kind}/{each.name}", uri=f"draftwise://{kind}/{each.name}", mime_type="text/plain", description=about
        )
        for kind, (of, about) in PAGES.items()
        for each in names
        if of and each.kind == of
    ]


def _read_page(uri: str) -> str:
    """Return the page of a method, a release or a finding: what `explain` says of it."""
    kind, _, name = uri.removeprefix("draftwise://").partition("/")
    if uri.startswith("draftwise://") and kind in PAGES and len(name) < 200:
        try:
            result = explain.run(ExplainRequest(name))
        except InvalidSetup as error:
            raise _refuse_page(error) from None
        wanted = {PAGES[kind][0]} if PAGES[kind][0] else {"finding", "rule", "advice", "defect"}
        if any(each.kind in wanted for each in result.explanations):
            return str(result)
    text, fix = f"There is no page {uri[:100]!r}.", f"Pages are draftwise://KIND/NAME of {', '.join(PAGES)}."
    raise _refuse_page(InvalidRequest.because("no-such-page", text, fix=fix))


def _refuse_page(error: InvalidSetup) -> MCPError:
    return MCPError(types.INVALID_PARAMS, str(error), to_json(ErrorDocument.of(error)))


def _confine(permissions: Permissions) -> None:
    """Confine the process. The plots' library keeps its list of fonts where files may be written."""
    with suppress(OSError):  # a home that cannot be written
        cache_folder().mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    permissions.files.enforce()


def serve_stdio(permissions: Permissions) -> None:
    """Serve one client over standard input and output until it disconnects; running jobs then stop and keep their data.

    SIGINT ends the process: the thread that waits for the client's next line cannot be woken.
    """
    _confine(permissions)
    jobs = Jobs()
    server = make_server(permissions, jobs)

    def end(_number: int, _frame: object) -> None:
        jobs.stop_all(_LAST_WAIT_S)
        os._exit(ExitCode.INTERRUPTED)

    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, end)

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    try:
        anyio.run(run)
    finally:
        jobs.stop_all(_LAST_WAIT_S)


def serve_http(permissions: Permissions, *, port: int, token: str, tell: Callable[[str], None]) -> str:
    """Serve clients of this machine that bring a token, until SIGINT or SIGTERM. Return the address.

    Args:
        permissions: what agents may do.
        port: on the loopback; 0 takes a free one.
        token: required in every request, as `Authorization: Bearer TOKEN`.
        tell: receives the address, once the server listens.
    """
    _confine(permissions)
    jobs = Jobs()
    app = make_server(permissions, jobs).streamable_http_app(max_request_body_size=_LARGEST_BODY)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        raise InvalidRequest(fault("cannot-bind", case="loopback", port=port, cause=cause_of(error))) from None
    entrance = Entrance(app, AccessRules(api_key=token))
    config = uvicorn.Config(entrance, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    tell(address)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        jobs.stop_all(_LAST_WAIT_S)
    return address
