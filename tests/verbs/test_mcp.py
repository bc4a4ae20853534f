"""`draftwise mcp` with the SDK's own client: tools from the verbs, jobs, pages, and what an agent may not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from shutil import which
from threading import Event, Thread
from typing import Any

import pytest

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp", reason="draftwise[mcp] is not installed")

import mcp_types as types  # noqa: E402
from jsonschema import Draft7Validator  # noqa: E402
from mcp import Client, MCPError  # noqa: E402
from mcp.client.stdio import StdioServerParameters  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

import draftwise  # noqa: E402
from draftwise.core.document_schema import json_schema  # noqa: E402
from draftwise.core.progress import Stopped  # noqa: E402
from draftwise.machine.confinement import Confinement  # noqa: E402
from draftwise.verbs import mcp_server  # noqa: E402
from draftwise.verbs.error_documents import ErrorDocument  # noqa: E402
from draftwise.verbs.jobs import Job, Jobs  # noqa: E402
from draftwise.verbs.mcp_server import make_server  # noqa: E402
from draftwise.verbs.tool_calls import TOOLS, Permissions  # noqa: E402

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SYNC = (
    "check",
    "upgrade",
    "pick",
    "size",
    "inspect",
    "explain",
    "forecast",
    "replay",
    "watch",
    "report",
    "compare",
    "deploy",
)
JOBS = tuple(f"{verb}_{step}" for verb in ("decide", "calibrate") for step in ("start", "status", "stop", "result"))
ERROR = Draft7Validator(json_schema(ErrorDocument, title="error"))


def permit(read: Path, write: Path | None = None, *variables: str) -> Permissions:
    files = Confinement.of(read=[read], write=[] if write is None else [write])
    return Permissions(files=files, folder=None if write is None else write.resolve(), variables=frozenset(variables))


@asynccontextmanager
async def connect(permissions: Permissions, jobs: Jobs | None = None, **options: Any) -> AsyncIterator[Client]:
    async with Client(make_server(permissions, jobs or Jobs(), **options)) as client:
        yield client


def run(work: Callable[..., Any], *arguments: Any) -> Any:
    return anyio.run(work, *arguments)


def error_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.is_error, result
    assert result.structured_content is not None
    ERROR.validate(result.structured_content)
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
    error: dict[str, Any] = result.structured_content["error"]
    assert error["fix"]
    return error


def call(permissions: Permissions, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    async def work() -> types.CallToolResult:
        async with connect(permissions) as client:
            return await client.call_tool(name, arguments)

    result: types.CallToolResult = run(work)
    return result


def test_the_tools_are_the_verbs_with_schemas_of_their_requests_and_results(tmp_path: Path) -> None:
    async def work() -> None:
        async with connect(permit(tmp_path)) as client:
            tools = {each.name: each for each in (await client.list_tools()).tools}
            assert set(tools) == {*SYNC, *JOBS}
            for each in tools.values():
                Draft7Validator.check_schema(each.input_schema)
                Draft7Validator.check_schema(each.output_schema)
                assert each.description
                assert each.input_schema["additionalProperties"] is False
            assert not {"switch", "vllm", "serve_args"} & set(tools["decide_start"].input_schema["properties"])
            assert tools["check"].annotations.read_only_hint
            assert not tools["deploy"].annotations.read_only_hint

    run(work)


def test_an_answer_is_the_document_of_the_command_and_its_text(tmp_path: Path) -> None:
    given = {"sources": LLAMA, "speculative_config": NGRAM, "vllm": "0.33.0", "gpu": "H200"}
    result = call(permit(tmp_path), "check", given)
    expected = draftwise.check(**given)
    assert not result.is_error
    assert result.structured_content == {"result": expected.to_dict(), "exit_code": 0, "notices": []}
    assert result.content[0].text == str(expected)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("check", {"source": LLAMA}, "no-such-option", "Did you mean sources?"),
        ("check", {}, "invalid-request", "Give a model"),
        ("check", {"sources": 3}, "invalid-request", "sources must be"),
        ("check", {"sources": LLAMA, "fail_on": "moon"}, "invalid-request", "fail_on must be"),
        ("size", {"target": LLAMA}, "no-gpu", "Name one, such as H200"),
        ("pick", {}, "missing-argument", "Give target: Directory with config.json"),
        ("inspect", {"checkpoint": None}, "missing-argument", "Give checkpoint"),
        ("size", {"target": LLAMA, "gpu": "x" * 100_000}, "unknown-gpu", "(100,0"),
        ("size", {"target": LLAMA, "gpu": "H1000"}, "unknown-gpu", "gpu: draftwise does not know the GPU 'H1000'"),
        ("size", {"target": LLAMA, "gpu": "H200", "num_speculative_tokens": -1}, "invalid-request", "1 or more"),
        ("explain", {"name": "no-such-name"}, "unknown-name", "no-such-name"),
        ("explain", {"name": "x" * 2_000_000}, "call-too-large", "1,000,000 bytes"),
        ("forecast", {"profile": "nowhere", "calibration": "nowhere"}, "unreadable-file", "nowhere"),
        ("watch", {"urls": "127.0.0.1:1"}, "not-a-url", "http"),
        ("no_such_tool", {}, "no-such-tool", "check"),
        ("decide_status", {"job": "decide-9"}, "no-such-job", "decide-9"),
        ("decide_status", {}, "missing-argument", "the name that decide_start returned"),
        ("calibrate_stop", {"job": "a", "more": 1}, "missing-argument", "the name that calibrate_start returned"),
    ],
)
def test_a_mistake_is_an_envelope(tmp_path: Path, name: str, arguments: dict[str, Any], code: str, words: str) -> None:
    result = call(permit(tmp_path), name, arguments)
    error = error_of(result)
    assert error["code"] == code
    assert words in json.dumps(error)
    assert "--" not in error["message"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("check", {"sources": "/etc/passwd"}),
        ("check", {"sources": ["../secret.yaml"]}),
        ("check", {"sources": "~/.ssh/id_rsa"}),
        ("check", {"sources": "-"}),
        ("check", {"sources": LLAMA, "speculative_config": "/proc/self/environ"}),
        ("check", {"sources": LLAMA, "speculative_config": "@/etc/hostname"}),
        ("check", {"sources": "link.yaml"}),
        ("inspect", {"checkpoint": "/"}),
        ("watch", {"log": "/var/log/syslog"}),
        ("watch", {"urls": "http://127.0.0.1:1", "headers": ["X: ${HOME}"]}),
        ("watch", {"urls": "http://127.0.0.1:1", "key_variables": ["spec=PATH"]}),
        ("watch", {"urls": "http://127.0.0.1:1", "record_baseline": "b.json"}),
        ("deploy", {"sources": LLAMA, "to": "compose", "out": "deployed"}),
        ("replay", {"log": "log.jsonl", "target": "m", "candidates": [NGRAM]}),
        ("decide_start", {"url": "http://127.0.0.1:1", "candidate_urls": ["http://127.0.0.1:2"]}),
    ],
)
def test_what_is_not_allowed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    folder, other = tmp_path / "project", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "secret.yaml").write_text("services: {llm: {image: 'vllm/vllm-openai:v0.33.0', command: --model x}}")
    (folder / "link.yaml").symlink_to(other / "secret.yaml")
    monkeypatch.chdir(folder)
    assert error_of(call(permit(folder), name, arguments))["code"] == "not-allowed"
    assert sorted(each.name for each in folder.iterdir()) == ["link.yaml"]


def test_files_are_written_below_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    allowed = permit(tmp_path, folder)
    deploy = {"sources": LLAMA, "speculative_config": NGRAM, "gpu": "H200", "vllm": "0.33.0", "to": "compose"}
    for place in (
        "../elsewhere",
        "a\0b",
        str(tmp_path / "elsewhere"),
        "/tmp/elsewhere-of-draftwise",
        "x/../../elsewhere",
    ):
        assert error_of(call(allowed, "deploy", {**deploy, "out": place}))["code"] == "not-allowed"
    assert not (tmp_path / "elsewhere").exists()
    result = call(allowed, "deploy", {**deploy, "out": "service"})
    assert not result.is_error, result.content
    assert (folder / "service" / "MEMO.md").is_file()
    assert error_of(call(allowed, "deploy", {**deploy, "out": "service"}))["code"] == "folder-exists"


def test_a_job_is_started_asked_stopped_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = Event()

    def measure(_request: Any, progress: Any) -> Any:
        progress.plan(10, 60.0)
        progress.step(3, 42.0, "an answer")
        began.set()
        while not progress.stop_requested:
            Event().wait(0.01)
        return draftwise.explain("ngram")

    monkeypatch.setattr(TOOLS["decide"].request, "_function", measure)
    servers = {"url": "http://127.0.0.1:1", "candidate_urls": ["http://127.0.0.1:2"]}

    async def work() -> None:
        async with connect(permit(tmp_path, tmp_path)) as client:
            started = (await client.call_tool("decide_start", servers)).structured_content
            assert (started["job"], started["state"]) == ("decide-1", "running")
            assert began.wait(120)
            job = {"job": "decide-1"}
            state = (await client.call_tool("decide_status", job)).structured_content
            assert (state["done"], state["planned"], state["seconds_left"], state["doing"]) == (
                3,
                10,
                42.0,
                "an answer",
            )
            assert error_of(await client.call_tool("decide_result", job))["code"] == "job-running"
            assert error_of(await client.call_tool("decide_start", servers))["code"] == "job-running"
            assert error_of(await client.call_tool("calibrate_status", job))["code"] == "no-such-job"
            stopped = (await client.call_tool("decide_stop", job)).structured_content
            assert stopped["state"] == "finished"

    run(work)


def test_a_job_that_fails_at_once_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Job.wait
    monkeypatch.setattr(Job, "wait", lambda job, _seconds: wait(job, 60))  # at once, however slow the machine is
    servers = {"url": "nowhere", "candidate_urls": ["http://127.0.0.1:2"]}
    error = error_of(call(permit(tmp_path, tmp_path), "decide_start", servers))
    assert error["code"] == "not-a-url"


@pytest.mark.parametrize("error", [Stopped(), KeyboardInterrupt()])
def test_what_was_stopped_without_an_answer_is_no_fault_of_draftwise(error: BaseException) -> None:
    assert mcp_server.refusal_of(error).document["error"]["code"] == "interrupted"


def test_a_call_that_lasts_too_long_is_answered_and_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Event()

    def wait(_request: Any, progress: Any) -> Any:
        while not progress.stop_requested:
            Event().wait(0.01)
        ended.set()
        return draftwise.explain("ngram")

    monkeypatch.setattr(TOOLS["explain"].request, "_function", wait)
    real, threads = Thread.start, list[Thread]()
    monkeypatch.setattr(Thread, "start", lambda thread: (threads.append(thread), real(thread))[1])

    async def work() -> types.CallToolResult:
        async with connect(permit(tmp_path), call_seconds=0.05) as client:
            return await client.call_tool("explain", {"name": "ngram"})

    assert error_of(run(work))["code"] == "call-too-long"
    assert ended.wait(120)
    calls = [thread for thread in threads if thread.name == "draftwise-mcp-call"]
    assert calls
    assert all(thread.daemon for thread in calls)  # a verb that does not stop keeps no process from ending


def test_pages_are_what_explain_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with connect(permit(tmp_path)) as client:
            uris = [str(each.uri) for each in (await client.list_resources()).resources]
            assert {"draftwise://methods/eagle3", "draftwise://releases/0.33.0"} <= set(uris)
            templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
            assert templates == [f"draftwise://{kind}/{{name}}" for kind in mcp_server.PAGES]
            for uri in (*uris, "draftwise://findings/unknown-gpu", "draftwise://findings/unknown-method"):
                (page,) = (await client.read_resource(uri)).contents
                assert page.text == str(draftwise.explain(uri.rpartition("/")[2]))  # type: ignore[union-attr]
            for uri in (
                "draftwise://findings/nothing",
                "draftwise://methods/unknown-gpu",
                "file:///etc/passwd",
                "draftwise://x/y",
            ):
                with pytest.raises(MCPError) as raised:
                    await client.read_resource(uri)
                ERROR.validate(raised.value.error.data)

    run(work)


def start(*words: str, cwd: Path, **variables: str) -> StdioServerParameters:
    source = str(Path(draftwise.__file__).parents[1])
    env = {"PYTHONPATH": source, "PATH": os.environ["PATH"], "HOME": str(cwd), **variables}
    return StdioServerParameters(command=sys.executable, args=["-m", "draftwise", "mcp", *words], env=env, cwd=cwd)


def test_over_stdio_nothing_outside_the_folders_is_read(tmp_path: Path) -> None:
    """A path that no argument shows is not opened either: here the env_file of a compose file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "secret.env").write_text("LENGTH=4321\n")
    command = "sh -c 'vllm serve Qwen/Qwen3-8B --max-model-len $$LENGTH'"
    services = {"llm": {"image": "vllm/vllm-openai:v0.33.0", "env_file": "../secret.env", "command": command}}
    (folder / "compose.yaml").write_text(json.dumps({"services": services}))
    assert "4321" in json.dumps(draftwise.check(folder / "compose.yaml").to_dict())

    async def work() -> None:
        async with Client(start(cwd=folder)) as client:
            result = await client.call_tool("check", {"sources": "compose.yaml"})
            assert "4321" not in str(result)
            assert error_of(await client.call_tool("check", {"sources": "../secret.env"}))["code"] == "not-allowed"
            assert not (await client.call_tool("explain", {"name": "eagle3"})).is_error
            wrong = await client.call_tool("pick", {"target": LLAMA, "gpu": "H200", "concurrency": 0})
            assert error_of(wrong)["code"] == "invalid-request"
            assert not (await client.call_tool("pick", {"target": LLAMA, "gpu": "H200"})).is_error

    run(work)


