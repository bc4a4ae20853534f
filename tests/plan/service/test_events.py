"""A simulated server does what can be computed by hand, and what Little's law says in the mean."""

import random
from itertools import accumulate, pairwise
from statistics import fmean

import pytest
from tests.plan.service.test_little import Steady

from draftwise.plan.service import (
    RequestLengths,
    ServerLimits,
    SimulatedRequest,
    serve_concurrency,
    serve_rate,
    simulate,
)

WIDE = ServerLimits(max_num_seqs=64, max_num_batched_tokens=2048)


def poisson(rate: float, num: int, *, prompt: int = 100, output: int = 51) -> list[SimulatedRequest]:
    draws = random.Random(3)
    times = accumulate(draws.expovariate(rate) for _ in range(num))
    return [SimulatedRequest(at_s=at, prompt_tokens=prompt, output_tokens=output) for at in times]


def test_one_request_takes_its_prompt_and_its_steps() -> None:
    (alone,) = simulate(
        Steady(per_prompt_token_s=1e-4), [SimulatedRequest(at_s=5, prompt_tokens=100, output_tokens=11)], WIDE
    )
    assert (alone.ttft_s, alone.tpot_s) == (pytest.approx(0.02), pytest.approx(0.01))
    assert alone.e2e_s == pytest.approx(0.12)


def test_accepted_tokens_make_answers_shorter_by_as_much_as_stands() -> None:
    long = [SimulatedRequest(at_s=0, prompt_tokens=1, output_tokens=30_001)]
    (found,) = simulate(Steady(), long, WIDE, k=3, survival=(0.8, 0.5, 0.2))
    assert found.tpot_s == pytest.approx(0.01 / 2.5, rel=0.02)


def test_a_prompt_longer_than_a_step_takes_several_and_decoding_goes_on_beside_it() -> None:
    short, long = (
        SimulatedRequest(at_s=0, prompt_tokens=10, output_tokens=101),
        SimulatedRequest(at_s=0.05, prompt_tokens=1000, output_tokens=2),
    )
    first, second = simulate(Steady(), [short, long], ServerLimits(max_num_seqs=4, max_num_batched_tokens=101))
    assert first.tpot_s == pytest.approx(0.01)
    assert second.ttft_s == pytest.approx(0.1, abs=0.011)


def test_a_full_server_makes_others_wait() -> None:
    both = [SimulatedRequest(at_s=0, prompt_tokens=10, output_tokens=11)] * 2
    first, second = simulate(Steady(), both, ServerLimits(max_num_seqs=1, max_num_batched_tokens=100))
    assert second.ttft_s == pytest.approx(first.e2e_s + 0.01)


def test_a_full_pool_sends_the_youngest_back_and_everything_is_served_all_the_same() -> None:
    pool = ServerLimits(max_num_seqs=8, max_num_batched_tokens=100, kv_tokens=60)
    found = simulate(
        Steady(), [SimulatedRequest(at_s=0, prompt_tokens=20, output_tokens=31)] * 4, pool, k=3, survival=(0.5,)
    )
    assert found[0].preemptions == 0
    assert sum(each.preemptions for each in found) > 0
    roomy = simulate(
        Steady(), [SimulatedRequest(at_s=0, prompt_tokens=20, output_tokens=31)] * 4, WIDE, k=3, survival=(0.5,)
    )
    assert fmean(each.e2e_s for each in found) > fmean(each.e2e_s for each in roomy)


@pytest.mark.parametrize(("k", "survival"), [(0, ()), (3, (0.8, 0.5, 0.2))])
def test_littles_law_holds_at_half_of_capacity(k: int, survival: tuple[float, ...]) -> None:
    """Within what it leaves out: that a request finds one more sequence, itself, and ends in the midst of a step."""
    server = Steady(per_sequence_s=5e-4, per_prompt_token_s=2e-5)
    expected = serve_rate(
        server,
        RequestLengths(prompt_tokens=100, output_tokens=201),
        1 + sum(survival),
        3.0 * (1 + sum(survival)),
        most=64,
    )
    requests = poisson(3.0 * (1 + sum(survival)), 800, output=201)
    found = simulate(server, requests, WIDE, k=k, survival=survival)
    assert expected is not None
    assert fmean(each.tpot_s for each in found) == pytest.approx(expected.tpot_s, rel=0.1)


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    server, traffic = (
        Steady(per_sequence_s=5e-4, per_prompt_token_s=2e-5),
        RequestLengths(prompt_tokens=100, output_tokens=51),
    )
    expected = serve_concurrency(server, traffic, 1.0, 8)
    found = simulate(server, poisson(1.0, 400), WIDE, concurrency=8)
    assert 51 * 8 / fmean(each.e2e_s for each in found) == pytest.approx(expected.tokens_per_s, rel=0.08)


def test_nothing_is_served_before_it_arrives() -> None:
    requests = poisson(50.0, 200)
    found = simulate(Steady(), requests, WIDE)
    ends = [request.at_s + each.ttft_s for request, each in zip(requests, found, strict=True)]
    assert all(each.ttft_s > 0 for each in found)
    assert all(after >= before for before, after in pairwise(ends))
