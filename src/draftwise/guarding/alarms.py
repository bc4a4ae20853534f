"""Reports a guard's alarms, with or without a step for them: findings that never cause an action."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from draftwise.core import Finding
from draftwise.guarding.guard_state import State
from draftwise.guarding.service_reading import Rules, ServiceReading
from draftwise.knowledge.messages import fault, note, warning
from draftwise.watching.drift import CONFOUNDERS, LEARN_DAYS, DriftRow, RowArrays, find_learned_days


def find_alarms(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Finding]:
    """Yield findings on a state and a reading for the operator."""
    if not rules.break_even:
        yield warning("break-even-unknown", why=f" ({rules.unknown_because})" if rules.unknown_because else "")
    if not any(window is not None for window in (*reading.spec.values(), *reading.plain.values())):
        yield fault("nothing-is-read")
    for name, window in reading.spec.items():
        if window is not None and window.restarted:
            yield warning("replica-restarted", name=name)
    for name, since_s in state.low_since_s.items():
        yield warning("fell-below-break-even", name=name, break_even=rules.break_even, time=_time(since_s))
    for name, latch in state.latches.items():
        yield warning("is-out-of-traffic", name=name, time=_time(latch.out_since_s), cause=latch.cause)
    if state.drift.alarm_s is not None:
        *causes, last = CONFOUNDERS
        yield warning("acceptance-drifted", since=_time(state.drift.alarm_s), causes=", ".join(causes), last=last)


def not_learned(state: State, past: Sequence[DriftRow]) -> Finding:
    """Return the note that drift is not judged yet, with the missing amount of data."""
    rows = RowArrays.of([row for row in past if row.began_s >= state.learn_from_s])
    return note("drift-not-learned", known=len(find_learned_days(rows)), learn_days=LEARN_DAYS)


def _time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
