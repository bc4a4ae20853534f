"""Which graph takes a step of vLLM, release by release."""

from __future__ import annotations

import pytest

from draftwise.core import Device, Setup, SpecConfig
from draftwise.plan.cost.calibrated import GraphPlan, plan_graphs
from draftwise.plan.cost.machine import Graph


def plan(version: str, k: int, method: str = "eagle3", **args: object) -> GraphPlan:
    spec = SpecConfig(method=method, model="HEAD" if method == "eagle3" else None, num_speculative_tokens=k)
    setup = Setup(
        target="meta-llama/Llama-3.1-8B-Instruct",
        engine="vllm",
        engine_version=version,
        device=Device(name="H200", kind="cuda"),
        spec=spec if k else None,
        args={"max_num_seqs": 64, **args},
    )
    return plan_graphs(setup)[0]


def place(found: GraphPlan, sequences: int, k: int) -> Graph:
    return found.place(sequences, sequences * (k + 1))[0]


@pytest.mark.parametrize("sequences", [5, 9, 13, 17])
def test_holes_that_were_measured_on_0_26_run_piecewise_and_later_releases_have_none(sequences: int) -> None:
    assert place(plan("0.26.0", 5), sequences, 5) is Graph.PIECEWISE
    assert place(plan("0.26.0", 5), 8, 5) is Graph.FULL
    assert place(plan("0.29.0", 5), sequences, 5) is Graph.FULL


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_power_of_two_has_no_holes(k: int) -> None:
    found = plan("0.26.0", k)
    assert all(place(found, sequences, k) is Graph.FULL for sequences in range(1, 65))


def test_beyond_the_largest_size_there_is_no_graph() -> None:
    found = plan("0.26.0", 3, max_num_seqs=256)
    assert place(found, 128, 3) is Graph.FULL
    assert place(found, 129, 3) is Graph.NONE


def test_steps_are_padded_to_the_next_size() -> None:
    assert plan("0.26.0", 0).place(9, 9) == (Graph.FULL, 16.0)


def test_a_step_with_a_prompt_is_in_no_full_graph() -> None:
    assert plan("0.26.0", 3).place(8, 32, prefill_tokens=256)[0] is Graph.PIECEWISE
    assert plan("0.26.0", 3).place(8, 32, prefill_tokens=512)[0] is Graph.NONE  # 512 tokens are the largest graph


def test_lookups_on_the_v1_runner_lose_the_full_graph_where_lengths_differ() -> None:
    found = plan("0.26.0", 5, method="ngram")
    assert found.place(8, 48)[0] is Graph.FULL
    assert found.place(8, 30, uneven=True)[0] is Graph.PIECEWISE


def test_without_graphs_nothing_is_padded() -> None:
    assert plan("0.26.0", 3, enforce_eager=True).place(9, 36) == (Graph.FULL, None)
