"""What the cost model says of a mixture of experts beside the steps that were measured on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import CASES
from shapes import SCALES

from draftwise.knowledge.gpus import get_gpu
from draftwise.plan.cost.cost_model import MeasuredStep, fit_cost_model, fit_machine
from draftwise.plan.cost.machine import DecodeBatch, DecodeStep, Drafting, Machine, Prior, gpu_prior
from draftwise.plan.cost.work import find_drafter_work, find_work
from draftwise.plan.size.shapes import read_shape
from draftwise.plan.size.weight_parts import BF16

SCALE = SCALES["moe"]
RESULT = Path(__file__).parents[2] / "benchmarks" / "h200" / "results" / "moe.json"
ROWS = json.loads(RESULT.read_text(encoding="utf-8"))["steps"]
CONFIG = SCALE.target | {"num_hidden_layers": ROWS[0]["layers"]}
CONTEXT = SCALE.prompt_tokens + SCALE.output_tokens / 2


@pytest.fixture
def prior() -> Prior:
    return gpu_prior(get_gpu("H200"))


@pytest.fixture
def machine(prior: Prior) -> Machine:
    work = find_work(CONFIG, BF16)
    assert work is not None
    return Machine(constants=prior.constants, work=work, shape=read_shape(CONFIG))


def as_step(row: dict[str, Any]) -> DecodeStep:
    case, batch = CASES[row["case"]], DecodeBatch(sequences=row["batch"], context=CONTEXT)
    if case.spec is None:
        return DecodeStep(batch=batch)
    method = case.spec["method"]
    work = find_drafter_work(method, case.k, CONFIG, SCALE.eagle3, BF16) if case.drafter else None
    return DecodeStep(
        batch=batch,
        drafting=Drafting(method=method, work=work, asynchronous=True),
        drafted=case.k,
        verified=case.k,
    )


def test_the_data_sheet_foresees_plain_steps(machine: Machine) -> None:
    """Sequences choose their experts independently of each other."""
    for row in (row for row in ROWS if row["case"] == "plain"):
        assert 1e3 * machine.seconds(as_step(row)) == pytest.approx(row["ms_step"], rel=0.06)


def test_the_tokens_of_one_sequence_chose_alike_and_the_fit_sees_it(machine: Machine, prior: Prior) -> None:
    measured = [MeasuredStep(step=as_step(row), seconds=row["ms_step"] / 1e3) for row in ROWS]
    found = fit_machine(machine, prior, measured).constants
    assert found.batch_spread == pytest.approx(1, abs=0.1)
    assert found.draft_spread < 0.5
    for place, left in enumerate(measured):
        others = [each for at, each in enumerate(measured) if at != place]
        assert fit_cost_model(machine, prior, others).seconds(left.step) == pytest.approx(left.seconds, rel=0.1)
