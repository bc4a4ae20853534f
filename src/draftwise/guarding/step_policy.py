"""Chooses the next step for a service, as a pure function of its state and the latest reading.

These rules always hold:
1. Steps apply to speculating replicas only.
2. At least one replica remains that answers and is not below break-even, and at least `min_spec` that speculate.
3. At most one step is taken per `step_gap_s`.
4. Missing data is not evidence: an unreachable replica, a restart or an idle server causes no step. A replica that was
   taken out stays out until a probe, or a trickle of traffic, shows that it pays again.
5. A replica hangs if it answers, and one of its engines has requests in flight and makes no progress in several windows
   in a row, while another engine generates. Where none generates, taking one out does not help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from draftwise.core.action import OUT, Action, Step
from draftwise.guarding.guard_state import Latch, State
from draftwise.guarding.service_reading import (
    MIN_WINDOWS,
    PooledSample,
    ProbeReading,
    Rules,
    ServiceReading,
    keep_recent,
    pool,
    read_sample,
)
from draftwise.watching.stalls import HUNG

TRICKLE_S = 900.0
"""Seconds for which a replica gets a twentieth of the traffic as a trial."""
_COVERED = 0.9
"""Share of a period that windows must cover."""


def _find_actions(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Action]:
    """Yield what could be done, the most urgent first."""
    yield from _find_ends_of_trickle(state, reading, rules)
    yield from _find_hung(state, reading, rules)
    yield from _find_ways_out(state, reading, rules)
    yield from _find_releases(state, reading, rules)
    yield from _find_way_back(state, reading, rules)
    for each in reading.requests:
        replicas = tuple(name for name in each.replicas if name not in state.latches)
        if replicas or not each.replicas:
            yield _action(each.step, replicas, each.cause, each.reason, rules)


def _find_hung(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Action]:
    """Yield the step that takes hung replicas out of the traffic."""
    out = state.hands_off.union(name for name, latch in state.latches.items() if latch.step in OUT)
    stood = {
        name: (reading.at_s - began_s, reads) for name, (began_s, reads) in state.stands.items() if name not in out
    }
    hung = {
        name: seconds for name, (seconds, reads) in stood.items() if reads >= MIN_WINDOWS and seconds >= rules.hold_s
    }
    if hung:
        seconds = min(hung.values())
        reason = (
            f"Requests are in flight, and an engine generated no token for {seconds:.0f} s. Another engine generates."
        )
        yield replace(_action(Step.DRAIN, tuple(hung), HUNG, reason, rules), evidence={"seconds": round(seconds, 1)})


def _find_ways_out(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Action]:
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
            f"{_count(len(low))} fewer tokens per step than the break-even of {worst.need * rules.break_even:.2f} for "
                f"{worst.span_s:.0f} s; the lowest emits {worst.tokens_per_step:.2f}.", rules,
        ),
        evidence=_numbers(worst, rules),
    )  # fmt: skip


def _waits_for_others(state: State, low: list[str], reading: ServiceReading, rules: Rules) -> bool:
    """Return whether another replica begins to look low too: one step then does for both, a little later."""
    if reading.at_s - min(state.low_since_s[name] for name in low) >= rules.hold_s:
        return False
    others = (each for name, each in state.recent.items() if name not in low and name not in state.latches)
    unsure = (pool(each[-MIN_WINDOWS:]) for each in others)
    return any(each is not None and not each.reaches(rules.break_even) for each in unsure)


def _is_fresh(state: State, name: str, now_s: float, rules: Rules) -> bool:
    samples = state.recent.get(name, ())
    return bool(samples) and samples[-1].end_s >= now_s - rules.stale_s and name not in state.hands_off


def _find_ends_of_trickle(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Action]:
    """Yield the end of every trickle that has shown something, for better or for worse, of servers that answer."""
    for name, latch in state.latches.items():
        if reading.spec.get(name) is None:
            continue
        evidence = pool(state.recent.get(name, ()))
        if latch.step is not Step.TRICKLE or evidence is None or not _is_fresh(state, name, reading.at_s, rules):
            continue
        seen = f"{name} emits {evidence.tokens_per_step:.2f} tokens per step on a trickle of traffic"
        if _is_low(evidence, rules):
            action = _action(Step.SHIFT, (name,), "still-below-break-even", f"{seen}, so it stays out.", rules)
        elif evidence.span_s >= _COVERED * TRICKLE_S and _pays(evidence, rules):
            action = _action(Step.RELEASE, (name,), "pays-again", f"{seen}: it pays again.", rules)
        else:
            continue
        yield replace(action, evidence=_numbers(evidence, rules))


def _pays(evidence: PooledSample, rules: Rules) -> bool:
    return evidence.reaches(rules.pays) and evidence.is_above(rules.break_even)


def _find_releases(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Action]:
    """Yield the step that puts replicas back that a probe found well, else one that tries a replica."""
    out = {name: latch for name, latch in state.latches.items() if reading.spec.get(name) is not None}
    well = [name for name, latch in out.items() if _is_well(latch, reading.probes.get(name), rules)]
    if well:
        lowest = min(reading.probes[name].tokens_per_step for name in well)
        yield replace(
            _action(
                Step.RELEASE, tuple(well), "pays-again",
                (
                    f"A probe since then finds at least {lowest:.2f} tokens per step, and {rules.pays:.2f} are "
                    "enough to pay off."
                ),
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


def _find_way_back(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Action]:
    """Yield the roll-back where the service as a whole has not paid for long; else the restart of what is ill."""
    out = {
        name: latch for name, latch in state.latches.items()
        if latch.cause != HUNG and not _is_well(latch, reading.probes.get(name), rules)
    }  # fmt: skip
    began = [latch.out_since_s for latch in out.values()] + list(state.low_since_s.values())
    if not began or reading.at_s - min(began) < rules.roll_back_after_s:
        return
    minutes = (reading.at_s - min(began)) / 60
    ill = tuple(name for name in reading.spec if name in out or name in state.low_since_s)
    if _pays_as_a_whole(state, reading, rules, ill):
        reason = (
            f"{_count_ill(len(ill), len(reading.spec))} not paid off for {minutes:.0f} minutes, while the "
            "others pay off."
        )
        restarts = tuple(name for name in ill if reading.spec.get(name) is not None)
        if restarts:
            yield _action(Step.RESTART, restarts, "fell-below-break-even", reason, rules)
        return
    if state.rolled_back_s is None or state.rolled_back_s < min(began):
        reason = f"Speculation has not paid off for {minutes:.0f} minutes, and changes to the traffic do not last."
        yield _action(Step.ROLL_BACK, (), "fell-below-break-even", reason, rules)


def _pays_as_a_whole(state: State, reading: ServiceReading, rules: Rules, ill: Sequence[str]) -> bool:
    """Return whether the replicas in the traffic, the ill among them, are together not below break-even.

    One that is ill is not the service: there has to be one that pays, and all of them together must not lose.
    """
    serving = [name for name, window in reading.spec.items() if name not in state.latches and window is not None]
    well = [pool(state.recent.get(name, ())) for name in serving if name not in ill]
    together = pool([sample for name in serving for sample in state.recent.get(name, ())])
    healthy = any(each is not None and each.reaches(rules.break_even) for each in well)
    return healthy and together is not None and not together.is_below(rules.break_even)


def _count_ill(number: int, of: int) -> str:
    return f"One replica of {of} has" if number == 1 else f"{number} replicas of {of} have"


def _is_low(evidence: PooledSample | None, rules: Rules) -> bool:
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


def _numbers(evidence: PooledSample, rules: Rules) -> Mapping[str, float]:
    return {
        "tokens_per_step": round(evidence.tokens_per_step, 4),
        "error": round(evidence.error, 4),
        "requests": evidence.requests,
        "span_s": round(evidence.span_s, 1),
        "break_even": round(evidence.need * rules.break_even, 4),
    }


_PROPOSE_AGAIN_S = 86_400.0
_HISTORY_MARGIN = 1.2
"""Keep 20 % more than the span, because windows do not align with it."""


def decide(state: State, reading: ServiceReading, rules: Rules) -> tuple[State, tuple[Action, ...]]:
    """Return the next state and the actions: at most one step to carry out, and new proposals."""
    state = _observe(state, reading, rules)
    execution: Action | None = None
    proposals = []
    for action in _find_actions(state, reading, rules):
        allowed = _allow(action, state, reading, rules)
        if execution is None and allowed is not None:
            execution = allowed
        elif _is_new(action, state, reading.at_s):
            proposals.append(replace(action, executes=False))
    state = replace(state, proposed=_list_proposed(state, proposals, reading.at_s))
    if execution is None:
        return state, tuple(proposals)
    return _enact(state, execution, reading.at_s), (execution, *proposals)


def _observe(state: State, reading: ServiceReading, rules: Rules) -> State:
    """Return the state with the windows of the moment."""
    recent, low, stands = {}, {}, {}
    out = {name for name, latch in state.latches.items() if latch.step in OUT}
    serving = [*reading.plain.values(), *(window for name, window in reading.spec.items() if name not in out)]
    works = any(window is not None and window.output_tokens for window in serving)
    for name, window in reading.spec.items():
        samples = state.recent.get(name, ())
        if window is not None and window.restarted:
            samples = ()
        need = None if window is None else reading.find_need(window, rules)
        if window is not None and need is not None and (sample := read_sample(window, need)) is not None:
            samples = (*samples, sample)
        if works and window is not None and not window.restarted and name in reading.stands:
            began_s, reads = state.stands.get(name, (window.start_s, 0))
            stands[name] = began_s, reads + 1
        latch = state.latches.get(name)
        span = rules.hold_s if latch is None else TRICKLE_S
        recent[name] = keep_recent(samples, reading.at_s, _HISTORY_MARGIN * span)
        if latch is None and _is_low(pool(recent[name]), rules):
            low[name] = min(state.low_since_s.get(name, inf), reading.at_s)
    last_s = state.last_step_s if state.last_step_s is None else min(state.last_step_s, reading.at_s)
    return replace(state, recent=recent, stands=stands, low_since_s=low, last_step_s=last_s)


def _allow(action: Action, state: State, reading: ServiceReading, rules: Rules) -> Action | None:
    """Return an action as far as it may be carried out now; None where it may not."""
    if not action.executes:
        return None
    if state.last_step_s is not None and reading.at_s - state.last_step_s < rules.step_gap_s:
        return None
    if action.step not in (*OUT, Step.RESTART) or all(name in state.latches for name in action.replicas):
        return action
    spare = _count_spare(action, state, reading, rules)
    replicas = action.replicas[: min(spare, 1) if action.step is Step.RESTART else spare]
    return replace(action, replicas=replicas) if replicas else None


def _count_spare(action: Action, state: State, reading: ServiceReading, rules: Rules) -> int:
    """Return how many of an action's replicas the service can do without."""
    serving = [name for name, window in reading.spec.items() if name not in state.latches and window is not None]
    others = [name for name in serving if name not in action.replicas and name not in state.low_since_s]
    others += [name for name, window in reading.plain.items() if window is not None]
    return max(len(serving) - rules.min_spec, 0) if others else 0


