"""Our drafters in real vLLM: the comparison itself, and, where vLLM is installed, every layout in both engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from sides import Answer, Comparison, compare, count

ROOT = Path(__file__).parents[2]
INTEROP = ROOT / "benchmarks" / "interop"

VLLM_PYTHON = os.environ.get("DRAFTWISE_VLLM_PYTHON")
LAYOUTS = ("draft_model", "medusa", "eagle", "eagle3_draft_vocabulary", "p_eagle", "mtp", "dflash")


@dataclass
class FixedGaps:
    gap: float | None

    def of_guess(self, position: int, index: int) -> float | None:
        return self.gap

    def of_token(self, position: int) -> float | None:
        return self.gap


def check(ours: Answer, theirs: Answer, *, gap: float | None = 1.0, chained: bool = True) -> Comparison:
    return compare(
        [ours], [theirs], max_tokens=10, k=2, chained=chained, tie=1e-3, gaps_of=lambda number: FixedGaps(gap)
    )


def test_equal_drafts_are_equal() -> None:
    answer = Answer([5, 6, 7, 8], {1: [6, 7]})
    result = check(answer, answer)
    assert (result.equal_outputs, result.drafts_at_same_text, result.equal_drafts) == (1, 1, 1)
    assert not result.failures


def test_a_different_guess_is_a_failure_unless_it_is_a_tie() -> None:
    ours, theirs = Answer([5, 6, 7, 8], {1: [6, 7]}), Answer([5, 6, 7, 8], {1: [6, 9], 3: [8, 9]})
    assert [(each["what"], each["index"]) for each in check(ours, theirs).failures] == [("draft", 1)]
    tied = check(ours, theirs, gap=1e-4)
    assert not tied.failures
    assert len(tied.ties) == 1


def test_guesses_that_follow_from_a_different_one_are_not_judged_again() -> None:
    ours, theirs = Answer([5, 6], {1: [6, 7]}), Answer([5, 6], {1: [1, 2]})
    assert len(check(ours, theirs, chained=True).failures) == 1
    assert len(check(ours, theirs, chained=False).failures) == 2


def test_a_draft_that_only_one_engine_made_is_a_failure() -> None:
    assert check(Answer([5, 6, 7], {}), Answer([5, 6, 7], {1: [6]})).failures[0]["what"] == "place"


def test_a_shorter_draft_is_a_failure() -> None:
    assert check(Answer([5, 6, 7], {1: [6]}), Answer([5, 6, 7], {1: [6, 7]}), gap=None).failures


def test_different_text_is_a_failure_and_ends_the_comparison() -> None:
    result = check(Answer([5, 6, 7], {1: [6, 7], 2: [7, 8]}), Answer([5, 9, 7], {1: [6, 7], 2: [1, 1]}))
    assert [each["what"] for each in result.failures] == ["output"]
    assert result.drafts_at_same_text == 1


def test_drafts_without_room_are_left_out() -> None:
    ours, theirs = Answer([5] * 10, {7: [5, 5], 8: [5]}), Answer([5] * 10, {7: [5, 5], 8: [5, 5]})
    assert not check(ours, theirs).failures
    assert count([theirs], max_tokens=10, k=2).num_drafts == 1


def test_counts() -> None:
    counts = count([Answer([5, 6, 7, 8, 9], {1: [6, 1], 2: [7, 8], 4: [0, 0]})], max_tokens=10, k=2)
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (3, 6, 3)
    assert counts.accepted_per_pos == (2, 1)


@pytest.mark.skipif(VLLM_PYTHON is None, reason="DRAFTWISE_VLLM_PYTHON does not name the python of a vLLM environment")
def test_every_layout_drafts_the_same_in_vllm(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(INTEROP / "random_drafters.py"), "--vllm-python", str(VLLM_PYTHON)]
    command += ["--prompts", "3", "--max-tokens", "32", "--k", "3", "--out", str(out), "--only", *LAYOUTS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    methods = json.loads(out.read_text())["methods"]
    assert {name: result["verdict"] for name, result in methods.items()} == dict.fromkeys(LAYOUTS, "same")
    accepted = {name: result["counts"]["vllm"]["num_accepted_tokens"] for name, result in methods.items()}
    assert all(accepted[name] for name in LAYOUTS if name != "dflash"), accepted
