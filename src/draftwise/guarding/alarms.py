"""Reports a guard's alarms, with or without a step for them: findings that never cause an action."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from draftwise.core import Finding
from draftwise.core.action import Action
from draftwise.guarding.guard_state import State
from draftwise.guarding.service_reading import Rules, ServiceReading
from draftwise.watching.drift import CONFOUNDERS, LEARN_DAYS, DriftRow, RowArrays, find_learned_days


def find_alarms(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Finding]:
    """Yield findings on a state and a reading for the operator."""
    if not rules.break_even:
        yield Finding.warning(
            "break-even-unknown",
            "The break-even is unknown, so no replica is taken out of the traffic.",
            fix="Pass --baseline with the baseline.json of a deployment from a run.",
        )
    if not any(window is not None for window in (*reading.spec.values(), *reading.plain.values())):
        yield Finding.error(
            "nothing-is-read",
            ("No replica returns its counters. The service's state is unknown, so the guard leaves it alone."),
            fix="Check that the service runs, and that this machine reaches it.",
        )
    for name, window in reading.spec.items():
        if window is not None and window.restarted:
            yield Finding.warning(
                "replica-restarted",
                f"{name} restarted. Its earlier readings no longer count; actions on it stay in effect.",
                where=name,
            )
    for name, since_s in state.low_since_s.items():
        yield Finding.warning(
            "fell-below-break-even",
            f"{name} emits fewer tokens per step than its break-even of {rules.break_even:.2f}, since "
            f"{_time(since_s)}.",
            where=name,
            fix="Send its traffic to a replica without speculation, or name an executor with --act.",
        )
    for name, latch in state.latches.items():
        yield Finding.warning(
            "is-out-of-traffic",
            f"{name} has been out of the traffic since {_time(latch.out_since_s)} ({latch.cause}).",
            where=name,
            fix="It returns once a probe finds that it pays. To put it back now, run `draftwise guard --undo`.",
        )
    if state.drift.alarm_s is not None:
        yield _drifted(state.drift.alarm_s)


def _drifted(alarm_s: int) -> Finding:
    return Finding.warning(
        "acceptance-drifted",
        f"Since {_time(alarm_s)}, acceptance has been lower than the service's history explains. The "
        f"counters cannot tell whether {', '.join(CONFOUNDERS[:-1])} or {CONFOUNDERS[-1]} lowered it.",
        fix="Run `draftwise watch URL --probe`. To accept a known change, run `draftwise guard --acknowledge`.",
    )


def not_learned(state: State, past: Sequence[DriftRow]) -> Finding:
    """Return the note that drift is not judged yet, with the missing amount of data."""
    rows = RowArrays.of([row for row in past if row.began_s >= state.learn_from_s])
    return Finding.info(
        "drift-not-learned",
        f"{len(find_learned_days(rows))} of {LEARN_DAYS} days are known. Until then, the guard judges break-even "
        "and probes, but not slow drift.",
    )


def failed(action: Action, error: Exception) -> Finding:
    """Return the finding for a failed step."""
    return Finding.error(
        "step-failed",
        f"The step {action.step} on {', '.join(action.replicas) or 'the service'} failed. {error}",
        fix="Fix the cause. The guard tries the step again in an hour.",
    )


def put_back(replica: str) -> Finding:
    """Return the note that another party put a replica back."""
    return Finding.error(
        "step-undone-elsewhere",
        f"Someone, or --undo, put {replica} back into the traffic. The guard has left it alone since.",
        where=replica,
        fix="Find out who did it (a proxy reload, GitOps, an operator), then run `draftwise guard --acknowledge`.",
    )


def unconfirmed(replica: str) -> Finding:
    """Return the finding for a step that was in progress when the guard ended: its outcome is unknown."""
    return Finding.error(
        "step-unconfirmed",
        f"The guard ended during a step on {replica}. The result of the step is unknown.",
        where=replica,
        fix="Check the proxy. To put the replica back for certain, run `draftwise guard --undo`.",
    )


def _time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
