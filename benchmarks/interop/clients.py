"""Clients of OpenAI's API against `draftwise serve`: does each of them get along with it, as it is installed?

    python benchmarks/interop/clients.py MODEL --venvs FOLDER --out benchmarks/interop/results/clients.json

MODEL is a checkpoint folder with a chat template. FOLDER holds a virtual environment for each client, named as in
`CASES` (`python -m venv FOLDER/litellm; FOLDER/litellm/bin/pip install litellm`); a client without one is skipped by
name. What models say is not judged, except where the server guarantees it. The exit code is 1 when a client fails.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

_KEY = "sk-local"
_SAY = [{"role": "user", "content": "Which color has the sky?"}]
_COLORS = {
    "type": "object",
    "properties": {"color": {"type": "string", "enum": ["red", "blue"]}, "certain": {"type": "boolean"}},
    "required": ["color", "certain"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "look", "description": "Look up.", "parameters": _COLORS}}


def run_openai(url: str, model: str, _: str) -> None:
    """The SDK: answers, streams, structured output, and ten turns of a tool loop as agents and MCP hosts drive it."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=_KEY)
    assert [each.id for each in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    answer = client.chat.completions.create(model=model, messages=_SAY, max_tokens=8)
    assert answer.usage.completion_tokens <= 8
    options = {"include_usage": True}
    chunks = [
        *client.chat.completions.create(model=model, messages=_SAY, max_tokens=8, stream=True, stream_options=options)
    ]
    assert chunks[-1].usage.completion_tokens <= 8
    assert client.completions.create(model=model, prompt=["a", "b"], max_tokens=3, logprobs=2).choices[1].logprobs
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": _COLORS, "strict": True}}
    told = client.chat.completions.create(model=model, messages=_SAY, response_format=form, max_tokens=200)
    assert json.loads(told.choices[0].message.content)["color"] in ("red", "blue")
    messages: list[Any] = [{"role": "system", "content": "Use the tool."}, *_SAY]
    for turn in range(10):
        choice: Any = "required" if turn % 2 else {"type": "function", "function": {"name": "look"}}
        said = client.chat.completions.create(
            model=model, messages=messages, tools=[_TOOL], tool_choice=choice, max_tokens=200, parallel_tool_calls=False
        )
        message = said.choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments)["color"] in ("red", "blue")
        result = {"content": [{"type": "text", "text": f"turn {turn}: yes"}], "isError": False}
        # As SDKs hand it back: the message with all its fields, absent ones as null in every other turn.
        messages.append(message if turn % 3 else message.model_dump())
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    last = client.chat.completions.create(
        model=model, messages=messages, tools=[_TOOL], tool_choice="none", max_tokens=8
    )
    assert not last.choices[0].message.tool_calls
    status = 0
    try:
        client.chat.completions.create(model="no-such-model", messages=_SAY)
    except openai.NotFoundError as error:
        status = error.status_code
    assert status == 404, "another model's name is accepted"


def run_litellm(url: str, model: str, _: str) -> None:
    """litellm as a library, with OpenAI's and the hosted-vLLM dialect."""
    import litellm

    for prefix in ("openai", "hosted_vllm"):
        options = {"model": f"{prefix}/{model}", "api_base": f"{url}/v1", "api_key": _KEY, "max_tokens": 8}
        assert litellm.completion(messages=_SAY, **options).usage.completion_tokens <= 8
        assert [*litellm.completion(messages=_SAY, stream=True, **options)][-1].choices[0].finish_reason
        once = options | {"max_tokens": 200, "parallel_tool_calls": False}
        called = litellm.completion(messages=_SAY, tools=[_TOOL], tool_choice="required", **once)
        assert called.choices[0].message.tool_calls[0].function.name == "look"
    text = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt="a", api_base=f"{url}/v1", api_key=_KEY, max_tokens=4
    )
    assert text.choices[0].finish_reason


