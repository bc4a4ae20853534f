"""Constants of a machine are found again in the steps that they made."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftwise.core import ModelShape
from draftwise.knowledge.gpus import get_gpu
from draftwise.plan.cost.cost_model import MeasuredStep, covary_noise, fit_cost_model, fit_machine
from draftwise.plan.cost.machine import (
    Constants,
    DecodeBatch,
    DecodeStep,
    Drafting,
    Graph,
    Machine,
    Prior,
    cpu_prior,
    gpu_prior,
)
from draftwise.plan.cost.work import Work

ROOT = Path(__file__).parents[3]
SHAPE = ModelShape(
    hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, intermediate_size=14336,
    vocab_size=128256, max_position_embeddings=8192,
)  # fmt: skip
TARGET = Work(dense_bytes=15e9, flops_per_row=15e9, head_flops_per_row=1e9, weights=8 * 10**9)
MIXTURE = Work(dense_bytes=2e9, expert_bytes=58e9, share_per_row=1 / 16, flops_per_row=6e9, weights=30 * 10**9)
HEAD = Drafting(
    method="eagle3",
    work=Work(dense_bytes=0.8e9, flops_per_row=0.8e9, head_flops_per_row=0.3e9, weights=4 * 10**8),
    asynchronous=True,
)


@pytest.fixture
def prior() -> Prior:
    return gpu_prior(get_gpu("H200"))


def machine(constants: Constants) -> Machine:
    return Machine(constants=constants, work=TARGET, shape=SHAPE)


def step(sequences: float, k: int = 0, **other: object) -> DecodeStep:
    batch = DecodeBatch(sequences=sequences, context=640)
    return DecodeStep(batch=batch, drafting=HEAD if k else None, drafted=k, verified=k, **other)  # type: ignore[arg-type]


def measure(truth: Machine, steps: list[DecodeStep]) -> list[MeasuredStep]:
    return [MeasuredStep(step=each, seconds=truth.seconds(each)) for each in steps]


def test_a_slower_machine_is_found_in_four_steps(prior: Prior) -> None:
    slower = replace(prior.constants, step_s=2e-3, bytes_per_s=0.8 * prior.constants.bytes_per_s)
    truth = machine(slower)
    fitted = fit_machine(machine(prior.constants), prior, measure(truth, [step(1), step(64), step(1, 3), step(64, 3)]))
    for each in (step(8), step(32), step(16, 5), step(128, 1)):
        assert fitted.seconds(each) == pytest.approx(truth.seconds(each), rel=0.03)


def test_what_no_step_depends_on_keeps_its_prior(prior: Prior) -> None:
    fitted = fit_machine(machine(prior.constants), prior, measure(machine(prior.constants), [step(1), step(8)]))
    assert fitted.constants.sync_s == prior.constants.sync_s
    assert fitted.constants.uncaptured_s == prior.constants.uncaptured_s


@pytest.mark.parametrize(
    "partial", [{"graph": Graph.PIECEWISE}, {"graph": Graph.NONE, "prefill_tokens": 64}], ids=["piecewise", "prompts"]
)
def test_launching_kernels_one_by_one_is_found_in_steps_with_piecewise_graphs_or_uncaptured_prompts(
    prior: Prior, partial: dict[str, object]
) -> None:
    truth = machine(replace(prior.constants, piecewise_s=3 * prior.constants.piecewise_s))
    measured = measure(truth, [step(1), step(64), step(1, **partial), step(64, **partial)])
    fitted = fit_machine(machine(prior.constants), prior, measured)
    assert fitted.constants.piecewise_s == pytest.approx(truth.constants.piecewise_s, rel=0.2)


def test_the_process_goes_through_what_the_physics_misses_and_forgets_it_far_away(prior: Prior) -> None:
    truth = machine(prior.constants)
    odd = replace(truth, constants=replace(prior.constants, row_s=2e-5))
    steps = [step(1), step(64), step(64, 3)]
    measured = [*measure(truth, steps[:2]), replace(measure(odd, steps[2:])[0], seconds=1.2 * truth.seconds(steps[2]))]
    model = fit_cost_model(truth, prior, measured)
    assert model.seconds(steps[2]) == pytest.approx(measured[2].seconds, rel=0.03)
    far, near = model.predict([step(1, 7)]), model.predict([step(60, 3)])
    assert near.covariance[0, 0] < far.covariance[0, 0]


def test_steps_of_one_kind_are_wrong_together(prior: Prior) -> None:
    model = fit_cost_model(machine(prior.constants), prior, measure(machine(prior.constants), [step(1)]))
    found = model.predict([step(32), step(33)]).covariance
    assert found[0, 0] + found[1, 1] - 2 * found[0, 1] < 0.05 * found[0, 0]


@pytest.mark.parametrize(("batch_spread", "draft_spread"), [(1.0, 0.4), (0.8, 0.9)])
def test_how_far_tokens_share_experts_is_learnt(prior: Prior, batch_spread: float, draft_spread: float) -> None:
    """Sequences and the tokens of one sequence may choose alike to different degrees."""
    start = replace(machine(prior.constants), work=MIXTURE)
    truth = replace(start, constants=replace(prior.constants, batch_spread=batch_spread, draft_spread=draft_spread))
    measured = measure(truth, [step(1), step(4), step(32), step(1, 3), step(8, 3)])
    fitted = fit_machine(start, prior, measured)
    for unseen in (step(1, 7), step(2, 5), step(16, 1), step(12)):
        assert fitted.seconds(unseen) == pytest.approx(truth.seconds(unseen), rel=0.05)
    assert start.seconds(step(2, 7)) > 1.07 * truth.seconds(step(2, 7)), "independent choices cost more"


def test_steps_that_read_all_experts_leave_those_that_read_few_in_doubt(prior: Prior) -> None:
    truth = replace(machine(prior.constants), work=MIXTURE)
    few, many = [step(1), step(2), step(2, 3)], [step(128), step(256), step(256, 3)]
    doubts = []
    for steps in (many, [*few, *many]):
        found = fit_cost_model(truth, prior, measure(truth, steps)).predict([step(1, 3), step(1)]).covariance
        doubts.append(math.sqrt(found[0, 0] + found[1, 1] - 2 * found[0, 1]))
    assert doubts[0] > 0.2, "an interval that holds most answers"
    assert doubts[1] < 0.6 * doubts[0]


def test_without_a_measured_step_the_prior_speaks(prior: Prior) -> None:
    model = fit_cost_model(machine(prior.constants), prior, [])
    assert model.seconds(step(8)) == pytest.approx(machine(prior.constants).seconds(step(8)))


def test_a_processors_prior_knows_what_rows_cost_with_packed_weights() -> None:
    """Verifying is not free: a measured file says how many times one row's pass several take."""
    result = json.loads((ROOT / "benchmarks/cpu/results/packed_rows.json").read_text())
    size, weights = (result["settings"][name] for name in ("model_bytes", "weights"))
    shape = replace(SHAPE, num_layers=30, num_kv_heads=3, head_dim=64)
    work = Work(dense_bytes=size, flops_per_row=2 * weights, weights=weights)
    target = Machine(constants=cpu_prior().constants, work=work, shape=shape)
    batch = DecodeBatch(sequences=1, context=result["settings"]["context"])
    for rows, measured in result["over_one_row"]["threads"]["1"].items():
        several = target.seconds(DecodeStep(batch=batch, verified=int(rows) - 1))
        assert several / target.baseline_s(batch) == pytest.approx(measured, rel=0.3)


