"""The step-time estimate against what vLLM 0.26.0 took on an H200 (8B shape, BF16, context of about 640)."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.models import find_model
from draftwise.plan.cost.machine import DecodeBatch, Drafting, Machine, gpu_prior
from draftwise.plan.cost.work import find_drafter_work, find_work
from draftwise.plan.forecast.calibrated_server import choose_best_k, compute_acceptance_length
from draftwise.plan.size.shapes import read_shape
from draftwise.plan.size.weight_parts import BF16

BATCHES = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256)
PLAIN_MS = (4.76, 4.85, 4.95, 5.16, 5.68, 6.67, 7.65, 8.66, 11.40, 13.98)
BREAK_EVEN = {
    ("ngram", 5): (1.37, 1.36, 1.46, 1.69, 1.76, 2.30),
    ("eagle3", 3): (1.32, 1.32, 1.34, 1.36, 1.41, 1.66, 1.97, 2.14, 2.91, 2.52),
    ("draft_model", 4): (2.56, 3.37, 2.92, 2.63, 2.78, 3.26),
    ("eagle3", 5): (1.52, 1.54, 1.58, 1.59, 1.80, 2.33),
    ("dflash", 7): (1.26, 1.30, 1.34, 1.41, 1.75, 2.65),
    ("ngram_gpu", 5): (1.58, 1.59, 1.82, 1.79, 1.93, 2.21),
    ("eagle3", 1): (1.12, 1.12, 1.13, 1.13, 1.12, 1.16, 1.29, 1.36, 1.44, 1.50),
    ("eagle3", 7): (1.71, 1.72, 1.74, 1.78, 2.04, 2.77),
}
SIMULATED = 0.6914
"""Chance of acceptance that was set on the device."""


def config(name: str) -> dict[str, object]:
    known = find_model(name)
    assert known is not None
    return dict(known.config)


TARGET = config("meta-llama/Llama-3.1-8B-Instruct")

BORROWED_HEAD = {**TARGET, "num_hidden_layers": 1, "draft_vocab_size": 128256}
"""The eagle3 head of these rows chose among the target's whole vocabulary."""


@pytest.fixture(scope="module")
def machine() -> Machine:
    work = find_work(TARGET, BF16)
    assert work is not None
    return Machine(
        constants=gpu_prior(get_gpu("H200")).constants, work=work, shape=read_shape(TARGET), tensor_parallel_size=1
    )


def drafting(method: str, k: int) -> Drafting:
    if method == "draft_model":
        work = find_work(config("meta-llama/Llama-3.2-1B-Instruct"), BF16)
    else:
        work = find_drafter_work(method, k, TARGET, BORROWED_HEAD if method == "eagle3" else None, BF16)
    return Drafting(method=method, work=work, asynchronous=method not in ("ngram", "draft_model"))


def batch(sequences: int) -> DecodeBatch:
    return DecodeBatch(sequences=sequences, context=640)


def test_plain_steps_within_a_tenth(machine: Machine) -> None:
    for sequences, measured in zip(BATCHES, PLAIN_MS, strict=True):
        assert 1e3 * machine.baseline_s(batch(sequences)) == pytest.approx(measured, rel=0.1)


def test_break_even_is_a_few_percent_off_in_the_middle_and_a_quarter_at_worst(machine: Machine) -> None:
    errors = [
        abs(machine.break_even(batch(sequences), drafting(method, k), k) / measured - 1)
        for (method, k), row in BREAK_EVEN.items()
        for sequences, measured in zip(BATCHES, row, strict=False)
    ]
    assert statistics.median(errors) < 0.04
    assert max(errors) < 0.25


@pytest.mark.parametrize(("sequences", "best"), [(1, 3), (4, 3), (8, 3), (32, 3), (64, 3), (96, 1), (128, 1), (256, 1)])
def test_the_best_k_of_eagle3_is_the_measured_one(machine: Machine, sequences: int, best: int) -> None:
    assert choose_best_k(machine, batch(sequences), drafting("eagle3", 3), SIMULATED, (1, 3, 5, 7)) == best


@given(acceptance=st.floats(0, 1), k=st.integers(0, 20))
def test_a_step_emits_at_least_one_token_and_at_most_all(acceptance: float, k: int) -> None:
    assert 1 <= compute_acceptance_length(acceptance, k) <= k + 1 + 1e-9


def test_experts_are_read_more_the_more_tokens_there_are_and_never_all_twice() -> None:
    work = find_work(config("Qwen/Qwen3-30B-A3B"), BF16)
    assert work is not None
    read = [work.bytes_for(rows) for rows in (1, 2, 8, 64, 4096)]
    assert read == sorted(read)
    assert read[0] < 0.2 * read[-1]
    assert read[-1] <= work.dense_bytes + work.expert_bytes
    assert work.dense_bytes + work.expert_bytes == pytest.approx(2 * (30.5e9 - 0.31e9), rel=0.01)


def test_drafters_that_guess_at_once_cost_one_pass(machine: Machine) -> None:
    at_once, in_turn = drafting("dflash", 7), drafting("eagle3", 7)
    more = [
        machine.drafting_s(batch(1), each, 7) - machine.drafting_s(batch(1), each, 1) for each in (at_once, in_turn)
    ]
    assert more[0] < more[1] / 10


def test_only_methods_without_weights_look_up() -> None:
    assert [drafting(method, 3).is_lookup for method in ("ngram", "ngram_gpu", "eagle3", "draft_model")] == [
        True, True, False, False
    ]  # fmt: skip


def test_heads_side_by_side_are_no_experts() -> None:
    """Medusa has a head for each draft token, and each step reads all of them."""
    work = find_drafter_work("medusa", 4, TARGET, None, BF16)
    assert work is not None
    assert work.expert_bytes == 0
    assert work.bytes_for(1) == work.bytes_for(64) == work.dense_bytes > 0