def test_over_http_a_token_a_host_and_an_origin_are_asked_for(tmp_path: Path) -> None:
    import httpx

    words = [sys.executable, "-m", "draftwise", "mcp", "--http", "0"]
    server = start(cwd=tmp_path, DRAFTWISE_MCP_TOKEN="let me in")
    with subprocess.Popen(words, env=server.env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = next(line.strip() for line in process.stderr if line.startswith("http://127.0.0.1:"))
            assert "let me in" not in url
            hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            good = {"Authorization": "Bearer let me in", "Accept": "application/json, text/event-stream"}
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({**good, "Host": "attacker.example"}, 403),
                ({**good, "Origin": "https://attacker.example"}, 403),
            ):
                assert httpx.post(url, json=hello, headers=headers).status_code == status
            assert httpx.post(url, content=b"x" * 3_000_000, headers=good).status_code in (400, 413)

            async def work() -> None:
                async with httpx2_client(good) as http, Client(streamable_http_client(url, http_client=http)) as client:
                    assert {each.name for each in (await client.list_tools()).tools} == {*SYNC, *JOBS}
                    result = await client.call_tool("size", {"target": LLAMA, "gpu": "H200"})
                    assert not result.is_error
                    assert (
                        error_of(await client.call_tool("check", {"sources": "/etc/passwd"}))["code"] == "not-allowed"
                    )

            run(work)
        finally:
            process.terminate()