def test_a_processor_is_learnt_from_its_own_steps_alone() -> None:
    prior = cpu_prior()
    truth = machine(replace(prior.constants, step_s=4e-3, bytes_per_s=8e9, flops_per_s=4e10))
    fitted = fit_machine(machine(prior.constants), prior, measure(truth, [step(1), step(4), step(1, 3), step(4, 3)]))
    assert fitted.seconds(step(2, 3)) == pytest.approx(truth.seconds(step(2, 3)), rel=0.1)


def test_the_pace_of_a_moment_cancels_in_the_ratio_of_what_was_measured_then() -> None:
    steps = measure(machine(cpu_prior().constants), [step(1), step(1, 3), step(1)])
    named = [replace(each, moment=moment) for each, moment in zip(steps, ("one", "one", "other"), strict=True)]
    for measured, is_shared in ((named, True), (steps, False)):
        covariance = covary_noise(measured, [0.01, 0.02, 0.03])
        beside, apart = (covariance @ np.array(sign) @ np.array(sign) for sign in ([1, -1, 0], [1, 0, -1]))
        assert beside == pytest.approx(0.01**2 + 0.02**2)
        assert (apart > 0.01**2 + 0.03**2) == is_shared


def test_graphs_cost_what_they_are_said_to(prior: Prior) -> None:
    one = machine(prior.constants)
    full, piecewise, none = (one.seconds(step(8, 3, graph=graph)) for graph in Graph)
    assert piecewise - full == pytest.approx(prior.constants.piecewise_s)
    assert none == max(full, prior.constants.uncaptured_s)


def test_constants_are_kept_as_logarithms(prior: Prior) -> None:
    changed = prior.constants.with_logs(("step_s", "drafting.eagle3"), (math.log(0.5), math.log(2)))
    assert changed.step_s == pytest.approx(0.5)
    assert changed.drafting == {"eagle3": pytest.approx(2)}
    assert np.exp(changed.log("drafting.eagle3")) == pytest.approx(2)
    assert changed.log("drafting.ngram") == 0
