"""Checks that the servers are the intended ones: used by this run only, and equal except for speculation."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from draftwise.core import Arm, Counters, Finding, Run, ServerRecord, SpecConfig, TurnRecord
from draftwise.core.finding import join_names
from draftwise.core.grouping import group_by
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.messages import fault, note, warning

ON_PURPOSE = ("num_speculative_tokens_per_batch_size", "enable_adaptive_verification")
"""Options that tell an engine to draft less under load."""
_AFTERWARDS = 16
"""Tokens that a server may still generate for a canceled request."""
_SAME = ("engine", "version", "dtype", "device")
"""Entries of /version that no speculative config changes."""
_FOLLOWS = {
    "async_scheduling": "asynchronous scheduling",
    "runner": "model runner",
    "attention_backend": "attention backend",
}
"""Settings that an engine may choose differently because it speculates."""
_OWN = (
    "--speculative-config",
    "--spec-",
    "--per-request-spec-decode-metrics",
    "--port",
    "--host",
    "--served-model-name",
    "--name",
    "--publish",
    "--gpus",
)
"""Arguments that may differ between arms, by the beginnings of their names. The last three are those of containers."""
_LESS_CACHE = 0.9
_FEWEST_LEFT = 0.5
"""Share of the tokens received, in numbers that are estimated, by which counters of the same server grow at least."""


def check_servers(run: Run, thresholds: Thresholds) -> list[Finding]:
    """Return findings on servers with other traffic, and on differences between arms or from the request."""
    return [
        *(() if run.plan.one_at_a_time else find_same_servers(run.plan.arms)),
        *_foreign_tokens(run, thresholds),
        *find_differences([arm.name for arm in run.plan.arms], run.context.servers),
        *(each for arm in run.plan.arms for each in _check_arm(run, arm, thresholds)),
    ]


def find_same_servers(arms: Sequence[Arm]) -> Iterator[Finding]:
    """Yield arms that share an address and have no header by which a gateway could distinguish them.

    The values of such headers are checked before a run, because they are not stored.
    """
    told = (arm for arm in arms if arm.address is not None and not arm.routing_headers)
    for alike in group_by(lambda arm: arm.address, told).values():
        if len(alike) > 1:
            shared = join_names((arm.name for arm in alike), most=4)
            yield fault("same-server", case="alike", shared=shared)


def _foreign_tokens(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Counters that grew by much more, or less, than this run received, where that is known: exact, no failures. Where
    it is not, by less than half."""
    for arm in run.plan.arms:
        answers = [answer for answer in run.answers if answer.arm == arm.name]
        if any(each.error is not None and each.measured for each in answers):
            continue
        is_exact = all(each.counts_exact for each in answers)
        least = 1 - thresholds.foreign_tokens if is_exact else _FEWEST_LEFT
        received = sum(answer.timing.num_tokens for answer in answers)
        withdrawn = sum(not answer.measured and answer.finish_reason is None for answer in answers)
        counts = [turn.counters.generation_tokens for turn in run.turns if turn.arm == arm.name]
        generated = sum(count or 0 for count in counts)
        if None not in counts and generated < received * least:
            yield fault("counters-of-another-server", name=arm.name, received=received, generated=generated)
        if is_exact and generated > received * (1 + thresholds.foreign_tokens) + withdrawn * _AFTERWARDS:
            yield fault("other-traffic", name=arm.name, generated=generated, received=received)


def find_differences(arms: Sequence[str], servers: Mapping[str, ServerRecord]) -> Iterator[Finding]:
    """Yield differences between the baseline's server (the first arm) and each candidate's."""
    baseline, *candidates = arms
    for name in candidates:
        if baseline in servers and name in servers:
            yield from _identity(name, servers[baseline], servers[name])
            yield from _commands(name, servers[baseline].command, servers[name].command)
            yield from _consequences(name, servers[baseline], servers[name])