def run_langchain_openai(url: str, model: str, _: str) -> None:
    """LangChain: answers, streams, a tool's call and its result, structured output."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key=_KEY, model=model, max_tokens=200)
    assert chat.invoke("Hello").usage_metadata["output_tokens"] <= 200
    assert [*chat.stream("Hello")][-1] is not None
    messages: list[Any] = [HumanMessage("Which color?")]
    for _turn in range(3):
        said = chat.bind_tools([_TOOL], tool_choice="look").invoke(messages)
        assert said.tool_calls[0]["args"]["color"] in ("red", "blue")
        messages += [said, ToolMessage("yes", tool_call_id=said.tool_calls[0]["id"])]
    assert chat.invoke(messages).type == "ai"
    schema = {"title": "Color", **_COLORS}
    for method in ("json_schema", "function_calling"):
        assert chat.with_structured_output(schema, method=method).invoke("Color?")["color"] in ("red", "blue")
    assert isinstance(OpenAI(base_url=f"{url}/v1", api_key=_KEY, model=model, max_tokens=4).invoke("a"), str)


def run_pydantic_ai(url: str, model: str, _: str) -> None:
    """pydantic-ai: text, streams, and typed output by a tool and by a schema."""
    import asyncio

    from pydantic import create_model
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    served = OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=_KEY))
    color = create_model("Color", color=(Literal["red", "blue"], ...), certain=(bool, ...))
    settings = {"max_tokens": 200}
    assert Agent(served).run_sync("Hello", model_settings=settings).usage
    for kind in (color, NativeOutput(color)):
        told = Agent(served, output_type=kind).run_sync("Which color?", model_settings=settings)
        assert told.output.color in ("red", "blue")

    async def stream() -> int:
        async with Agent(served).run_stream("Hello", model_settings=settings) as answer:
            return len([each async for each in answer.stream_text(delta=True)])

    asyncio.run(stream())


def run_lm_eval(url: str, model: str, tokenizer: str) -> None:
    """lm-eval's local-completions: log-likelihoods of echoed prompts, and generation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"q": f"{i} and one is", "choices": [str(i + 1), "a tree"], "label": 0} for i in range(4)]
        (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
        common = {
            "dataset_path": "json", "test_split": "test", "doc_to_text": "{{q}}",
            "dataset_kwargs": {"data_files": {"test": str(folder / "rows.json")}},
        }  # fmt: skip
        choice = {
            "task": "choose",
            "output_type": "multiple_choice",
            "doc_to_target": "label",
            "doc_to_choice": "choices",
        }
        until = {"task": "say", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}"}
        until |= {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}}
        for task in (choice, until):
            (folder / f"{task['task']}.yaml").write_text(json.dumps(common | task))  # which is YAML, too
        arguments = f"base_url={url}/v1/completions,model={model},tokenizer={tokenizer},num_concurrent=2,max_retries=1"
        command = [Path(sys.executable).parent / "lm_eval", "--model", "local-completions", "--model_args", arguments]
        command += ["--tasks", "choose,say", "--include_path", folder, "--output_path", folder / "out"]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": _KEY})
        (result,) = (json.loads(path.read_text()) for path in folder.glob("out/**/results_*.json"))
        assert {"choose", "say"} <= result["results"].keys()


def run_guidellm(url: str, model: str, tokenizer: str) -> None:
    """guidellm: a synchronous benchmark, whose every request must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            Path(sys.executable).parent / "guidellm",
            "run",
            "--disable-console",
            "--profile",
            "kind=synchronous",
        ]
        command += [
            "--backend",
            f"kind=openai_http,target={url},model={model}",
            "--constraint",
            "kind=max_requests,count=4",
        ]
        command += [
            "--tokenizer",
            f"kind=hf_auto,model={tokenizer}",
            "--output",
            f"kind=json,path={folder}/report.json",
        ]
        command += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        (report,) = (json.loads(path.read_text()) for path in Path(folder).glob("*.json"))
        totals = report["benchmarks"][0]["metrics"]["request_totals"]
        assert (totals["successful"], totals["errored"]) == (4, 0), totals


def run_schemathesis(url: str, _: str, __: str) -> None:
    """schemathesis: requests drawn from the OpenAPI document, valid and not, and their answers held against it."""
    command = [Path(sys.executable).parent / "schemathesis", "run", f"{url}/openapi.json", "--url", url]
    command += ["--max-examples", "25", "--seed", "1", "--request-timeout", "600", "--suppress-health-check", "all"]
    command += ["--phases", "examples,coverage,fuzzing", "--header", f"Authorization: Bearer {_KEY}"]
    # Which fields exclude each other, the document cannot say.
    subprocess.run([*command, "--exclude-checks", "positive_data_acceptance"], check=True)


CASES: dict[str, tuple[str, Callable[[str, str, str], None]]] = {
    "openai": ("openai", run_openai),
    "litellm": ("litellm", run_litellm),
    "langchain-openai": ("langchain-openai", run_langchain_openai),
    "pydantic-ai": ("pydantic-ai-slim", run_pydantic_ai),
    "lm-eval": ("lm-eval", run_lm_eval),
    "guidellm": ("guidellm", run_guidellm),
    "schemathesis": ("schemathesis", run_schemathesis),
}
"""Each client's distribution and what it does."""


def main() -> None:
    """Serve, run every client that is there, and write what came of it."""
    if sys.argv[1] == "--case":
        CASES[sys.argv[2]][1](*sys.argv[3:])
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
    from provenance import provenance, write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    command = [sys.executable, "-m", "draftwise", "serve", str(given.model), "--port", "0"]
    command += ["--served-model-name", "local", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    rows: dict[str, Any] = {}
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found, "the server does not start"
        for name, (distribution, case) in CASES.items():
            python = given.venvs.resolve() / name / "bin/python"
            if given.only not in name:
                continue
            if not python.exists():
                rows[name] = {"outcome": f"skipped: {name} has no environment"}
                continue
            asked = f"import importlib.metadata as m; print(m.version({distribution!r}))"
            version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False).stdout.strip()
            client = [python, __file__, "--case", name, found[0], "local", str(given.model.resolve())]
            run = subprocess.run(client, capture_output=True, text=True, check=False, timeout=1200)
            rows[name] = {"version": version, "does": inspect.getdoc(case), "outcome": "passed"}
            if run.returncode:
                rows[name] |= {"outcome": "failed", "told": (run.stdout + run.stderr).splitlines()[-25:]}
            print(name, rows[name]["outcome"], *rows[name].get("told", ()), sep="\n", flush=True)
    finally:
        server.terminate()
        server.wait()
    write(provenance() | {"model": given.model.name, "load": os.getloadavg()[0], "clients": rows}, given.out)
    sys.exit(any(row["outcome"] == "failed" for row in rows.values()))


if __name__ == "__main__":
    main()
