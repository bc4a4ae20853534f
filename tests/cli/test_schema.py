"""What the verbs print as JSON is what the schemas in the wheel say, and `draftwise schema` prints them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator
from tests.support.made_runs import gains, make_run, save_run

from draftwise.cli import main

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
BUNDLE = Path(__file__).parents[2] / "bundle"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
EAGLE3 = '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}'
REFUSED = '{"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": 8}'


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)


def schema_of(verb: str) -> dict[str, Any]:
    return json.loads(run("schema", verb).stdout)


def verbs_with_json() -> Iterator[str]:
    context = click.Context(main)
    for verb in main.list_commands(context):
        command = main.get_command(context, verb)
        if command is not None and any("--json" in parameter.opts for parameter in command.params):
            yield verb


def close(schema: Any) -> Any:
    """Return a schema that takes no property beside those it names."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(closed.get("properties"), dict) else closed


def test_every_verb_that_prints_json_has_a_schema() -> None:
    for verb in [*verbs_with_json(), "bundle", "train"]:
        schema = schema_of(verb)
        Draft7Validator.check_schema(schema)
        assert verb in schema["title"]


CASES: dict[str, list[tuple[object, ...]]] = {
    "check": [
        (LLAMA, "-sc", EAGLE3, "--vllm", "0.19.1", "--vllm", "0.33.0"),
        (LLAMA, "-sc", REFUSED, "--vllm", "all"),
        (LLAMA, "--vllm", "0.34.0", "--nearest"),
        ("vllm serve m --speculative-model x",),
        ("docker run vllm/vllm-openai:v0.34.0 --model m",),
        (NGRAM,),
    ],
    "upgrade": [
        (LLAMA, "-sc", spec, "--from", before, "--to", after)
        for spec in (NGRAM, REFUSED)
        for before, after in (("0.19.1", "0.33.0"), ("0.33.0", "0.16.0"))
    ],
    "size": [(LLAMA, "--gpu", "H100"), (LLAMA, "--gpu", "L40S", "--speculative-config", EAGLE3)],
    "pick": [(LLAMA, "--gpu", "H200", "--workload", "code"), (LLAMA, "--gpu", "H200", "--workload", "chat")],
    "inspect": [(BUNDLE / "target",), (BUNDLE / "eagle3", "--target", BUNDLE / "target")],
    "facts": [()],
    "explain": [(name,) for name in ("eagle3", "unknown-key", "outputs-differ", "disable_by_batch_size")],
}


@pytest.mark.parametrize(("verb", "arguments"), [(verb, each) for verb, cases in CASES.items() for each in cases])
def test_what_a_verb_prints_fits_its_schema(verb: str, arguments: tuple[object, ...]) -> None:
    printed = json.loads(run(verb, *arguments, "--json").stdout)
    assert [error.message for error in Draft7Validator(schema_of(verb)).iter_errors(printed)] == []


@pytest.mark.parametrize("verb", ["check", "upgrade"])
def test_every_property_of_a_judgement_is_documented(verb: str) -> None:
    closed = Draft7Validator(close(schema_of(verb)))
    for arguments in CASES[verb]:
        printed = json.loads(run(verb, *arguments, "--json").stdout)
        assert [error.message for error in closed.iter_errors(printed)] == []


def test_a_run_and_its_comparison_fit_their_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.reporting.page._draw", lambda found: {})
    before = save_run(tmp_path / "before", make_run({"ngram k=3": gains(1.5)}))
    after = save_run(tmp_path / "after", make_run({"ngram k=3": gains(0.7)}, seed=1))
    for verb, arguments in (("report", (before,)), ("compare", (before, after))):
        printed = json.loads(run(verb, *arguments, "--json").stdout)
        assert [error.message for error in Draft7Validator(schema_of(verb)).iter_errors(printed)] == []
    decide, report = schema_of("decide"), schema_of("report")
    assert decide["properties"] == report["properties"]


def test_the_speculative_config_has_a_schema_for_each_release() -> None:
    assert json.loads(run("schema").stdout)["title"] == "--speculative-config of vLLM 0.33.0"
    old = json.loads(run("schema", "--vllm", "0.19.1").stdout)
    assert "dflash" not in json.dumps(old["properties"]["method"])
    assert run("schema", "--vllm", "0.34.0").exit_code == 2
    assert "0.34.0" in json.loads(run("schema", "--vllm", "0.34.0", "--nearest").stdout)["description"]


def test_a_finding_of_another_form_would_be_noticed() -> None:
    printed = json.loads(run("check", LLAMA, "-sc", REFUSED, "--json").stdout)
    printed[0]["findings"][0]["severity"] = "fatal"
    assert not Draft7Validator(schema_of("check")).is_valid(printed)
