"""draftwise.toml and environment variables: what they set, what counts before them, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftwise.cli import main
from draftwise.verbs import VERBS
from draftwise.verbs.config import DEFAULTS

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
COMPOSE = 'services: {llm: {image: "vllm/vllm-openai:v0.27.1", command: --model Qwen/Qwen3-8B}}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in DEFAULTS:
        monkeypatch.delenv(f"DRAFTWISE_{key.replace('-', '_').upper()}", raising=False)
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return inner.parent


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main, list(words), env=variables)


def read(*words: str, **variables: str) -> Any:
    result = run(*words, "--json", **variables)
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def show(**variables: str) -> dict[str, tuple[str | None, str]]:
    return {each["key"]: (each["value"], each["source"]) for each in read("config", **variables)["defaults"]}


def test_every_default_says_where_it_comes_from(folder: Path) -> None:
    assert show() == dict.fromkeys(DEFAULTS, (None, ""))
    (folder / "draftwise.toml").write_text('release = "0.26.0"\nbaseline = "deploy/baseline.json"\n')
    found = show(DRAFTWISE_RELEASE="0.32.0", DRAFTWISE_FAIL_ON="unknown")
    assert found["release"] == ("0.32.0", "$DRAFTWISE_RELEASE")
    assert found["fail-on"] == ("unknown", "$DRAFTWISE_FAIL_ON")
    assert found["baseline"] == (str(folder / "deploy" / "baseline.json"), str(folder / "draftwise.toml"))
    assert found["gpu"] == (None, "")
    assert "$DRAFTWISE_RELEASE" in run("config", DRAFTWISE_RELEASE="0.32.0").stdout


def test_a_release_counts_where_no_option_and_no_source_names_one(folder: Path) -> None:
    (folder / "draftwise.toml").write_text('release = "0.26.0"')
    (folder / "compose.yaml").write_text(COMPOSE)
    assert [each["vllm"] for each in read("check", LLAMA)] == ["0.26.0"]
    assert [each["vllm"] for each in read("check", LLAMA, DRAFTWISE_RELEASE="0.32.0")] == ["0.32.0"]
    assert [each["vllm"] for each in read("check", LLAMA, "--vllm", "0.33.0")] == ["0.33.0"]
    assert [each["vllm"] for each in read("check", str(folder / "compose.yaml"))] == ["0.27.1"]
    assert read("size", LLAMA, "--gpu", "H200")["vllm"] == "0.26.0"
    assert read("upgrade", LLAMA, "-sc", NGRAM, "--to", "0.33.0")[0]["before"]["vllm"] == "0.26.0"


def test_a_gpu_and_what_fails_count_where_no_option_says_otherwise(folder: Path) -> None:
    (folder / "draftwise.toml").write_text('gpu = "H200"\nfail-on = "unknown"')
    assert read("size", LLAMA)["gpu"]["name"] == "H200"
    assert not read("check", LLAMA, "-sc", NGRAM)[0]["unchecked"].get("gpu")
    assert run("check", "some/model", "-sc", NGRAM).exit_code == 1
    assert run("check", "some/model", "-sc", NGRAM, "--fail-on", "error").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "release = ",
        'relaese = "0.33.0"',
        "gpu = 3",
        f"gpu = {'[' * 50_000}",
        "[check]\ngpu = 'H200'",
        "\x00",
        "gpu = ''",
    ],
)
def test_a_file_that_is_wrong_is_a_mistake_of_every_verb(folder: Path, text: str) -> None:
    (folder / "draftwise.toml").write_text(text)
    for words in (["config"], ["check", LLAMA]):
        result = run(*words, "--json")
        error = json.loads(result.stdout)["error"]
        assert (result.exit_code, error["code"]) == (2, "config-unreadable")
        assert "draftwise.toml" in error["message"]
    assert run("--help").exit_code == 0


def test_a_value_that_no_verb_takes_is_refused(folder: Path) -> None:
    (folder / "draftwise.toml").write_text('gpu = "H1000"\nfail-on = "moon"\nrelease = "99"')
    assert run("check", LLAMA).exit_code == 2
    assert run("size", LLAMA, "--vllm", "0.33.0").exit_code == 2
    for words in (("check", LLAMA), ("check", LLAMA, "--fail-on", "never"), ("size", LLAMA, "--vllm", "0.33.0")):
        assert "`draftwise config`" in run(*words).stderr
    typed = run("size", LLAMA, "--vllm", "0.33.0", "--gpu", "H2000")
    assert "H2000" in typed.stderr
    assert "`draftwise config`" not in typed.stderr


def test_a_workload_does_not_disturb_a_run_that_goes_on(folder: Path) -> None:
    (folder / "draftwise.toml").write_text('workload = "code"')
    result = run("decide", "--resume", "nowhere", "--json")
    assert json.loads(result.stdout)["error"]["code"] != "invalid-request"


def test_every_default_names_parameters_that_exist() -> None:
    for _, verbs in DEFAULTS.values():
        for verb, name in verbs.items():
            command = main.get_command(None, verb)  # type: ignore[arg-type]
            assert name in {each.name for each in command.params}, (verb, name)  # type: ignore[union-attr]
            assert verb in VERBS