def _enact(state: State, action: Action, now_s: float) -> State:
    """Return the state in which an action is about to be carried out."""
    state = replace(state, last_step_s=now_s)
    if action.step is Step.RELEASE:
        return state.without(action.replicas)
    if action.step is Step.ROLL_BACK:
        return replace(state, rolled_back_s=now_s)
    if action.step not in (*OUT, Step.TRICKLE):
        return state
    old = {name: state.latches.get(name) for name in action.replicas}
    latches = {
        name: Latch(
            step=action.step,
            since_s=now_s,
            out_since_s=now_s if latch is None else latch.out_since_s,
            cause=action.cause if latch is None else latch.cause,
        )
        for name, latch in old.items()
    }
    state = state.without(action.replicas)
    return replace(state, latches={**state.latches, **latches})


def _list_proposed(state: State, proposals: Sequence[Action], now_s: float) -> Mapping[str, float]:
    """Return when what was last proposed, as far as that still keeps it from being proposed again."""
    standing = {key: at_s for key, at_s in state.proposed.items() if now_s - at_s < _PROPOSE_AGAIN_S}
    return standing | {_key(action): now_s for action in proposals}


def _is_new(action: Action, state: State, now_s: float) -> bool:
    return now_s - state.proposed.get(_key(action), -inf) >= _PROPOSE_AGAIN_S


def _key(action: Action) -> str:
    return " ".join([action.step, action.cause, *sorted(action.replicas)])
