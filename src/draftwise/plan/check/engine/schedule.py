"""The dynamic schedule `num_speculative_tokens_per_batch_size`: valid, honoured, and what it costs on each runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import get_size, rule_if
from draftwise.plan.check.later.graphs import read_compilation, runs_eagerly
from draftwise.plan.check.report import Resolved

__all__ = ["find_schedule_changes", "find_schedule_faults"]

KEY = "num_speculative_tokens_per_batch_size"

_V1_HONOURS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Methods whose V1 proposers can change their draft length."""
_V1_ASSERTS = ("medusa", "suffix", "ngram_gpu", "extract_hidden_states")
"""Methods whose V1 proposers insist on the one draft length they were made with."""
_WITHOUT_FULL_GRAPHS = ("NONE", "PIECEWISE")

Entry = tuple[int, int, int]


def find_schedule_changes(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the engine config makes of a schedule: it drops it, or lowers the CUDA-graph mode for it."""
    if not _read(context):
        return
    ranks = get_size(context, "data_parallel_size") or 1
    yield from _find_dropped(context, resolved)
    yield from rule_if(
        context, "schedule-hangs-with-data-parallel", ranks > 1,
        f"{ranks} data-parallel ranks can choose different draft lengths and then wait for each other for ever.",
        where=KEY, fix="Leave the schedule out, or use 0.26.0 or newer, which drops it by itself.",
    )  # fmt: skip
    if resolved.runner != "V1":
        return
    if not runs_eagerly(context) and _mode(context) not in _WITHOUT_FULL_GRAPHS and context.platform != "cpu":
        yield from rule_if(
            context, "schedule-lowers-graphs", ranks == 1 and resolved.method in _V1_HONOURS,
            "Model Runner V1 lowers the CUDA-graph mode to PIECEWISE for a schedule: decoding loses full graphs.",
            where=KEY, fix="Compare with a fixed num_speculative_tokens.", becomes="cudagraph_mode PIECEWISE",
        )  # fmt: skip


def _find_dropped(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield why the schedule is dropped, in which case nobody looks at what it says."""
    ranks, k = get_size(context, "data_parallel_size") or 1, resolved.num_speculative_tokens
    yield from rule_if(
        context, "schedule-off-with-data-parallel", ranks > 1,
        f"with {ranks} data-parallel ranks the schedule is dropped, and every batch drafts {k} tokens.",
        where=KEY, fix="Give num_speculative_tokens the value for your usual batch.", becomes="null",
    )  # fmt: skip
    yield from rule_if(
        context, "schedule-off-on-v1", resolved.runner == "V1" and resolved.method not in _V1_HONOURS,
        f"Model Runner V1 cannot change the draft length of {resolved.method}: every batch drafts {k} tokens.",
        where=KEY, becomes="null",
    )  # fmt: skip


def find_schedule_faults(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what is wrong with a schedule: the scheduler looks at it when it is made, after the config was accepted."""
    schedule = _read(context)
    if not schedule or any(_find_dropped(context, resolved)):
        return
    fault = _find_fault(schedule)
    if fault:
        fix = "Write it as [[1, 16, 4], [17, 64, 2], [65, 256, 0]]: first and last batch size, and the tokens to draft."
        yield from rule_if(context, "schedule-invalid", True, fault, where=KEY, fix=fix)
        return
    yield from _find_surprises(context, resolved, sorted(schedule))
    yield from rule_if(
        context, "schedule-breaks-drafter",
        resolved.runner == "V1" and resolved.method in _V1_ASSERTS and _varies(schedule, resolved),
        f"{resolved.method} on Model Runner V1 drafts {resolved.num_speculative_tokens} tokens and no other number: "
        "the first batch for which the schedule says otherwise stops the engine.",
        where=KEY, fix="Leave the schedule out.",
    )  # fmt: skip


def _read(context: Context) -> list[Entry]:
    """Return the schedule; empty where there is none, or where its types are already judged with the config."""
    given = context.keys.get(KEY)
    if not isinstance(given, (list, tuple)):
        return []
    entries = [tuple(entry) for entry in given if isinstance(entry, (list, tuple)) and len(entry) == 3]
    whole = [(a, b, c) for a, b, c in entries if all(type(value) is int for value in (a, b, c))]
    return whole if len(whole) == len(given) else []


def _find_fault(schedule: Sequence[Entry]) -> str:
    for first, last, k in schedule:
        if first <= 0 or last <= 0:
            return f"[{first}, {last}, {k}]: batch sizes start at 1."
        if first > last:
            return f"[{first}, {last}, {k}]: the first batch size is larger than the last."
        if k < 0:
            return f"[{first}, {last}, {k}]: a draft length below 0."
    ordered = sorted(schedule, key=lambda entry: entry[0])
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            return f"{list(before)} and {list(after)} overlap."
    return "" if ordered[0][0] == 1 else f"it starts at batch size {ordered[0][0]}; the first range must start at 1."


def _find_surprises(context: Context, resolved: Resolved, schedule: Sequence[Entry]) -> Iterator[Ruling]:
    k = resolved.num_speculative_tokens
    above = [list(entry) for entry in schedule if k is not None and entry[2] > k]
    yield from rule_if(
        context, "schedule-clamped", above,
        f"{above[0] if above else ''} asks for more than num_speculative_tokens {k}, the most that is drafted.",
        where=KEY, fix="Raise num_speculative_tokens to the schedule's largest value.", becomes=f"{k} tokens",
    )  # fmt: skip
    gaps = [(before, after) for before, after in pairwise(schedule) if after[0] > before[1] + 1]
    for before, after in gaps:
        yield from rule_if(
            context, "schedule-gap", True,
            f"batch sizes {before[1] + 1} to {after[0] - 1} are not named and draft {before[2]}, as the range before.",
            where=KEY,
        )  # fmt: skip


def _varies(schedule: Sequence[Entry], resolved: Resolved) -> bool:
    k = resolved.num_speculative_tokens
    return k is not None and any(entry[2] < k for entry in schedule)


def _mode(context: Context) -> str:
    return str(read_compilation(context).get("cudagraph_mode") or "").upper()
