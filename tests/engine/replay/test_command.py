"""`draftwise replay` of methods with a drafter: loads target and drafter, replays a log that the target wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftwise import LLM, SamplingParams
from draftwise.cli import main
from draftwise.replaying import read_profile


@pytest.fixture(scope="module")
def log(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts as text, with the answers of the target and their lengths."""
    texts = ["abcabcabc", "the cat sat on the mat, the cat"]
    llm = LLM(str(tiny_target), dtype="float64", device="cpu")
    outputs = llm.generate(texts, SamplingParams(temperature=0, max_tokens=20))
    rows = [
        {
            "request": {"prompt": text, "temperature": 0, "max_tokens": 20},
            "response": {
                "choices": [{"text": output.outputs[0].text, "token_ids": output.outputs[0].token_ids}],
                "usage": {"completion_tokens": 20, "prompt_tokens": len(output.prompt_token_ids)},
            },
        }
        for text, output in zip(texts, outputs, strict=True)
    ]
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replay(log: Path, target: Path, spec: dict[str, Any], out: Path, *flags: str) -> Result:
    arguments = ("--target", target, "--candidate", json.dumps(spec), "--out", out, "--dtype", "float64", *flags)
    command = ["replay", log, *arguments, "--device", "cpu"]
    return CliRunner().invoke(main, [str(each) for each in command], catch_exceptions=False)


def test_a_drafter_that_is_the_target_emits_k_and_one(log: Path, tiny_target: Path, tmp_path: Path) -> None:
    spec = {"method": "draft_model", "model": str(tiny_target), "num_speculative_tokens": 4}
    dense = replay(log, tiny_target, spec, tmp_path / "dense")
    forced = replay(log, tiny_target, spec, tmp_path / "forced", "--forced")
    assert (dense.exit_code, forced.exit_code) == (0, 0), dense.output + forced.output
    found, truth = (read_profile(tmp_path / name).entries[0] for name in ("dense", "forced"))
    assert found.by_k == truth.by_k
    # 19 tokens after the first: four steps of 5 would emit 20, so that every step but the last is whole.
    assert found.by_k[4].steps == 2 * 4
    assert found.by_k[1].steps == 2 * 10


def test_forced_decoding_of_lookups_is_the_replay_from_text(log: Path, tiny_target: Path, tmp_path: Path) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    replay(log, tiny_target, spec, tmp_path / "text")
    replay(log, tiny_target, spec, tmp_path / "forced", "--forced")
    assert read_profile(tmp_path / "text").entries == read_profile(tmp_path / "forced").entries


@pytest.mark.parametrize(
    ("changes", "flags", "code"),
    [
        ({"draft_sample_method": "probabilistic"}, ("--forced",), "samples its drafts"),
        ({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2}, (), "changes the text"),
        ({"draft_sample_method": "probabilistic", "rejection_sample_method": "block"}, (), "one by one"),
        ({"model": "no-such-drafter"}, (), "no-such-drafter"),
    ],
)
def test_what_cannot_be_replayed_is_said(
    log: Path, tiny_target: Path, tmp_path: Path, changes: dict[str, Any], flags: tuple[str, ...], code: str
) -> None:
    spec = {"method": "draft_model", "model": str(tiny_target), "num_speculative_tokens": 2}
    result = replay(log, tiny_target, spec | changes, tmp_path / "p", *flags)
    assert result.exit_code == 2
    assert code in result.stderr


def test_ids_of_another_model_are_refused(log: Path, tiny_target: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange.jsonl"
    strange.write_text(json.dumps({"prompt": [5], "answer_token_ids": [100_000, 3]}) + "\n")
    spec = {"method": "draft_model", "model": str(tiny_target), "num_speculative_tokens": 2}
    result = replay(strange, tiny_target, spec, tmp_path / "p")
    assert result.exit_code == 2
    assert "token ids outside the target's vocabulary" in result.stderr
