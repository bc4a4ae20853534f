"""Whatever number is given, an answer comes in little memory and few steps: no clock is read."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.bounded import GROUPS

from draftwise.core import Setup, SpecConfig
from draftwise.core.ruling import CheckOutcome
from draftwise.plan.check import check
from draftwise.plan.check.serving.cuda_graphs import find_holes


@pytest.mark.parametrize("group", GROUPS)
def test_any_number_is_answered_in_little_memory_and_few_steps(group: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bounded", group],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("k", "is_judged"), [(5, True), (131_071, True), (131_072, False), (10**20, False)])
def test_a_draft_as_long_as_the_context_is_not_judged(k: int, is_judged: bool) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4}
    setup = Setup(target="meta-llama/Llama-3.1-8B-Instruct", engine="vllm", spec=SpecConfig.keep(spec))
    found = check(setup)
    assert ("draft-beyond-context" not in [each.code for each in found.findings]) == is_judged
    assert (found.outcome is not CheckOutcome.NOT_JUDGED) == is_judged


@pytest.mark.parametrize(
    ("release", "runner", "spec", "is_judged"),
    [
        ("0.33.0", "0", {"method": "ngram", "prompt_lookup_max": 4}, True),
        ("0.33.0", "1", {"method": "ngram", "prompt_lookup_max": 4}, False),
        ("0.26.0", "", {"method": "ngram", "prompt_lookup_max": 4}, True),
        ("0.19.1", "", {"method": "suffix"}, True),
        ("0.19.1", "", {"method": "ngram_gpu", "prompt_lookup_max": 4}, False),
        ("0.19.1", "", {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct"}, False),
    ],
)
def test_runner_v1_cuts_what_a_lookup_finds_beyond_the_context(
    release: str, runner: str, spec: dict[str, Any], is_judged: bool
) -> None:
    keys = {**spec, "num_speculative_tokens": 70}
    found = check(
        Setup(
            target="meta-llama/Llama-3.1-8B-Instruct", engine="vllm", engine_version=release,
            args={"max_model_len": 64}, spec=SpecConfig.keep(keys),
            env={"VLLM_USE_V2_MODEL_RUNNER": runner} if runner else {},
        ),
        installed=frozenset({"arctic-inference"}),
    )  # fmt: skip
    assert ("draft-beyond-context" not in [each.code for each in found.findings]) == is_judged


@pytest.mark.parametrize(("sizes", "seqs", "k"), [([1, 2, 4, 8, 16, 24, 32], 12, 2), ([8, 16], 9, 4), ([5, 7], 3, 1)])
def test_holes_are_the_requests_whose_next_graph_is_not_whole(sizes: list[int], seqs: int, k: int) -> None:
    step, most = k + 1, min(seqs * (k + 1), sizes[-1])
    full = {-(-size // step) * step for size in sizes if -(-size // step) * step <= most}
    graphs = sorted({*sizes, *full})
    expected = [
        count
        for count in range(1, most // step + 1)
        if next(size for size in graphs if size >= count * step) not in full
    ]
    found = find_holes(sizes, max_num_seqs=seqs, num_speculative_tokens=k)
    assert [count for each in found for count in each] == expected