@pytest.mark.parametrize("token", ["", "mine"])
def test_over_http_a_program_reads_the_address_and_a_new_token(tmp_path: Path, token: str) -> None:
    words = [sys.executable, "-m", "draftwise", "mcp", "--http", "0", "--json"]
    server = start(cwd=tmp_path, **({"DRAFTWISE_MCP_TOKEN": token} if token else {}))
    with subprocess.Popen(words, env=server.env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["transport"].startswith("http://127.0.0.1:")
            assert (told["token"] is None) == bool(token)
        finally:
            process.terminate()


def httpx2_client(headers: dict[str, str]) -> Any:
    from mcp.client.streamable_http import create_mcp_http_client

    return create_mcp_http_client(headers={"Authorization": headers["Authorization"]})


def test_a_client_that_goes_away_ends_the_server(tmp_path: Path) -> None:
    server = start(cwd=tmp_path)
    with subprocess.Popen(
        [server.command, *server.args], env=server.env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/ca')
        process.stdin.close()
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


STUCK = """
import sys
from threading import Event
from typing import Any
from draftwise.cli import main
from draftwise.verbs.tool_calls import TOOLS

def never_end(_request, _progress) -> Any:
    print("began", file=sys.stderr, flush=True)
    Event().wait()

TOOLS["explain"].request._function = never_end
sys.argv = ["draftwise", "mcp", *sys.argv[1:]]
main()
"""
"""A server with a verb that neither ends nor looks whether it should."""
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "explain", "arguments": {"name": "k"}}}


