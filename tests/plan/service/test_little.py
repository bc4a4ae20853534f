"""Throughput and latencies follow from steps, lengths and load."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.plan.service import NO_WAITING, RequestLengths, Waiting, serve_concurrency, serve_rate


@dataclass(frozen=True, slots=True)
class Steady:
    """Steps that take as long however many sequences decode, and longer by each token of a prompt."""

    base_s: float = 0.01
    per_sequence_s: float = 0.0
    per_prompt_token_s: float = 0.0

    def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        return self.base_s + sequences * self.per_sequence_s + prefill_tokens * self.per_prompt_token_s


TRAFFIC = RequestLengths(prompt_tokens=100, output_tokens=101)


def test_one_request_at_a_time_takes_its_prompt_and_its_steps() -> None:
    server = Steady(per_prompt_token_s=1e-4)
    found = serve_concurrency(server, TRAFFIC, 1.0, 1)
    assert found.ttft_s == pytest.approx(0.02)
    assert found.tpot_s == pytest.approx(0.01)
    assert found.tokens_per_s == pytest.approx(101 / (0.02 + 1.0))


def test_tokens_a_step_shorten_decoding_and_not_the_prompt() -> None:
    server = Steady(per_prompt_token_s=1e-4)
    plain, doubled = (serve_concurrency(server, TRAFFIC, length, 1) for length in (1.0, 2.0))
    assert doubled.tpot_s == pytest.approx(plain.tpot_s / 2)
    assert doubled.tokens_per_s < 2 * plain.tokens_per_s
    assert doubled.ttft_s == plain.ttft_s


def test_prompts_of_others_lengthen_the_steps_of_a_batch() -> None:
    without, beside = (serve_concurrency(Steady(per_prompt_token_s=cost), TRAFFIC, 1.0, 8) for cost in (0.0, 1e-4))
    assert beside.tpot_s == pytest.approx(without.tpot_s + 0.01 * 7 / 101, rel=1e-3)
    assert beside.batch <= 8


def test_prompts_of_one_step_share_what_it_takes_beyond_them() -> None:
    """16 requests with answers of three steps: four prompts a step, none of which takes anything but the first."""

    class Uncaptured(Steady):
        def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
            return 0.02 if prefill_tokens else 0.01

    found = serve_concurrency(Uncaptured(), RequestLengths(prompt_tokens=10, output_tokens=4), 1.0, 16)
    assert found.tpot_s == pytest.approx(0.02, rel=0.02)
    assert found.ttft_s == pytest.approx(0.02)


def test_a_request_waits_for_the_front_end_and_beside_others_for_steps() -> None:
    waiting = Waiting(seconds=0.05, steps=2)
    for streams, waited_s in ((1, 0.05), (8, 0.07)):
        now, later = (
            serve_concurrency(Steady(), TRAFFIC, 1.0, streams, waiting=each) for each in (NO_WAITING, waiting)
        )
        assert later.ttft_s == pytest.approx(now.ttft_s + waited_s)
        assert later.tpot_s == pytest.approx(now.tpot_s)
        assert later.tokens_per_s == pytest.approx(streams * 101 / (1.01 + waited_s))


def test_a_rate_holds_as_many_sequences_as_arrive_while_one_stays() -> None:
    found = serve_rate(Steady(), TRAFFIC, 1.0, 5.0, most=100)
    assert found is not None
    assert found.batch == pytest.approx(5.0, rel=0.01)
    assert found.tokens_per_s == pytest.approx(505)


def test_a_faster_server_holds_fewer_sequences_at_the_same_rate() -> None:
    server = Steady(per_sequence_s=1e-3)
    one, two = (serve_rate(server, TRAFFIC, length, 5.0, most=100) for length in (1.0, 2.0))
    assert one is not None
    assert two is not None
    assert two.batch < one.batch / 2


@pytest.mark.parametrize("rate", [60.0, 500.0])
def test_a_rate_that_a_server_cannot_keep_up_with_has_no_service(rate: float) -> None:
    assert serve_rate(Steady(per_sequence_s=1e-3, per_prompt_token_s=1e-4), TRAFFIC, 1.0, rate, most=256) is None


@given(
    base=st.floats(1e-4, 0.1),
    sequence=st.floats(0, 1e-2),
    prompt=st.floats(0, 1e-4),
    concurrency=st.integers(1, 256),
    length=st.floats(1, 8),
)
def test_more_requests_in_flight_never_lower_the_output_by_much(
    base: float, sequence: float, prompt: float, concurrency: int, length: float
) -> None:
    server = Steady(base, sequence, prompt)
    one, more = (serve_concurrency(server, TRAFFIC, length, each) for each in (1, concurrency))
    assert 0 < more.batch <= concurrency + 1e-6
    assert more.tokens_per_s > 0.5 * one.tokens_per_s
