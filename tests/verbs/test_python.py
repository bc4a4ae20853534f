"""The verbs from Python: what a program that imports draftwise sees."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import draftwise
from draftwise.cli import main
from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.core.document_schema import field_texts
from draftwise.core.progress import Silent
from draftwise.verbs import VERBS, load_verb
from draftwise.verbs.check import CheckRequest
from draftwise.verbs.verb import Result, Verb

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
WITHOUT_PYTHON = {"config", "mcp", "schema", "serve", "skill", "warm-up"}
"""Verbs that only a command line needs: `draftwise.LLM` is the engine's Python."""


def test_the_package_lists_the_verbs_and_nothing_else() -> None:
    engine = {"LLM", "SamplingParams", "StructuredOutputsParams"}
    assert dir(draftwise) == sorted(set(draftwise.__all__) - (set() if find_spec("torch") else engine))
    verbs = set(draftwise.__all__) - engine
    assert verbs - {"__version__"} == {row.module for row in VERBS.values()} - {
        name.replace("-", "_") for name in WITHOUT_PYTHON
    }


def test_help_shows_every_verb_with_its_arguments_and_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without the engine, whose names cannot be had there."""
    monkeypatch.setattr(draftwise, "find_spec", lambda _name: None)
    shown = pydoc.render_doc(draftwise, renderer=pydoc.plaintext)
    for name in set(dir(draftwise)) - {"__version__"}:
        verb = load_verb(name)
        (line,) = re.findall(rf"^    {name}\((.*)$", shown, re.MULTILINE)
        assert line.endswith(f") -> '{verb.result.__name__}'")
        texts = field_texts(verb.request)
        assert texts
        assert all(f"{field}: {text}" in pydoc.render_doc(verb) for field, text in texts.items())
    assert "SamplingParams" not in shown


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_a_request_a_result_and_a_function(name: str) -> None:
    verb = load_verb(name)
    assert isinstance(verb, Verb)
    assert verb.__doc__
    request = verb.request
    assert isinstance(request, type)
    assert dataclasses.is_dataclass(request)
    assert request.__doc__
    assert request.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert issubclass(verb.result, Result)
    assert dataclasses.is_dataclass(verb.result)
    assert VERBS[name].module == verb.result.VERB
    returned = inspect.signature(request).replace(return_annotation=verb.result.__name__)
    assert inspect.signature(verb) == returned


def test_text_path_and_value_are_accepted_alike(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(NGRAM))
    answers = [
        draftwise.check(LLAMA, vllm="0.33.0", speculative_config=given).to_dict()
        for given in (NGRAM, json.dumps(NGRAM), str(file), SpecConfig.parse(NGRAM))
    ]
    assert all(answer == answers[0] for answer in answers)
    setup = Setup(target=LLAMA, engine="vllm", engine_version="0.33.0", spec=SpecConfig.parse(NGRAM))
    assert draftwise.check(setup).to_dict() == answers[0]


def test_a_result_is_what_the_command_prints() -> None:
    arguments = ["check", LLAMA, "-sc", json.dumps(NGRAM), "--vllm", "0.33.0"]
    result = draftwise.check(LLAMA, speculative_config=NGRAM, vllm="0.33.0")
    assert result.to_dict() == json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    shown = " ".join(str(result).split())
    assert shown == " ".join(CliRunner().invoke(main, arguments).stdout.split())
    assert "<pre" in result._repr_html_()
    assert "accepted" in result._repr_html_()


def test_an_error_carries_its_findings() -> None:
    with pytest.raises(InvalidSetup) as raised:
        draftwise.check(LLAMA, vllm="99.0")
    assert [finding.where for finding in raised.value.findings] == ["--vllm"]
    with pytest.raises(InvalidSetup, match="Give a model"):
        draftwise.check()


def test_a_request_can_be_run_with_a_progress() -> None:
    result = draftwise.check.run(CheckRequest(LLAMA, speculative_config=NGRAM), Silent())
    assert result.judgements[0].accepted


def test_nothing_heavy_is_imported_for_a_check() -> None:
    script = (
        "import sys, draftwise; dir(draftwise);"
        f"print(draftwise.check({LLAMA!r}, speculative_config={NGRAM!r}).exit_code);"
        "print(sorted({'torch', 'matplotlib', 'numpy', 'rich', 'asyncio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0", "[]"]