@contextmanager
def stuck(folder: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, *words], env=start(cwd=folder, **variables).env, cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_gone", [True, False], ids=["client-gone", "terminated"])
def test_a_verb_that_never_ends_holds_no_server_up(tmp_path: Path, is_gone: bool) -> None:
    with stuck(tmp_path) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("".join(f"{json.dumps(each)}\n" for each in (HELLO, READY, CALL)))
        process.stdin.flush()
        assert "began\n" in iter(process.stderr.readline, "")
        if is_gone:
            process.stdin.close()
        else:
            process.terminate()
        assert process.wait(120) == (0 if is_gone else 130)


def test_a_verb_that_never_ends_holds_no_http_server_up(tmp_path: Path) -> None:
    import httpx

    with stuck(tmp_path, "--http", "0", DRAFTWISE_MCP_TOKEN="t") as process:
        assert process.stderr is not None
        url = next(line.strip() for line in process.stderr if line.startswith("http://127.0.0.1:"))
        headers = {"Authorization": "Bearer t", "Accept": "application/json, text/event-stream"}
        headers["mcp-session-id"] = httpx.post(url, json=HELLO, headers=headers).headers["mcp-session-id"]
        httpx.post(url, json=READY, headers=headers)

        def ask() -> None:
            with suppress(httpx.HTTPError):
                httpx.post(url, json=CALL, headers=headers, timeout=None)

        Thread(target=ask, daemon=True).start()
        assert "began\n" in iter(process.stderr.readline, "")
        process.terminate()
        assert process.wait(120) == 130


INSPECTOR = os.environ.get("DRAFTWISE_MCP_INSPECTOR") or which("mcp-inspector")


@pytest.mark.skipif(
    INSPECTOR is None, reason="the protocol's inspector is not installed (npm i -g @modelcontextprotocol/inspector)"
)
def test_the_protocols_inspector_lists_calls_and_reads(tmp_path: Path) -> None:
    server = start(cwd=tmp_path)

    def inspect(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(INSPECTOR), "--cli", server.command, *server.args, *words], env=server.env, cwd=tmp_path,
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert {each["name"] for each in inspect("--method", "tools/list")["tools"]} == {*SYNC, *JOBS}
    called = inspect("--method", "tools/call", "--tool-name", "explain", "--tool-arg", "name=eagle3")
    assert called["structuredContent"]["result"][0]["name"] == "eagle3"
    page = inspect("--method", "resources/read", "--uri", "draftwise://methods/eagle3")
    assert "eagle3" in page["contents"][0]["text"]
