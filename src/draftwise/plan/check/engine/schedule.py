"""The dynamic schedule `num_speculative_tokens_per_batch_size`: valid, honoured, and what it costs on each runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine.graphs import lacks_full_graphs, runs_eagerly
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.steps import Step

__all__ = ["drop_schedule", "find_schedule_faults"]

KEY = "num_speculative_tokens_per_batch_size"

Entry = tuple[int, int, int]


def drop_schedule(context: Context, resolved: Resolved) -> Step[Resolved]:
    """Return the config without a schedule that the engine drops, and yield that, and what it lowers for one."""
    if not _read(context):
        return resolved
    dropped = [*_find_dropped(context, resolved)]
    yield from dropped
    ranks = context.size("data_parallel_size") or 1
    if ranks > 1:
        yield from context.rules.ruling(
            "schedule-hangs-with-data-parallel",
            f"{ranks} data-parallel ranks can choose different draft lengths and then wait for each other for ever.",
            where=KEY,
            fix="Leave the schedule out, or use 0.26.0 or newer, which drops it by itself.",
        )
    elif resolved.runner == "V1" and resolved.facts.v1_draft_length == "varies":
        yield from _find_lowered_graphs(context)
    return replace(resolved, fields={**resolved.fields, KEY: None}) if dropped else resolved


def _find_dropped(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield why the schedule is dropped, in which case nobody looks at what it says."""
    ranks, k = context.size("data_parallel_size") or 1, resolved.num_speculative_tokens
    if ranks > 1:
        yield from context.rules.ruling(
            "schedule-off-with-data-parallel",
            f"With {ranks} data-parallel ranks the schedule is dropped, and every batch drafts {k} tokens.",
            where=KEY,
            fix="Give num_speculative_tokens the value for your usual batch.",
            becomes="null",
        )
    if resolved.runner == "V1" and resolved.facts.v1_draft_length != "varies":
        yield from context.rules.ruling(
            "schedule-off-on-v1",
            f"Model Runner V1 cannot change the draft length of {resolved.method}: every batch drafts {k} tokens.",
            where=KEY,
            becomes="null",
        )


def _find_lowered_graphs(context: Context) -> Iterator[Ruling]:
    if not runs_eagerly(context) and not lacks_full_graphs(context) and context.platform != "cpu":
        yield from context.rules.ruling(
            "schedule-lowers-graphs",
            "Model Runner V1 lowers the CUDA-graph mode to PIECEWISE for a schedule: decoding loses full graphs.",
            where=KEY,
            fix="Compare with a fixed num_speculative_tokens.",
            becomes="cudagraph_mode PIECEWISE",
        )


def find_schedule_faults(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what is wrong with a schedule: the scheduler looks at it when it is made, after the config was accepted."""
    schedule = _read(context)
    if not schedule or resolved.fields.get(KEY, schedule) is None:
        return
    fault = _find_fault(schedule)
    if fault:
        fix = "Write it as [[1, 16, 4], [17, 64, 2], [65, 256, 0]]: first and last batch size, and the tokens to draft."
        yield from context.rules.ruling("schedule-invalid", fault, where=KEY, fix=fix)
        return
    yield from _find_surprises(context, resolved, sorted(schedule))
    k = resolved.num_speculative_tokens
    varies = k is not None and any(entry[2] < k for entry in schedule)
    if varies and resolved.runner == "V1" and resolved.facts.v1_draft_length == "fixed":
        yield from context.rules.ruling(
            "schedule-breaks-drafter",
            f"{resolved.method} on Model Runner V1 drafts {k} tokens and no other number: the first batch for which "
            "the schedule says otherwise stops the engine.",
            where=KEY,
            fix="Leave the schedule out.",
        )


def _read(context: Context) -> list[Entry]:
    """Return the schedule; empty where there is none, or where its types are already judged with the config."""
    given = context.keys.get(KEY)
    if not isinstance(given, (list, tuple)):
        return []
    entries = [tuple(entry) for entry in given if isinstance(entry, (list, tuple)) and len(entry) == 3]
    whole = [(a, b, c) for a, b, c in entries if all(type(value) is int for value in (a, b, c))]
    return whole if len(whole) == len(given) else []


def _find_fault(schedule: Sequence[Entry]) -> str:
    """Return what is wrong with the ranges, as a sentence; empty where nothing is."""
    for first, last, k in schedule:
        entry = f"The entry [{first}, {last}, {k}]"
        if first <= 0 or last <= 0:
            return f"{entry} names batch size {min(first, last)}; they start at 1."
        if first > last:
            return f"{entry} has a first batch size that is larger than the last."
        if k < 0:
            return f"{entry} has a draft length below 0."
    ordered = sorted(schedule, key=lambda entry: entry[0])
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            return f"The entries {list(before)} and {list(after)} overlap."
    first = ordered[0][0]
    return "" if first == 1 else f"The schedule starts at batch size {first}; the first range must start at 1."


def _find_surprises(context: Context, resolved: Resolved, schedule: Sequence[Entry]) -> Iterator[Ruling]:
    k = resolved.num_speculative_tokens
    above = [list(entry) for entry in schedule if k is not None and entry[2] > k]
    if above:
        yield from context.rules.ruling(
            "schedule-clamped",
            f"The entry {above[0]} asks for more than num_speculative_tokens {k}, the most that is drafted.",
            where=KEY,
            fix="Raise num_speculative_tokens to the schedule's largest value.",
            becomes=f"{k} tokens",
        )
    for before, after in pairwise(schedule):
        if after[0] > before[1] + 1:
            yield from context.rules.ruling(
                "schedule-gap",
                f"The schedule does not name batch sizes {before[1] + 1} to {after[0] - 1}: they draft {before[2]} "
                "tokens, as the range before.",
                where=KEY,
            )
