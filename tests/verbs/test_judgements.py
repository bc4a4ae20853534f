"""The headline, `accepted` and the exit code are one outcome."""

import json
from pathlib import Path

import pytest

import draftwise

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_drafters_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    spec = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    result = draftwise.check(LLAMA, vllm="0.33.0", speculative_config=spec)
    (judged,) = result.judgements
    assert (judged.accepted, judged.verdict, result.exit_code) == (False, "rejected", 1)
    assert "drafter-config-unreadable" in {each.code for each in judged.findings}


def test_a_config_file_is_refused_only_if_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"vllm serve {LLAMA} --config c.yaml"
    result = draftwise.check(line)
    (judged,) = result.judgements
    assert (judged.accepted, judged.verdict, result.exit_code) == (False, "rejected", 1)
    (tmp_path / "c.yaml").write_text(json.dumps({"seed": 1}))
    result = draftwise.check(line)
    assert (result.judgements[0].accepted, result.judgements[0].verdict, result.exit_code) == (True, "accepted", 0)


def test_what_fails_later_is_said_in_the_headline(tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n"
        "    image: vllm/vllm-openai:v0.20.0\n    args: [--model, /m/target]\n"
    )
    result = draftwise.check(str(pod))
    assert (result.judgements[0].verdict, result.exit_code) == ("accepted, fails later", 1)
