"""Steps are found again in the streams that they made."""

from __future__ import annotations

import pytest

from draftwise.core import (
    Answer,
    Arm,
    ClosedLoop,
    Condition,
    Counters,
    Run,
    RunContext,
    RunPlan,
    SpecStats,
    Timing,
    TurnRecord,
)
from draftwise.measure.calibrating import find_firsts, find_points

STEP_S, PREFILL_S = 0.010, 0.005


def serve(streams: int, answers_each: int, *, per_step: int = 1, length: int = 40) -> list[Answer]:
    """Answer requests in steps of 10 ms, of 15 ms where a prompt is computed; streams begin at different steps."""
    clock, answers = 0.0, list[Answer]()
    waiting = [3 * stream for stream in range(streams)]
    left, chunks, sent = [0] * streams, [list[tuple[float, int]]() for _ in range(streams)], [0.0] * streams
    done = [0] * streams
    while min(done) < answers_each:
        starting = [s for s in range(streams) if not left[s] and waiting[s] <= 0 and done[s] < answers_each]
        clock += STEP_S + PREFILL_S * len(starting)
        for stream in range(streams):
            waiting[stream] -= 1
            if stream in starting:
                left[stream], chunks[stream], sent[stream] = length - 1, [(clock, 1)], clock - STEP_S
            elif left[stream]:
                tokens = min(per_step, left[stream])
                left[stream] -= tokens
                chunks[stream].append((clock, tokens))
                if not left[stream]:
                    answers.append(make_answer(sent[stream], chunks[stream], clock))
                    done[stream] += 1
    return answers


def make_answer(sent: float, chunks: list[tuple[float, int]], finished: float) -> Answer:
    timing = Timing(sent=sent, chunks=tuple(chunks), finished=finished)
    return Answer(
        turn=0, arm="plain", workload="code", prompt_id="p", repeat=1, timing=timing, num_prompt_tokens=100
    )  # fmt: skip


def run_of(answers: list[Answer], counters: Counters | None = None) -> Run:
    condition = Condition(load=ClosedLoop(concurrency=1))
    turn = TurnRecord(turn=0, arm="plain", workload="code", repeat=1, counters=counters or Counters(), wall_s=1.0)
    plan = RunPlan(arms=(Arm(name="plain"), Arm(name="other")), workloads=(), remembering={}, conditions=(condition,))
    return Run(plan=plan, context=RunContext(), answers=tuple(answers), turns=(turn,))


def test_one_stream_shows_its_steps_and_its_context() -> None:
    (found,) = find_points(run_of(serve(1, 3)), {})
    assert found.step_ms == pytest.approx(1e3 * STEP_S)
    assert found.batch == 1
    assert 100 < found.context < 140
    assert found.prefill_tokens == 0


def test_first_tokens_are_timed_from_the_request() -> None:
    (found,) = find_firsts(run_of(serve(1, 3)), {})
    assert (found.setting, found.in_flight, found.requests) == ("plain", 1, 3)
    assert found.first_ms == pytest.approx(1e3 * STEP_S)
    assert (found.prompt_tokens, found.output_tokens) == (100, 40)


@pytest.mark.parametrize("streams", [4, 8])
def test_steps_with_prompts_are_told_from_those_without(streams: int) -> None:
    pure, mixed = find_points(run_of(serve(streams, 6, length=80)), {})
    assert pure.step_ms == pytest.approx(1e3 * STEP_S)
    assert mixed.step_ms - pure.step_ms == pytest.approx(1e3 * PREFILL_S * mixed.prefill_tokens / 100, rel=0.05)
    assert 25 < mixed.prefill_tokens < 100  # a prompt has a step, and the steps beside it
    assert pure.batch <= streams
    assert pure.batch == pytest.approx(streams, rel=0.25)


def test_several_tokens_a_chunk_are_tokens_of_one_step() -> None:
    (found,) = find_points(run_of(serve(1, 6, per_step=3)), {"plain": 4})
    assert found.tokens_per_step == pytest.approx(3)
    assert found.drafted == 4


def test_counters_say_how_much_is_drafted_but_never_more_than_k() -> None:
    stats = SpecStats(num_drafts=50, num_draft_tokens=150, num_accepted_tokens=40, accepted_per_pos=(30, 10))
    for k, expected in ((5, 1.5), (1, 1.0)):
        counters = Counters(spec=stats, generation_tokens=143)  # three first tokens come with their prompts
        (found,) = find_points(run_of(serve(1, 3), counters), {"plain": k})
        assert found.drafted == pytest.approx(expected)


def test_a_handful_of_steps_is_no_point() -> None:
    assert find_points(run_of(serve(1, 1, length=10)), {}) == ()
