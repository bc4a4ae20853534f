"""What a guard tells, whether or not there is a step for it: all of it findings, none of it a reason to act."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from draftwise.core import Finding
from draftwise.core.action import Action
from draftwise.guarding.guard_state import State
from draftwise.guarding.service_reading import Rules, ServiceReading
from draftwise.watching.drift import CONFOUNDERS, LEARN_DAYS, DriftRow, RowArrays, find_learned_days

__all__ = ["failed", "find_alarms", "not_learned", "put_back", "unconfirmed"]


def find_alarms(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Finding]:
    """Yield what an operator should know of a state and a reading."""
    if not rules.break_even:
        yield Finding.warning(
            "break-even-unknown",
            "The break-even is unknown, so that no replica is taken out of the traffic.",
            fix="Pass --baseline with the baseline.json of a deployment from a run.",
        )
    if not any(window is not None for window in (*reading.spec.values(), *reading.plain.values())):
        yield Finding.error(
            "nothing-is-read",
            "No replica shows its counters, so that nothing is known of the service and nothing is done to it.",
            fix="Check that the service runs, and that this machine reaches it.",
        )
    for name, window in reading.spec.items():
        if window is not None and window.restarted:
            yield Finding.warning(
                "replica-restarted",
                f"{name} restarted: what it showed before is forgotten, and what was done to it stays.",
                where=name,
            )
    for name, since_s in state.low_since_s.items():
        yield Finding.warning(
            "fell-below-break-even",
            f"{name} emits fewer tokens per step than its break-even of {rules.break_even:.2f}, known since "
            f"{_time(since_s)}.",
            where=name,
            fix="Send its traffic to a replica without speculation, or name an executor with --act.",
        )
    for name, latch in state.latches.items():
        yield Finding.warning(
            "is-out-of-traffic",
            f"{name} is out of the traffic since {_time(latch.out_since_s)} ({latch.cause}).",
            where=name,
            fix="It comes back by itself once a probe finds that it pays; `draftwise guard --undo` puts it back now.",
        )
    if state.drift.alarm_s is not None:
        yield _drifted(state.drift.alarm_s)


def _drifted(alarm_s: int) -> Finding:
    return Finding.warning(
        "acceptance-drifted",
        f"Acceptance has been lower since {_time(alarm_s)} than the service's own weeks explain; whether by "
        f"its {', '.join(CONFOUNDERS[:-1])} or {CONFOUNDERS[-1]} the counters do not tell.",
        fix="Ask with `draftwise watch URL --probe`; `draftwise guard --acknowledge` learns a change that is known.",
    )


def not_learned(state: State, past: Sequence[DriftRow]) -> Finding:
    """Return that drift is not judged yet, and how much is missing."""
    rows = RowArrays.of([row for row in past if row.began_s >= state.learn_from_s])
    return Finding.info(
        "drift-not-learned",
        f"{len(find_learned_days(rows))} of {LEARN_DAYS} days are known, so that slow drift is not judged yet: "
        "break-even and probes are.",
    )


def failed(action: Action, error: Exception) -> Finding:
    """Return that a step was not done."""
    return Finding.error(
        "step-failed",
        f"The step {action.step} on {', '.join(action.replicas) or 'the service'} was not done. {error}",
        fix="Fix the cause. The guard tries the step again in an hour.",
    )


def put_back(replica: str) -> Finding:
    """Return that somebody else put a replica back."""
    return Finding.error(
        "step-undone-elsewhere",
        f"{replica} was put back into the traffic by --undo or by other hands, and is left alone since then.",
        where=replica,
        fix="Find out who did (a reload of the proxy, GitOps, an operator), then run `draftwise guard --acknowledge`.",
    )


def unconfirmed(replica: str) -> Finding:
    """Return that a step had begun when the guard ended, and that nobody can say whether it was done."""
    return Finding.error(
        "step-unconfirmed",
        f"A step on {replica} had begun when the guard ended, and whether it was done cannot be seen.",
        where=replica,
        fix="Check the proxy. To put the replica back for certain, run `draftwise guard --undo`.",
    )


def _time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
