"""Budgets against what vLLM 0.26.0 measured on an H200, and on two: benchmarks/h200/results/vllm_memory*.json.

python tests/plan/size/test_against_h200.py      # the table of errors
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwise.core.budget import Budget
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.vllm import get_release
from draftwise.plan.size import SizeRequest, measure
from draftwise.plan.size.drafter_parts import Drafter, describe_drafter
from draftwise.plan.size.shapes import read_shape
from draftwise.plan.size.size_request import NO_DRAFTER
from draftwise.plan.size.weight_parts import BF16, get_precision

RESULTS = Path(__file__).parents[3] / "benchmarks/h200/results"
FILES = ("vllm_memory.json", "vllm_memory_tp2.json")
ROWS: list[dict[str, Any]] = [row for name in FILES for row in json.loads((RESULTS / name).read_text())]
CALIBRATED = {
    "base", "base-server", "base-tokens2048", "base-eager", "base-v1runner", "ngram-k5", "eagle3-k3",
    "eagle3-k3-server", "eagle3-k3-v1runner", "draft1b-k4", "draft1b-k4-tokens2048", "dflash-k7", "dflash-k7-server",
    "qwen3-30b-a3b",
}  # fmt: skip
"""Cases that the formula and its constants were read off; the others were predicted."""


def request_of(row: dict[str, Any]) -> SizeRequest:
    """Return the request that a measured row stands for."""
    flags, spec = row["given"].get("args", {}), row["given"].get("spec") or {}
    runner = "V2" if row["runner"].endswith("gpu.model_runner") else "V1"
    return SizeRequest(
        release=get_release("0.26.0"),
        gpu=get_gpu("H200"),
        runner=runner,
        name=row["case"],
        served=row["case"],
        config=row["target_config"],
        shape=read_shape(row["target_config"]),
        precision=get_precision(flags.get("quantization", "bf16")),
        drafter=drafter_of(row, spec, runner),
        drafter_precision=BF16,
        num_speculative_tokens=spec.get("num_speculative_tokens", 0),
        gpu_memory_utilization=row["gpu_memory_utilization"],
        max_model_len=row["max_model_len"],
        max_num_seqs=row["max_num_seqs"],
        max_num_batched_tokens=row["max_num_batched_tokens"],
        kv_cache_dtype=row["cache_dtype"],
        enforce_eager=bool(flags.get("enforce_eager")),
        async_scheduling=row["async_scheduling"],
        cold_start=not row["compiled_before"],
        tensor_parallel_size=flags.get("tensor_parallel_size", 1),
        draft_tensor_parallel_size=flags.get("tensor_parallel_size", 1),
    )


def drafter_of(row: dict[str, Any], spec: dict[str, Any], runner: str) -> Drafter:
    if not spec:
        return NO_DRAFTER
    found = describe_drafter(
        spec["method"], spec["num_speculative_tokens"], row["target_config"], row["drafter_config"]
    )
    if spec["method"] == "eagle3" and runner == "V2":
        # The V2 runner loaded the head with the target's dummy loader, which leaves it the target's lm_head.
        found = replace(found, parts=tuple(part for part in found.parts if part.name != "lm_head"))
    return found


def errors_of(row: dict[str, Any], budget: Budget) -> dict[str, float]:
    """Return the relative errors of a prediction."""
    worker = row["worker"]
    available = worker["available_kv_cache_memory_bytes"]
    return {
        "weights": budget.weights / row["weights"] - 1,
        "activations": budget.activations / worker["peak_activation_memory"] - 1,
        "planned": budget.fixed / (worker["requested_memory"] - available) - 1,
        "blocks": budget.num_blocks / row["num_gpu_blocks"] - 1,
        "tokens": budget.kv_tokens / row["logged_kv_tokens"] - 1,
    }


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_every_case_is_within_two_percent_of_vllm(row: dict[str, Any]) -> None:
    errors = errors_of(row, measure(request_of(row)))
    assert abs(errors["weights"]) < 0.01
    # Nothing was calibrated with several GPUs, where too much is planned for activations.
    assert abs(errors["planned"]) < 0.02 or 0 < errors["planned"] < 0.04 * (row["case"].endswith("-tp2"))
    assert abs(errors["blocks"]) < 0.01
    assert abs(errors["tokens"]) < 0.01


def test_cases_that_calibrated_nothing_are_there() -> None:
    assert {row["case"] for row in ROWS} >= CALIBRATED
    assert len(ROWS) - len(CALIBRATED) >= 9


def test_a_drafter_pushes_as_many_tokens_out_as_measured() -> None:
    by_case = {row["case"]: row for row in ROWS}
    base = by_case["base"]
    for case in ("eagle3-k3", "draft1b-k4", "dflash-k7"):
        lost = base["num_gpu_blocks"] - by_case[case]["num_gpu_blocks"]
        predicted = measure(request_of(base)).num_blocks - measure(request_of(by_case[case])).num_blocks
        assert predicted == pytest.approx(lost, rel=0.05)


def print_table() -> None:
    print(f"{'case':24}{'':12}{'weights':>9}{'peak':>9}{'planned':>9}{'blocks':>9}{'tokens':>9}")
    for row in ROWS:
        errors = errors_of(row, measure(request_of(row)))
        used = "calibrated" if row["case"] in CALIBRATED else "predicted"
        print(f"{row['case']:24}{used:12}" + "".join(f"{100 * value:+8.2f}%" for value in errors.values()))


if __name__ == "__main__":
    print_table()
