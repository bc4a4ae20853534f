"""A step of the engine: tokens, requests and slots for drafts, and a schedule of draft lengths by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from draftwise.core import InvalidSetup, Ruling
from draftwise.knowledge.gpus import Gpu, get_gpu
from draftwise.knowledge.memory_overheads import get_batch_defaults
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.stages import Context, Step

_SMALL = 8192
"""Scheduled tokens below which vLLM warns of slow prefill."""
SCHEDULE = "num_speculative_tokens_per_batch_size"
Entry = tuple[int, int, int]


def fit_steps(context: Context, resolved: Resolved) -> Step[Resolved]:
    """Return the config without a schedule that the engine drops, and yield what it rejects or lowers in its steps."""
    yield from _find_budget(context, resolved)
    return (yield from _drop_schedule(context, resolved))


def _find_budget(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    k = resolved.num_speculative_tokens
    limits = get_limits(context)
    tokens, seqs = limits.tokens, limits.requests
    if k is None or tokens is None:
        return
    slots = _slots(context, resolved, k)
    if seqs is not None:
        needed = seqs * (k + 1)
        if "enable_lora" in context.on and tokens < needed:
            yield from context.rules.ruling("lora-token-budget", tokens=tokens, seqs=seqs, step=k + 1, needed=needed)
        yield from _find_set_aside(context, slots, tokens, seqs)
        yield from _find_limited(context, resolved, k, tokens, seqs)
    if tokens <= slots:
        yield from context.rules.ruling("token-budget-within-slots", tokens=tokens, slots=slots)


def _find_set_aside(context: Context, slots: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    """Judge the releases that take draft slots for every request off each step's tokens."""
    if not slots or "max_num_scheduled_tokens" in context.on:
        return
    taken = slots * seqs
    left = tokens - taken
    for code, least in (("draft-slots-exhaust-tokens", 1), ("draft-slots-starve-scheduler", 0)):
        if left < least:
            yield from context.rules.ruling(
                code, taken=taken, slots=slots, seqs=seqs, tokens=tokens, enough=taken + _SMALL
            )
    if left > 0:
        yield from context.rules.ruling(
            "draft-slots-shrink-tokens",
            taken=taken,
            slots=slots,
            seqs=seqs,
            left=left,
            tokens=tokens,
            hint=", which leaves little for prefill" if left < _SMALL else "",
            enough=tokens + taken,
        )


