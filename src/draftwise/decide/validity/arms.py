"""Whether every arm ran the speculative config that was asked for, and drafted as it says under every load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import product
from operator import add
from typing import Any

from draftwise.core import Counters, Finding, Run, SpecConfig
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, info
from draftwise.decide.validity.window.speculation import LoadCounters, check_draft_lengths, check_drafting_under_load

__all__ = ["check_arms", "find_resolved_config", "sum_all_counters"]

_NOTHING = Counters(generation_tokens=0)


def check_arms(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield, arm by arm, where the config that ran is not the one that was asked for."""
    for arm in run.plan.arms:
        if arm.spec is not None:
            yield from _check_config(arm.name, arm.spec, find_resolved_config(run, arm.name))
            mine = (turn.counters for turn in run.turns if turn.arm == arm.name)
            yield from check_draft_lengths(arm.name, arm.spec, mine)
            yield from check_drafting_under_load(arm.name, arm.spec, _group_by_sweep(run, arm.name), thresholds)
            if arm.has_synthetic_acceptance:
                text = (
                    "its acceptance is synthetic: speed holds for traffic with just that acceptance, and outputs are "
                    "not compared, as they are not the model's."
                )
                yield info("acceptance-drawn", text, where=arm.name)


def find_resolved_config(run: Run, arm: str) -> Mapping[str, Any] | None:
    """Return the speculative config as the server says it took it; None where it does not say."""
    version = run.context.server(arm).version
    if "speculative_config" not in version:
        return None
    return version["speculative_config"] or {}


def sum_all_counters(run: Run, arm: str) -> Counters:
    """Return what an arm's counters grew by in the whole run."""
    return reduce(add, (turn.counters for turn in run.turns if turn.arm == arm), _NOTHING)


def _check_config(name: str, asked: SpecConfig, resolved: Mapping[str, Any] | None) -> Iterator[Finding]:
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
    if asked.method and took.method and not _is_same_method(asked.method, took.method):
        text = f"asked for method {asked.method!r}, the server took {took.method!r}."
        yield error("config-not-as-asked", text, where=name)


def _is_same_method(asked: str, took: str) -> bool:
    """Return whether one name is the other with a family before it (vLLM folds `deepseek_mtp` into `mtp`)."""
    return asked == took or asked.endswith(f"_{took}") or took.endswith(f"_{asked}")


def _group_by_sweep(run: Run, arm: str) -> list[list[LoadCounters]]:
    """Return an arm's counters under each load, by workload, temperature and kind of load."""
    groups: dict[tuple[str, float, str], list[LoadCounters]] = {}
    for condition, workload in product(run.conditions, run.plan.workloads):
        if (place := condition.place) is not None:
            axis, load = place
            mine = (arm, workload.name, condition.label)
            turns = [turn for turn in run.turns if (turn.arm, turn.workload, turn.condition) == mine]
            counters = reduce(add, (turn.counters for turn in turns), _NOTHING)
            row = LoadCounters(label=condition.label, load=load, counters=counters)
            groups.setdefault((workload.name, condition.temperature, axis), []).append(row)
    return list(groups.values())
