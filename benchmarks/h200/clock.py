"""The clock that both engines are timed with: the frontend's, step by step.

A row is taken from the steady part of a run only: from the step at which every request has its first token to the step
before any request ends, so the batch is full throughout. Both engines are driven by this file's code.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from cases import Case, prompts
from shapes import Scale

__all__ = ["Frontend", "News", "Step", "Timed", "first_tokens_s", "median_row", "run", "steady_row"]

News = tuple[str, int, bool]
"""Request, how many tokens it got, and whether it has ended."""

_SETTLING_STEPS = 3
"""Left out after the last request's first token: the steps that still carry its prompt."""


class Frontend(Protocol):
    """An engine as its caller sees it."""

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None: ...

    def step(self) -> list[News]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What was known when a step's tokens arrived; steps that bring none are not recorded."""

    at_s: float
    tokens: int
    started: int
    """Requests that have a token."""
    ended: int


def run(
    engine: Frontend, prompts: Sequence[list[int]], max_tokens: int, *, now: Callable[[], float] = time.perf_counter
) -> tuple[float, list[Step]]:
    """Answer all prompts together; return when they were sent and the steps until the last has ended."""
    start, steps = now(), list[Step]()
    for i, prompt in enumerate(prompts):
        engine.add(f"{start}-{i}", prompt, max_tokens)
    started, ended = set[str](), 0
    while ended < len(prompts):
        news = engine.step()
        at, tokens = now(), sum(count for _, count, _ in news)
        started |= {request for request, count, _ in news if count}
        ended += sum(done for _, _, done in news)
        if tokens:
            steps.append(Step(at, tokens, len(started), ended))
    return start, steps


def steady_row(start_s: float, steps: Sequence[Step], batch: int) -> dict[str, float]:
    """Return the row of one run: milliseconds a step, tokens/s and tokens a request gets in a step.

    Raises:
        ValueError: some request ended before there were two steps with all of them running.
    """
    full = next(i for i, step in enumerate(steps) if step.started == batch)
    end = next((i for i, step in enumerate(steps) if step.ended), len(steps)) - 1
    first = min(full + _SETTLING_STEPS, end - 1)
    if first < full:  # the first to end did so before, or as, the last one began
        raise ValueError(f"no steady part: all {batch} requests run together for less than two steps")
    window = steps[first : end + 1]
    seconds, count = window[-1].at_s - window[0].at_s, len(window) - 1
    tokens = sum(step.tokens for step in window[1:])
    gaps_ms = sorted(1e3 * (b.at_s - a.at_s) for a, b in pairwise(window))
    return {
        "steps": count,
        "tokens": tokens,
        "ms_step": 1e3 * seconds / count,
        "p50_ms": gaps_ms[count // 2],
        "p99_ms": gaps_ms[min(count - 1, int(count * 0.99))],
        "tokens_per_s": tokens / seconds,
        "acceptance_length": tokens / count / batch,
        "first_ms": 1e3 * (steps[0].at_s - start_s),
        "all_first_ms": 1e3 * (steps[full].at_s - start_s),
        "whole_tokens_per_s": sum(step.tokens for step in steps) / (steps[-1].at_s - start_s),
    }


def median_row(runs: Sequence[dict[str, float]], batch: int) -> dict[str, float | list[float]]:
    """Return one row for several runs: medians, acceptance over all of them, and each run's milliseconds a step."""
    row: dict[str, float | list[float]] = {key: statistics.median(each[key] for each in runs) for key in runs[0]}
    steps = sum(each["steps"] for each in runs)
    row["acceptance_length"] = sum(each["tokens"] for each in runs) / steps / batch
    row["ms_step_runs"] = [round(each["ms_step"], 4) for each in runs]
    return {key: value if isinstance(value, list) else round(value, 4) for key, value in row.items()}


def first_tokens_s(start_s: float, steps: Sequence[Step], batch: int) -> float:
    """Return the seconds until every request had its first token."""
    return next(step.at_s for step in steps if step.started == batch) - start_s


class Timed:
    """The commands that time the open engine, the same for every engine."""

    case: Case
    frontend: Frontend | None = None

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self._rng = random.Random(7)

    def row(self, *, batch: int, output_tokens: int, warm_tokens: int, repeats: int) -> dict[str, Any]:
        """Return the row of a batch size."""
        began = time.perf_counter()
        self._run(batch, warm_tokens)  # the first of a batch size captures its graphs
        warm_s = time.perf_counter() - began
        runs = [self._run(batch, output_tokens) for _ in range(repeats)]
        row = median_row([steady_row(start, steps, batch) for start, steps in runs], batch)
        return row | {"warm_s": round(warm_s, 2)}

    def first(self, *, batch: int, output_tokens: int, repeats: int) -> dict[str, Any]:
        """Return the times until all of a batch had their first token."""
        self._run(batch, output_tokens)
        runs = [self._run(batch, output_tokens) for _ in range(repeats)]
        return {"first_ms": [round(1e3 * first_tokens_s(*each, batch), 3) for each in runs]}

    def new_prompts(self, batch: int) -> list[list[int]]:
        """Return fresh prompts for the open case."""
        return prompts(self.case, self.scale, batch, self._rng)

    def _run(self, batch: int, output_tokens: int) -> tuple[float, list[Step]]:
        assert self.frontend is not None, "open comes first"
        return run(self.frontend, self.new_prompts(batch), output_tokens)
