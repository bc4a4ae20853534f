"""vLLM's own tests of its server, as far as `draftwise serve` claims them, against `draftwise serve`.

    python benchmarks/interop/vllm_suite.py SOURCES MODEL... --python PYTHON --out results/vllm_suite.json

SOURCES is a checkout of vLLM or its unpacked source distribution. MODEL is a checkpoint folder that takes the place of
every model the tests name; as some tests suit one model only, each further MODEL gets what has not passed yet. PYTHON
is an interpreter with the same release of vLLM, pytest and pytest-asyncio. Nothing is fetched. Only tests that ask a
running server are run; `vllm_suite.json` lists their modules, and what is not claimed there, with the reason. The exit
code is 1 when a claimed test fails.

This file is a plugin of that pytest too: it puts a server of draftwise in the place of vLLM's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_CLAIMS = json.loads((_HERE / "vllm_suite.json").read_text(encoding="utf-8"))
_SERVER_FIXTURES = {"server", "client"}
_CONTEXT = 2048  # most tokens: a test without max_tokens writes to the end, for minutes on a CPU
_FLAGS = {"--max-num-seqs": 1, "--tool-call-parser": 1, "--enable-auto-tool-choice": 0}
"""Flags of vLLM that are handed on, with the number of their values; the others are about vLLM's own engine."""


class RemoteServer:
    """Stands in for `tests.utils.RemoteOpenAIServer`."""

    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False

    def __init__(self, model: str, vllm_serve_args: list[str], **_: Any) -> None:
        command = [os.environ["DRAFTWISE_PYTHON"], "-m", "draftwise", "serve", os.environ["SUITE_MODEL"]]
        command += ["--port", "0", "--served-model-name", model]
        longest = json.loads(Path(os.environ["SUITE_MODEL"], "config.json").read_text())["max_position_embeddings"]
        for i, flag in enumerate(vllm_serve_args):
            if flag == "--max-model-len":
                command += [flag, str(min(int(vllm_serve_args[i + 1]), longest, _CONTEXT))]
            elif flag in _FLAGS:
                command += vllm_serve_args[i : i + 1 + _FLAGS[flag]]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"PYTHONPATH": os.environ["DRAFTWISE_PATH"]},
        )  # fmt: skip
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self._process.stdout.readline())
        assert found, "the server does not start"
        self.host, self.port, self.url_root = "127.0.0.1", int(found[1]), found[0]

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def url_for(self, *parts: str) -> str:
        """Return the URL of a path."""
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_client(self, *, is_async: bool = False, **options: Any) -> Any:
        """Return an OpenAI client."""
        import openai

        kind = openai.AsyncOpenAI if is_async else openai.OpenAI
        settings = {"timeout": 600, "max_retries": 0, "base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY}
        return kind(**settings | options)

    def get_async_client(self, **options: Any) -> Any:
        """Return an asynchronous OpenAI client."""
        return self.get_client(is_async=True, **options)


def pytest_configure(config: Any) -> None:
    """Put the server and the model in place, before any test module is imported."""
    sources, model = Path(os.environ["SUITE_SOURCES"]), os.environ["SUITE_MODEL"]
    for name in ("tests", "tests.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["tests"].__path__ = [str(sources / "tests")]
    sys.modules["tests.utils"].__dict__.update(
        RemoteOpenAIServer=RemoteServer, ROCM_EXTRA_ARGS=[], ROCM_ENV_OVERRIDES={}
    )
    import vllm.tokenizers
    from vllm.transformers_utils import repo_utils

    load = vllm.tokenizers.get_tokenizer
    vllm.tokenizers.get_tokenizer = lambda *_, **__: load(model)
    no_hub = types.SimpleNamespace(snapshot_download=lambda **_: model)
    repo_utils.hf_api = lambda *_, **__: no_hub
    import transformers

    find = transformers.AutoTokenizer.from_pretrained
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: find(model)
    config.pluginmanager.register(importlib.import_module("tests.entrypoints.conftest"))


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the tests that ask a server and are claimed."""
    config.hook.pytest_deselected(items=[item for item in items if not _is_claimed(item)])
    items[:] = [item for item in items if _is_claimed(item)]


def _is_claimed(item: Any) -> bool:
    name = item.nodeid.split("entrypoints/", 1)[1]
    if os.environ["SUITE_ONLY"] not in name or name in json.loads(os.environ["SUITE_PASSED"]):
        return False
    return bool(_SERVER_FIXTURES & set(item.fixturenames)) and not _reason_against(name)


def _reason_against(name: str) -> str | None:
    return next((why for test, why in _CLAIMS["not_claimed"].items() if test in name), None)


def pytest_runtest_logreport(report: Any) -> None:
    """Write down each outcome."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        lines = report.longreprtext.splitlines() if report.failed else []
        told = [each for each in lines if each.startswith(("E", ">"))][:6]
        line = {"test": report.nodeid.split("entrypoints/", 1)[1], "outcome": report.outcome, "told": told}
        with Path(os.environ["SUITE_REPORT"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    """Run the suite and write what came of it."""
    sys.path.insert(0, str(_HERE.parent / "cpu"))
    from provenance import provenance, write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--python", required=True, help="with vLLM and pytest")
    parser.add_argument("--only", default="", help="tests whose name has this text")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sources = given.sources.resolve()
    outcomes: dict[str, dict[str, str]] = {}
    told: dict[str, list[str]] = {}
    for model in given.models:
        passed = [test for test, models in outcomes.items() if "passed" in models.values()]
        for line in run(sources, model.resolve(), given.python, given.only, passed):
            outcomes.setdefault(line["test"], {})[model.name] = line["outcome"]
            told.setdefault(line["test"], []).extend(line["told"])
    failed = {test: told[test] for test, models in outcomes.items() if not {"passed", "skipped"} & {*models.values()}}
    asked = "import importlib.metadata as m; print(m.version('vllm'), m.version('openai'))"
    versions = subprocess.run([given.python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    result = {"sources": sources.name, "vllm and openai": versions, "load": os.getloadavg()[0]}
    counts = {"claimed": len(outcomes), "passed": len(outcomes) - len(failed), "failed": len(failed)}
    result |= {"counts": counts, "failed": failed, "outcomes": outcomes, "not_claimed": _CLAIMS["not_claimed"]}
    write(provenance("httpx") | result, given.out)
    print(counts, *failed, sep="\n")
    sys.exit(bool(failed or not outcomes))


def run(sources: Path, model: Path, python: str, only: str, passed: list[str]) -> list[dict[str, Any]]:
    """Run the suite with a model, but for what has passed; return a row for each test."""
    modules = [str(sources / "tests/entrypoints" / name) for name in _CLAIMS["modules"]]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.jsonl"
        report.touch()
        environment = os.environ | {
            "SUITE_SOURCES": str(sources), "SUITE_MODEL": str(model), "SUITE_REPORT": str(report), "SUITE_ONLY": only,
            "DRAFTWISE_PYTHON": sys.executable, "DRAFTWISE_PATH": os.environ.get("PYTHONPATH", ""),
            "SUITE_PASSED": json.dumps(passed),
            "PYTHONPATH": str(_HERE), "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        options = ["-q", "-p", "vllm_suite", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider"]
        options += ["-p", "no:schemathesis", "--rootdir", str(sources), "-c", os.devnull, "--timeout=300"]
        subprocess.run([python, "-m", "pytest", *options, *modules], env=environment, cwd=scratch, check=False)
        return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
