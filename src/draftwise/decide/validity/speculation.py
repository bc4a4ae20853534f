"""Whether a candidate really speculated, as it was asked to and under every load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add
from typing import Any

from draftwise.core import Arm, Counters, Finding, Interval, Run, SpecConfig, Window
from draftwise.decide.comparison.axis import place_on_axis
from draftwise.decide.comparison.cell import Cell
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, info, warning

__all__ = ["check_arms", "check_speculation"]

_ON_PURPOSE = ("num_speculative_tokens_per_batch_size", "enable_adaptive_verification")
"""Options with which an engine drafts less under load because it was told to."""
_NOTHING = Counters(generation_tokens=0)


def check_speculation(run: Run, cell: Cell, speedup: Interval, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what speaks against speculation having made the difference."""
    plain, candidate = cell.counters(cell.plain), cell.counters(cell.candidate)
    if not candidate.spec.num_drafts:
        yield _without_drafts(run, cell, candidate, speedup, thresholds)
    if plain.spec.num_drafts:
        yield error("plain-speculates", f"the plain server drafted {plain.spec.num_draft_tokens} tokens.")
    most = candidate.tokens_per_step
    # With arrivals that do not wait, a server just below its limit can be any number of times slower.
    closed = cell.condition.concurrency is not None
    if closed and candidate.spec.num_drafts and most and speedup.low > 1 and speedup.value > most * _above(thresholds):
        text = f"{speedup.value:.2f}x is more than its {most:.2f} tokens per step can give."
        yield error("unexplained-speedup", text, "Something else differs between the servers, or the machine is busy.")


def _above(thresholds: Thresholds) -> float:
    return 1 + thresholds.margin


def _without_drafts(run: Run, cell: Cell, candidate: Counters, speedup: Interval, thresholds: Thresholds) -> Finding:
    """Tell a server that never speculates from one that stops under this load."""
    elsewhere = reduce(add, (w.counters for w in run.windows if w.arm == cell.candidate), _NOTHING)
    if elsewhere.spec.num_drafts and candidate.generation_tokens:
        text = f"it drafted nothing at {cell.condition.label}, and {elsewhere.spec.num_drafts} times under other loads."
        kind = error if speedup.low > _above(thresholds) else info
        return kind("not-speculating-under-load", text, "A schedule by batch size can ask for that; see the findings.")
    if not candidate.generation_tokens:
        return error("not-speculating", "there is no proof that it speculated: its /metrics has no counters.")
    resolved = _resolved(run, cell.candidate)
    told = ""
    if resolved is not None:
        told = f" and the server says that its speculative config is {resolved or 'empty'}"
    text = f"there is no proof that it speculated: /metrics counted no draft in {candidate.generation_tokens} tokens"
    return error("not-speculating", f"{text}{told}.")


def _resolved(run: Run, arm: str) -> Mapping[str, Any] | None:
    """Return the speculative config as the server says it took it; None where it does not say."""
    version = run.context.server(arm).version
    if "speculative_config" not in version:
        return None
    return version["speculative_config"] or {}