def _identity(name: str, baseline: ServerRecord, candidate: ServerRecord) -> Iterator[Finding]:
    ours, theirs = baseline.version, candidate.version
    for key in _SAME:
        if key in ours and key in theirs and ours[key] != theirs[key]:
            yield fault("arms-differ", case="setting", key=key, theirs=theirs[key], ours=ours[key], name=name)
    if baseline.hardware and candidate.hardware and baseline.hardware != candidate.hardware:
        yield fault("arms-differ", case="machine", machine=candidate.hardware, other=baseline.hardware, name=name)
    if baseline.model and candidate.model and baseline.model != candidate.model:
        yield fault("arms-differ", case="model", model=candidate.model, other=baseline.model, name=name)
    lengths = (baseline.max_model_len, candidate.max_model_len)
    if None not in lengths and lengths[0] != lengths[1]:
        text = f"its max_model_len is {lengths[1]}, but the baseline's is {lengths[0]}."
        yield Finding.warning("arms-differ", text, where=name, fix="Give both the same --max-model-len.")


def _commands(name: str, baseline: str | None, candidate: str | None) -> Iterator[Finding]:
    if baseline is None or candidate is None:
        return
    ours, theirs = _arguments(baseline), _arguments(candidate)
    other = [
        f"{key} ({_shown(theirs, key)}, baseline {_shown(ours, key)})"
        for key in dict.fromkeys((*ours, *theirs))
        if ours.get(key) != theirs.get(key) and not key.startswith(_OWN)
    ]
    if other:
        yield warning("commands-differ", names=join_names(other, most=4), name=name)


def _arguments(command: str) -> dict[str, str]:
    """Return the options of a command with their values ("" for flags); words before the first option are left out."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    options: dict[str, str] = {}
    for word, following in pairwise([*words, "--"]):
        if word.startswith("--"):
            key, separator, value = word.partition("=")
            options[key.replace("_", "-")] = value if separator else "" if following.startswith("--") else following
    return options


def _shown(options: Mapping[str, str], key: str) -> str:
    return (options[key] or "set") if key in options else "not given"


def _consequences(name: str, baseline: ServerRecord, candidate: ServerRecord) -> Iterator[Finding]:
    """What an engine did differently because it speculates: part of the method's price, and often its reason."""
    ours, theirs = baseline.version, candidate.version
    for key, words in _FOLLOWS.items():
        if key in ours and key in theirs and ours[key] != theirs[key]:
            yield note("engine-chose-otherwise", words=words, theirs=theirs[key], ours=ours[key], name=name)
    usual, left = (each.started.get("kv_cache_tokens") for each in (baseline, candidate))
    if isinstance(usual, int | float) and isinstance(left, int | float) and left < usual * _LESS_CACHE:
        yield note("less-kv-cache", left=left, usual=usual, name=name)


def _check_arm(run: Run, arm: Arm, thresholds: Thresholds) -> Iterator[Finding]:
    """Whether an arm ran the speculative config that was asked for, alone, and drafted as it says under every load."""
    mine = [turn for turn in run.turns if turn.arm == arm.name]
    if arm.spec is not None:
        yield from _check_config(arm.name, arm.spec, run.context.server(arm.name).speculative_config)
    yield from _foreign_requests(arm.name, mine, thresholds)
    if arm.spec is not None:
        yield from _draft_lengths(arm.name, arm.spec, mine)
        yield from _drafting_under_load(run, arm.name, arm.spec, thresholds)
    if arm.name in run.plan.synthetic:
        yield note("acceptance-drawn", name=arm.name)


def _check_config(name: str, asked: SpecConfig, resolved: Mapping[str, Any] | None) -> Iterator[Finding]:
    if resolved is None:
        return
    if not resolved:
        yield fault("config-not-as-asked", label=asked.label, name=name)
        return
    took = SpecConfig.keep(resolved)
    k, taken = asked.num_speculative_tokens, took.num_speculative_tokens
    if k is not None and taken is not None and k != taken:
        yield fault("config-not-as-asked", case="k", k=k, taken=taken, name=name)
    if asked.method and took.method and not _is_same_method(asked.method, took.method):
        yield fault("config-not-as-asked", case="method", method=asked.method, taken=took.method, name=name)


