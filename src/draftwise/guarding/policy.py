"""What to do next about a service: a pure function of what is known and what is read.

The rules, all of which hold whatever is read:
1. Only replicas that speculate are acted on, never a plain one.
2. What is carried out leaves at least one replica that answers and is not itself below break-even, and `min_spec` that
   speculate.
3. At most one step is carried out in `step_gap_s`.
4. No data is no evidence: a replica that does not answer, a restart and an idle server lead to no step, and a replica
   that was taken out stays out until a probe, or a trickle of traffic, shows that it pays again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from draftwise.core.action import OUT, Action, Step
from draftwise.guarding.evidence import keep_recent, pool, read_sample
from draftwise.guarding.ladder import TRICKLE_S, find_actions, is_low
from draftwise.guarding.reading import Reading, Rules
from draftwise.guarding.state import Latch, State

__all__ = ["decide"]

_PROPOSE_AGAIN_S = 86_400.0
_ROOM = 1.2
"""Windows begin when they begin: so many times a stretch of time is kept to have all of it."""


def decide(state: State, reading: Reading, rules: Rules) -> tuple[State, tuple[Action, ...]]:
    """Return what is known afterwards and what to do: at most one step to carry out, and the new proposals."""
    state = _observe(state, reading, rules)
    execution: Action | None = None
    proposals = []
    for action in find_actions(state, reading, rules):
        allowed = _allow(action, state, reading, rules)
        if execution is None and allowed is not None:
            execution = allowed
        elif _is_new(action, state, reading.at_s):
            proposals.append(replace(action, executes=False))
    state = replace(state, proposed=_list_proposed(state, proposals, reading.at_s))
    if execution is None:
        return state, tuple(proposals)
    return _enact(state, execution, reading.at_s), (execution, *proposals)


def _observe(state: State, reading: Reading, rules: Rules) -> State:
    """Return the state with the windows of the moment."""
    recent, low = {}, {}
    for name, window in reading.spec.items():
        samples = state.recent.get(name, ())
        if window is not None and window.restarted:
            samples = ()
        if window is not None and (sample := read_sample(window)) is not None:
            samples = (*samples, sample)
        latch = state.latches.get(name)
        span = rules.hold_s if latch is None else TRICKLE_S
        recent[name] = keep_recent(samples, reading.at_s, _ROOM * span)
        if latch is None and is_low(pool(recent[name]), rules):
            low[name] = state.low_since_s.get(name, reading.at_s)
    return replace(state, recent=recent, low_since_s=low)


def _allow(action: Action, state: State, reading: Reading, rules: Rules) -> Action | None:
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


def _count_spare(action: Action, state: State, reading: Reading, rules: Rules) -> int:
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
