"""The parts in which a workload is answered under a load: what all arms answer one right after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import Condition, OpenLoop, Prompt, Replay, Workload

__all__ = ["Block", "blocks", "count_requests", "split_once"]

_BLOCK_PER_STREAM = 4
"""Requests per stream of a turn: enough for each stream to meet the others at all stages of their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a workload that each arm answers in one turn."""

    number: int
    prompts: tuple[Prompt, ...]
    copies: tuple[int, ...]
    """Beside each prompt: how often it came before in this block."""


def blocks(workload: Workload, condition: Condition, turn_s: float) -> list[Block]:
    """Return the parts of a workload under a condition.

    One prompt each for a single stream; else as many as keep the load up for a while, and a workload that is too
    short for that is gone through several times.
    """
    size = count_requests(workload, condition, turn_s)
    rounds = math.ceil(size / len(workload.prompts))
    requests = [(prompt, copy) for copy in range(rounds) for prompt in workload.prompts]
    wanted = max(len(workload.prompts), size)
    return [
        Block(number=number, prompts=tuple(prompt for prompt, _ in part), copies=tuple(copy for _, copy in part))
        for number, part in enumerate(_parts(requests[:wanted], size))
    ]


def _parts(requests: list[tuple[Prompt, int]], size: int) -> Iterator[Sequence[tuple[Prompt, int]]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def count_requests(workload: Workload, condition: Condition, turn_s: float) -> int:
    """Return the requests of a whole block; a recording is replayed as a whole."""
    if condition.concurrency is not None:
        return 1 if condition.concurrency == 1 else _BLOCK_PER_STREAM * condition.concurrency
    if isinstance(condition.load, OpenLoop):
        return _arrivals_within(condition.load, turn_s)
    return len(workload.prompts)


def _arrivals_within(load: OpenLoop, turn_s: float) -> int:
    """Return the expected arrivals of a turn: of all phases, the endless one taking `turn_s`."""
    expected = sum(
        (phase.start_per_s + phase.end_per_s) / 2 * (turn_s if phase.duration_s is None else phase.duration_s)
        for phase in load.phases
    )
    return max(1, round(expected))


def split_once(block: Block, condition: Condition) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return the prompts of a block to measure, and those that only keep the load up, where none is to be asked twice.

    A quarter of the block keeps the load up after the measured ones; in a closed loop a quarter, one for each stream,
    also comes before them (the first of those returned). A single stream and a recording need none.
    """
    prompts = block.prompts
    if condition.concurrency == 1 or isinstance(condition.load, Replay):
        return prompts, ()
    quarter = len(prompts) // 4
    begin, end = (0 if condition.concurrency is None else quarter), len(prompts) - quarter
    return prompts[begin:end], prompts[:begin] + prompts[end:]