def check_arms(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield, arm by arm, where the config that ran is not the one that was asked for."""
    for arm in run.plan.arms:
        if arm.spec is not None:
            yield from _as_asked(arm.name, arm.spec, _resolved(run, arm.name))
            yield from _full_drafts(run, arm.name, arm.spec)
            yield from _fading(run, arm, arm.spec, thresholds)
            if arm.has_synthetic_acceptance:
                text = (
                    "the engine draws its acceptance by lot: speed holds for traffic with just that acceptance, and "
                    "outputs are not compared, as they are not the model's."
                )
                yield info("acceptance-drawn", text, where=arm.name)


def _as_asked(name: str, asked: SpecConfig, resolved: Mapping[str, Any] | None) -> Iterator[Finding]:
    if resolved is None:
        return
    if not resolved:
        yield error("config-not-as-asked", f"asked for {asked.label}, it runs without speculation.", where=name)
        return
    took = SpecConfig.keep(resolved)
    k, taken = asked.num_speculative_tokens, took.num_speculative_tokens
    if k is not None and taken is not None and k != taken:
        text = f"asked for k={k}, the server took k={taken}."
        yield error("config-not-as-asked", text, "Write down the k that it takes.", where=name)
    if asked.method and took.method and not _same_method(asked.method, took.method):
        text = f"asked for method {asked.method!r}, the server took {took.method!r}."
        yield error("config-not-as-asked", text, where=name)


def _same_method(asked: str, took: str) -> bool:
    """Return whether one name is the other with a family before it (vLLM folds `deepseek_mtp` into `mtp`)."""
    return asked == took or asked.endswith(f"_{took}") or took.endswith(f"_{asked}")


def _full_drafts(run: Run, name: str, asked: SpecConfig) -> Iterator[Finding]:
    """Methods that look up text draft less than k at times; always the same smaller number is another k."""
    lengths = {
        round(window.counters.spec.num_draft_tokens / window.counters.spec.num_drafts, 2)
        for window in run.windows
        if window.arm == name and window.counters.spec.num_drafts
    }
    k = asked.num_speculative_tokens
    if k is not None and len(lengths) == 1 and (length := lengths.pop()) < k and length == int(length):
        text = f"every draft has {length:.0f} tokens, asked for were {k}."
        yield warning("drafts-shorter", text, "Name it by the k that it drafts.", where=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafting:
    """How much an arm drafted under one load."""

    label: str
    load: float
    per_step: float
    """Draft tokens per decoding step of a sequence."""


def _fading(run: Run, arm: Arm, asked: SpecConfig, thresholds: Thresholds) -> Iterator[Finding]:
    """Drafts per step fall with load: switched off by batch size, or crowded out of the step's token budget."""
    falls = [(low.per_step / first.per_step, first, low) for first, low in _ends(run, arm.name) if first.per_step]
    share, first, low = min(falls, key=lambda each: each[0], default=(1.0, None, None))
    if first is None or low is None or share >= thresholds.drafting_left:
        return
    text = f"it drafts {low.per_step:.2f} tokens per step at {low.label}, {first.per_step:.2f} at {first.label}"
    if given := [name for name in _ON_PURPOSE if name in asked.options]:
        yield info("drafting-falls-with-load", f"{text}: {given[0]} asks for that.", where=arm.name)
    else:
        fix = "The token budget of a step (max_num_batched_tokens) must hold k + 1 tokens for every sequence."
        yield warning("drafting-falls-with-load", f"{text}, and nothing asks for that.", fix, where=arm.name)


def _ends(run: Run, arm: str) -> Iterator[tuple[_Drafting, _Drafting]]:
    """Yield the smallest load and the one with the least drafting, by workload, temperature and kind of load."""
    groups: dict[tuple[str, float, str], list[_Drafting]] = {}
    for condition, workload in product(run.conditions, run.plan.workloads):
        mine = (arm, workload.name, condition.label)
        windows = [window for window in run.windows if (window.arm, window.workload, window.condition) == mine]
        per_step, place = _draft_tokens_per_step(windows), place_on_axis(condition)
        if per_step is not None and place is not None:
            axis, load = place
            row = _Drafting(label=condition.label, load=load, per_step=per_step)
            groups.setdefault((workload.name, condition.temperature, axis), []).append(row)
    for rows in groups.values():
        first, *more = sorted(rows, key=lambda each: each.load)
        if more:
            yield first, min(more, key=lambda each: each.per_step)


def _draft_tokens_per_step(windows: Sequence[Window]) -> float | None:
    total = reduce(add, (window.counters for window in windows), _NOTHING)
    steps = (total.generation_tokens or 0) - total.spec.num_accepted_tokens
    return total.spec.num_draft_tokens / steps if steps > 0 else None
