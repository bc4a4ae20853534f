"""The steps that a state of a service asks for, the most urgent first; whether they may be carried out is not asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from draftwise.core.action import Action, Step
from draftwise.guarding.evidence import Evidence, pool
from draftwise.guarding.reading import MIN_WINDOWS, ProbeReading, Reading, Rules
from draftwise.guarding.state import Latch, State

__all__ = ["TRICKLE_S", "find_actions", "is_low"]

TRICKLE_S = 900.0
"""How long a replica is tried with a twentieth of the traffic."""
_COVERED = 0.9
"""Share of a stretch of time that windows have to cover."""


def find_actions(state: State, reading: Reading, rules: Rules) -> Iterator[Action]:
    """Yield what could be done, the most urgent first."""
    yield from _find_ends_of_trickle(state, reading, rules)
    yield from _find_ways_out(state, reading, rules)
    yield from _find_releases(state, reading, rules)
    yield from _find_way_back(state, reading, rules)
    for each in reading.requests:
        replicas = tuple(name for name in each.replicas if name not in state.latches)
        if replicas or not each.replicas:
            yield _action(each.step, replicas, each.cause, each.reason, rules)


def _find_ways_out(state: State, reading: Reading, rules: Rules) -> Iterator[Action]:
    """Yield the step that takes replicas below break-even out of the traffic, all of them at once."""
    low = [name for name in state.low_since_s if _is_fresh(state, name, reading.at_s, rules)]
    if not low or _waits_for_others(state, low, reading, rules):
        return
    pooled = {name: evidence for name in low if (evidence := pool(state.recent[name])) is not None}
    low.sort(key=lambda name: pooled[name].tokens_per_step)
    step = Step.DRAIN if all(pooled[name].accepts_nothing for name in low) else Step.SHIFT
    worst = pooled[low[0]]
    yield replace(
        _action(
            step, tuple(low), "fell-below-break-even",
            f"{_count(len(low))} fewer tokens per step than the break-even of {rules.break_even:.2f} for "
            f"{worst.span_s:.0f} s, {worst.tokens_per_step:.2f} at the least.", rules,
        ),
        evidence=_numbers(worst, rules),
    )  # fmt: skip


def _waits_for_others(state: State, low: list[str], reading: Reading, rules: Rules) -> bool:
    """Return whether another replica begins to look low too: one step then does for both, a little later."""
    if reading.at_s - min(state.low_since_s[name] for name in low) >= rules.hold_s:
        return False
    others = (each for name, each in state.recent.items() if name not in low and name not in state.latches)
    unsure = (pool(each[-MIN_WINDOWS:]) for each in others)
    return any(each is not None and each.tokens_per_step < rules.break_even for each in unsure)


def _is_fresh(state: State, name: str, now_s: float, rules: Rules) -> bool:
    samples = state.recent.get(name, ())
    return bool(samples) and samples[-1].end_s >= now_s - rules.stale_s and name not in state.hands_off


def _find_ends_of_trickle(state: State, reading: Reading, rules: Rules) -> Iterator[Action]:
    """Yield the end of every trickle that has shown something, for better or for worse, of servers that answer."""
    for name, latch in state.latches.items():
        if reading.spec.get(name) is None:
            continue
        evidence = pool(state.recent.get(name, ()))
        if latch.step is not Step.TRICKLE or evidence is None or not _is_fresh(state, name, reading.at_s, rules):
            continue
        seen = f"{name} emits {evidence.tokens_per_step:.2f} tokens per step of a trickle of traffic"
        if is_low(evidence, rules):
            action = _action(Step.SHIFT, (name,), "still-below-break-even", f"{seen}: it stays out of it.", rules)
        elif evidence.span_s >= _COVERED * TRICKLE_S and _pays(evidence, rules):
            action = _action(Step.RELEASE, (name,), "pays-again", f"{seen}: it pays again.", rules)
        else:
            continue
        yield replace(action, evidence=_numbers(evidence, rules))


def _pays(evidence: Evidence, rules: Rules) -> bool:
    return evidence.tokens_per_step >= rules.pays and evidence.is_above(rules.break_even)


def _find_releases(state: State, reading: Reading, rules: Rules) -> Iterator[Action]:
    """Yield the step that puts replicas back that a probe found well, else one that tries a replica."""
    out = {name: latch for name, latch in state.latches.items() if reading.spec.get(name) is not None}
    well = [name for name, latch in out.items() if _is_well(latch, reading.probes.get(name), rules)]
    if well:
        lowest = min(reading.probes[name].tokens_per_step for name in well)
        yield replace(
            _action(
                Step.RELEASE, tuple(well), "pays-again",
                f"A probe since then finds {lowest:.2f} tokens per step at the least, and {rules.pays:.2f} pay.",
                rules,
            ),
            evidence={"tokens_per_step": lowest, "pays": rules.pays},
        )  # fmt: skip
    for name, latch in out.items():
        waited = reading.at_s - latch.since_s >= rules.step_gap_s
        if rules.trickles and latch.step is Step.SHIFT and name not in well and waited:
            reason = f"{name} has been out of the traffic for {(reading.at_s - latch.out_since_s) / 60:.0f} minutes."
            yield _action(Step.TRICKLE, (name,), "is-out-of-traffic", reason, rules)


def _is_well(latch: Latch, probe: ProbeReading | None, rules: Rules) -> bool:
    """Return whether a probe after the step shows that a replica pays; a changed drafter needs a look."""
    return (
        probe is not None
        and probe.at_s > latch.out_since_s
        and probe.tokens_per_step >= rules.pays
        and probe.is_same is not False
    )


def _find_way_back(state: State, reading: Reading, rules: Rules) -> Iterator[Action]:
    """Yield the roll-back where replicas have been low, or out of the traffic for that, for long."""
    out = {name: latch for name, latch in state.latches.items() if not _is_well(latch, reading.probes.get(name), rules)}
    began = [latch.out_since_s for latch in out.values()] + list(state.low_since_s.values())
    if not began or reading.at_s - min(began) < rules.roll_back_after_s:
        return
    if state.rolled_back_s is None or state.rolled_back_s < min(began):
        minutes = (reading.at_s - min(began)) / 60
        reason = f"Speculation has not paid for {minutes:.0f} minutes, and what was done to the traffic does not last."
        yield _action(Step.ROLL_BACK, (), "fell-below-break-even", reason, rules)


def is_low(evidence: Evidence | None, rules: Rules) -> bool:
    """Return whether a replica is below break-even for long enough, beyond noise."""
    return (
        evidence is not None
        and evidence.num_windows >= MIN_WINDOWS
        and evidence.span_s >= _COVERED * rules.hold_s
        and evidence.is_below(rules.break_even)
    )


def _action(step: Step, replicas: tuple[str, ...], cause: str, reason: str, rules: Rules) -> Action:
    return Action(step=step, replicas=replicas, cause=cause, reason=reason, executes=step in rules.can)


def _count(number: int) -> str:
    return "One replica emits" if number == 1 else f"{number} replicas emit"


def _numbers(evidence: Evidence, rules: Rules) -> Mapping[str, float]:
    return {
        "tokens_per_step": round(evidence.tokens_per_step, 4),
        "error": round(evidence.error, 4),
        "requests": evidence.requests,
        "span_s": round(evidence.span_s, 1),
        "break_even": rules.break_even,
    }