def _is_same_method(asked: str, took: str) -> bool:
    """Return whether one name is the other with a family before it (vLLM folds `deepseek_mtp` into `mtp`)."""
    return asked == took or asked.endswith(f"_{took}") or took.endswith(f"_{asked}")


def _foreign_requests(arm: str, turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a server that was busy before turns, when nothing of the run was on it."""
    loads = [(turn.before.running or 0.0, turn.before.waiting or 0.0) for turn in turns]
    busy = [load for load in loads if sum(load) > 0]
    if loads and len(busy) > thresholds.busy_turns * len(loads):
        running, waiting = (max(values) for values in zip(*busy, strict=True))
        text = (
            f"before {len(busy)} of {len(loads)} turns, {arm} already had requests (up to {running:.0f} running, "
            f"{waiting:.0f} waiting)"
        )
        yield Finding.warning("other-requests", f"{text}.", fix="Measure on servers that receive no other traffic.")


def _draft_lengths(arm: str, asked: SpecConfig, turns: Iterable[TurnRecord]) -> Iterator[Finding]:
    """Yield drafts that are always the same smaller number: that is another k than was asked for.

    Methods that look up text draft less than k at times.
    """
    stats = (turn.counters.spec for turn in turns)
    lengths = {round(each.num_draft_tokens / each.num_drafts, 2) for each in stats if each.num_drafts}
    k = asked.num_speculative_tokens
    if k is not None and len(lengths) == 1 and (length := lengths.pop()) < k and length == int(length):
        yield warning("drafts-shorter", length=length, k=k, arm=arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafting:
    """How much a server drafted under one load."""

    label: str
    load: float
    per_step: float
    """Draft tokens per decoding step and sequence."""


def _drafting_under_load(run: Run, arm: str, asked: SpecConfig, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a server that drafts less per step under load: switched off by batch size, or out of token budget."""
    falls = []
    for sweep in _trace_drafting(run, arm):
        first, *heavier = sorted(sweep, key=lambda each: each.load)
        low = min(heavier, key=lambda each: each.per_step, default=first)
        falls += [(low.per_step / first.per_step, first, low)] if first.per_step else []
    if not falls:
        return
    share, first, low = min(falls, key=lambda each: each[0])
    if share >= thresholds.drafting_left:
        return
    text = f"it drafts {low.per_step:.2f} tokens per step at {low.label}, but {first.per_step:.2f} at {first.label}"
    if given := [name for name in ON_PURPOSE if name in asked.options]:
        yield Finding.info("drafting-falls-with-load", f"{text}. {given[0]} asks for that.", where=arm)
    else:
        fix = "Raise max_num_batched_tokens until a step holds k + 1 tokens for every sequence."
        yield Finding.warning("drafting-falls-with-load", f"{text}, and no setting asks for that.", where=arm, fix=fix)


def _trace_drafting(run: Run, arm: str) -> Iterable[Sequence[_Drafting]]:
    """Return how much an arm drafted under each load, by workload, temperature and kind of load."""
    sweeps: dict[tuple[str, float, str], list[_Drafting]] = {}
    for condition, workload in product(run.conditions, run.plan.workloads):
        if (place := condition.place) is not None:
            axis, load = place
            mine = (arm, workload.name, condition.label)
            turns = [turn for turn in run.turns if (turn.arm, turn.workload, turn.condition) == mine]
            counters = Counters.total(turn.counters for turn in turns)
            steps = (counters.generation_tokens or 0) - counters.spec.num_accepted_tokens
            if steps > 0:
                row = _Drafting(label=condition.label, load=load, per_step=counters.spec.num_draft_tokens / steps)
                sweeps.setdefault((workload.name, condition.temperature, axis), []).append(row)
    return sweeps.values()