def _find_limited(context: Context, resolved: Resolved, k: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    """Judge block drafters whose draft pass must fit the same number of tokens."""
    if resolved.facts.network != "one_pass":
        return
    rows = _lookahead(context, resolved, k)
    if tokens // rows < seqs:
        yield from context.rules.ruling(
            "draft-pass-limits-requests",
            rows=rows,
            tokens=tokens,
            fitting=tokens // rows,
            seqs=seqs,
            needed=rows * seqs,
        )


def _slots(context: Context, resolved: Resolved, k: int) -> int:
    if context.rules.holds("draft-slots-are-lookahead"):
        return _lookahead(context, resolved, k)
    if context.rules.applies("draft-slots-per-drafter", resolved.method):
        return k
    parallel = k - 1 if resolved.parallel_drafting else 0
    return parallel + 1 if resolved.facts.drafts_from == "own_model" else parallel


def _lookahead(context: Context, resolved: Resolved, k: int) -> int:
    """Return the slots of its own KV cache that a draft takes: a block filled in after its anchor takes one more."""
    facts = resolved.facts
    after_anchor = facts.drafts_whole_block and context.draft_config.get("sample_from_anchor", True) is False
    return {"none": 0, "k": k, "k + 1": k + 1}[facts.lookahead] + after_anchor


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of one step of the engine; None if they depend on an unknown device."""

    tokens: int | None
    """`max_num_batched_tokens`."""
    requests: int | None
    """`max_num_seqs`."""


def get_limits(context: Context) -> StepLimits:
    """Return the limits of a step: from flags, else from the defaults of `vllm serve` on the setup's GPU."""
    gpu = find_gpu(context)
    usual = {} if gpu is None else get_batch_defaults(gpu, context.release)
    tokens, requests = (
        context.sizes.get(name) or usual.get(name) for name in ("max_num_batched_tokens", "max_num_seqs")
    )
    if "max_num_seqs" not in context.sizes and tokens and requests and context.rules.holds("requests-bounded-by-batch"):
        requests = min(requests, tokens)
    return StepLimits(tokens, requests)


def find_gpu(context: Context) -> Gpu | None:
    """Return the setup's GPU; None for a CPU, or for a GPU with neither a known name nor memory."""
    device = context.setup.device
    if device is None or context.platform == "cpu":
        return None
    try:
        return get_gpu(device.name)
    except InvalidSetup:
        memory = device.memory_bytes
        return None if memory is None else Gpu(name=device.name, architecture="other", memory_bytes=memory)


def _drop_schedule(context: Context, resolved: Resolved) -> Step[Resolved]:
    """Return the config without a schedule that the engine drops, and yield that, and what it lowers for one."""
    if not read_schedule(context):
        return resolved
    dropped = [*_find_dropped(context, resolved)]
    yield from dropped
    ranks = context.sizes.get("data_parallel_size") or 1
    if ranks > 1:
        yield from context.rules.ruling("schedule-hangs-with-data-parallel", ranks=ranks)
    elif resolved.runner == "V1" and resolved.facts.v1_draft_length == "varies":
        yield from _find_lowered_graphs(context)
    return replace(resolved, fields={**resolved.fields, SCHEDULE: None}) if dropped else resolved


def _find_dropped(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    ranks, k = context.sizes.get("data_parallel_size") or 1, resolved.num_speculative_tokens
    if ranks > 1:
        yield from context.rules.ruling("schedule-off-with-data-parallel", ranks=ranks, k=k)
    if resolved.runner == "V1" and resolved.facts.v1_draft_length != "varies":
        yield from context.rules.ruling("schedule-off-on-v1", method=resolved.method, k=k)


def _find_lowered_graphs(context: Context) -> Iterator[Ruling]:
    if not context.runs_eagerly and not context.lacks_full_graphs and context.platform != "cpu":
        yield from context.rules.ruling("schedule-lowers-graphs")


def read_schedule(context: Context) -> list[Entry]:
    """Return the schedule; empty if absent, or if its types were already judged with the config."""
    given = context.keys.get(SCHEDULE)
    if not isinstance(given, (list, tuple)):
        return []
    entries = [tuple(entry) for entry in given if isinstance(entry, (list, tuple)) and len(entry) == 3]
    whole = [(a, b, c) for a, b, c in entries if all(type(value) is int for value in (a, b, c))]
    return whole if len(whole) == len(given) else []


def find_schedule(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what is wrong with a schedule, or what it does. vLLM checks it after it accepts the config."""
    schedule = read_schedule(context)
    if not schedule or resolved.fields.get(SCHEDULE, schedule) is None:
        return
    fault = _find_fault(schedule)
    if fault:
        yield from context.rules.ruling("schedule-invalid", message=fault)
        return
    yield from _find_surprises(context, resolved, sorted(schedule))
    k = resolved.num_speculative_tokens
    if k is None or all(entry[2] >= k for entry in schedule):
        return
    if resolved.runner == "V1" and resolved.facts.v1_draft_length == "fixed":
        yield from context.rules.ruling("schedule-breaks-drafter", method=resolved.method, k=k)
    if resolved.runner == "V2":
        yield from list(_find_broken_capture(context, resolved, schedule, k)) or _find_full_drafts(context, resolved, k)
        yield from _find_costs(context, resolved, schedule)


def _find_fault(schedule: Sequence[Entry]) -> str:
    """Return what is wrong with the ranges, as a sentence. Empty where nothing is."""
    for first, last, k in schedule:
        entry = f"The entry [{first}, {last}, {k}]"
        if first <= 0 or last <= 0:
            return f"{entry} names batch size {min(first, last)}; they start at 1."
        if first > last:
            return f"In {entry}, the first batch size is larger than the last."
        if k < 0:
            return f"{entry} has a negative draft length."
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
        yield from context.rules.ruling("schedule-clamped", entry=str(above[0]), k=k)
    for before, after in pairwise(schedule):
        if after[0] > before[1] + 1:
            yield from context.rules.ruling("schedule-gap", first=before[1] + 1, last=after[0] - 1, tokens=before[2])

    yield from context.rules.ruling("schedule-counts-prefills")


def _find_broken_capture(context: Context, resolved: Resolved, schedule: Sequence[Entry], k: int) -> Iterator[Ruling]:
    if resolved.facts.network != "chain" or context.lacks_full_graphs or context.runs_eagerly:
        return
    fewer = next(str(list(entry)) for entry in schedule if entry[2] < k)
    yield from context.rules.ruling("schedule-breaks-capture", fewer=fewer, k=k, method=resolved.method)


def _find_full_drafts(context: Context, resolved: Resolved, k: int) -> Iterator[Ruling]:
    if resolved.facts.drafts_from != "text":
        yield from context.rules.ruling("schedule-drafts-in-full", method=resolved.method, k=k)


def _find_costs(context: Context, resolved: Resolved, schedule: Sequence[Entry]) -> Iterator[Ruling]:
    if any(entry[2] == 0 for entry in schedule):
        yield from context.rules.ruling("schedule-off-still-drafts", method=resolved.method)
    if "kv_transfer_config" in context.on:
        yield from context.rules.ruling("schedule-unpads-admissions")
