"""Runs made up reading by reading, of a truth that the test states: no server, no clock, no client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.core import (
    Answer,
    Arm,
    ClosedLoop,
    Condition,
    Counters,
    Prompt,
    Run,
    RunContext,
    RunPlan,
    SpecConfig,
    SpecStats,
    Timing,
    TurnRecord,
    Workload,
)
from draftwise.core.documents import from_json, to_json
from draftwise.runs import RunDirectory
from draftwise.runs.turn_order import Turn, plan_turns

CONTEXT: dict[str, Any] = {
    "hardware": {"cpu": "imaginary", "cores": 2},
    "model": {"name": "fake", "dtype": "bfloat16"},
    "servers": {
        name: {"command": "serve fake", "version": {"version": "fake-1"}}
        for name in ("plain", "ngram k=3", "ngram k=5")
    },
}


def closed(*streams: int, temperature: float = 0.0) -> tuple[Condition, ...]:
    return tuple(Condition(load=ClosedLoop(concurrency=each), temperature=temperature) for each in streams)


def workload(name: str = "code", num_prompts: int = 12, tokens: int = 50) -> Workload:
    prompts = (Prompt(id=f"{name}-{i}", text=f"{name} {i}", max_tokens=tokens) for i in range(num_prompts))
    return Workload(name=name, source="test", prompts=tuple(prompts))


def arm(k: int) -> Arm:
    return Arm(name=f"ngram k={k}").with_spec(SpecConfig(method="ngram", num_speculative_tokens=k))


@dataclass(frozen=True, kw_only=True)
class Truth:
    """How fast an arm answers: seconds per token and to the first token, of a prompt under a condition."""

    step_s: Callable[[str, Condition], float] = lambda prompt_id, condition: 0.010
    ttft_s: Callable[[str, Condition], float] = lambda prompt_id, condition: 0.050
    accepted: Callable[[str], int] = lambda prompt_id: 0
    """Draft tokens that stand at every step."""
    k: int = 0
    noise: float = 0.02
    """Standard deviation of the logarithm of a request's time."""
    fails: frozenset[str] = field(default_factory=frozenset)
    """Prompts that get an error."""


def gains(factor: float, *, accepted: int = 1, k: int = 3) -> Truth:
    """A candidate that is so many times as fast as the default."""
    return Truth(
        step_s=lambda prompt_id, condition: 0.010 * (accepted + 1) / factor,
        ttft_s=lambda prompt_id, condition: 0.050,
        accepted=lambda prompt_id: accepted,
        k=k,
    )


def make_run(
    truths: Mapping[str, Truth],
    *,
    arms: Sequence[Arm] | None = None,
    workloads: Sequence[Workload] | None = None,
    conditions: Sequence[Condition] = closed(1),
    repeats: int = 3,
    seed: int = 0,
    turn_noise: float = 0.0,
    context: Mapping[str, Any] | None = None,
    keep: Callable[[Turn], bool] = lambda turn: True,
    remembering: Mapping[str, str] | None = None,
) -> Run:
    """Return the run that servers of these truths leave behind.

    Args:
        truths: by arm; arms that are not named are plain.
        turn_noise: standard deviation of the logarithm of what all requests of a turn share.
        keep: whether a turn was finished.
        remembering: why candidates could remember answers, None where none could.
    """
    given = arms or [Arm(name="plain"), *(arm(3) for name in truths if name == "ngram k=3")]
    plan = RunPlan(
        arms=tuple(given),
        workloads=tuple(workloads or [workload()]),
        remembering=remembering or {},
        conditions=tuple(conditions),
        repeats=repeats,
    )
    rng = np.random.default_rng(seed)
    answers: list[Answer] = []
    turns: list[TurnRecord] = []
    number = 0
    for repeat in range(1, repeats + 1):
        for turn in plan_turns(plan, plan.conditions, repeat, number=number):
            number = turn.number + 1
            if keep(turn):
                mine = _answer_all(turn, truths.get(turn.arm, Truth()), rng, turn_noise)
                answers += mine
                turns.append(_record(turn, mine, truths.get(turn.arm, Truth())))
    found = from_json(RunContext, context or CONTEXT)
    return Run(plan=plan, context=found, answers=tuple(answers), turns=tuple(turns))


def save_run(path: Path, run: Run) -> Path:
    """Write a run as a run directory, and return that."""
    directory = RunDirectory.claim(path)
    directory.begin(run.plan, run.context)
    for window in run.turns:
        for answer in run.answers:
            if answer.turn == window.turn:
                directory.add_answer(answer)
        directory.finish_turn(window)
    directory.close()
    return path


def with_context(run: Run, **parts: Any) -> Run:
    """Return the run with parts of its context, as JSON has them, replaced."""
    return replace(run, context=from_json(RunContext, {**to_json(run.context), **parts}))


def _answer_all(turn: Turn, truth: Truth, rng: np.random.Generator, turn_noise: float) -> list[Answer]:
    """Answer a turn in as many streams as its load has, each sending when it is free."""
    streams = [0.0] * (turn.condition.concurrency or len(turn.prompts))
    shared = float(np.exp(rng.normal(0, turn_noise)))
    answers = []
    for prompt, copy in zip(turn.prompts, turn.copies or [0] * len(turn.prompts), strict=True):
        stream = streams.index(min(streams))
        slowness = shared * float(np.exp(rng.normal(0, truth.noise)))
        timing = _time(prompt, turn.condition, truth, streams[stream], slowness)
        streams[stream] = timing.finished
        answers.append(
            Answer(
                turn=turn.number,
                arm=turn.arm,
                workload=turn.workload,
                condition=turn.condition.label,
                prompt_id=prompt.id,
                repeat=turn.repeat,
                copy=copy,
                timing=timing,
                token_ids=tuple(range(timing.num_tokens)),
                num_prompt_tokens=100,
                finish_reason="length",
                error="refused" if prompt.id in truth.fails else None,
            )
        )
    return answers


def _time(prompt: Prompt, condition: Condition, truth: Truth, sent: float, slowness: float) -> Timing:
    time = sent + truth.ttft_s(prompt.id, condition) * slowness
    chunks, left = [(time, 1)], prompt.max_tokens - 1
    while left:
        count = min(left, truth.accepted(prompt.id) + 1)
        time += truth.step_s(prompt.id, condition) * slowness
        chunks.append((time, count))
        left -= count
    return Timing(sent=sent, chunks=tuple(chunks), finished=time)


def _record(turn: Turn, answers: Sequence[Answer], truth: Truth) -> TurnRecord:
    steps = sum(len(answer.timing.chunks) - 1 for answer in answers)
    tokens = sum(answer.timing.num_tokens for answer in answers)
    accepted = tokens - steps - len(answers)
    spec = SpecStats(num_drafts=steps, num_draft_tokens=steps * truth.k, num_accepted_tokens=accepted)
    return TurnRecord(
        turn=turn.number,
        arm=turn.arm,
        workload=turn.workload,
        condition=turn.condition.label,
        repeat=turn.repeat,
        block=turn.block,
        counters=Counters(spec=spec if truth.k else SpecStats(), generation_tokens=tokens),
        wall_s=max(answer.timing.finished for answer in answers),
    )
