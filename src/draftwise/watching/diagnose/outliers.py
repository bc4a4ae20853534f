"""Finds engines that differ from their neighbors, before the pool as a whole is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from operator import attrgetter
from statistics import median

from draftwise.core import Window
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.messages import text_of
from draftwise.watching.diagnose.pool_case import (
    MIN_DRAFTS,
    MIN_REQUESTS,
    NOISE,
    RuleMatch,
    count_drafted,
    count_requests,
    count_verified,
    draft_error,
    is_less,
    relative_error,
    tell,
)
from draftwise.watching.yardstick import Yardstick

_LESS = 0.25
"""Share by which an outlier accepts less than the median of the others."""
_SLOWER = 0.25
"""1 - 1/1.33: an outlier's step takes a third longer than the others' median, at no larger batch."""
_SMALL = 4
"""Ratio of requests above which two engines are not comparable."""
_AS_MEASURED = 1.12
"""Ratio of two steps over what was measured under their loads, up to which load explains the difference."""
_NOTHING_MEASURED = Yardstick()
_ALIKE = 1.25
"""Ratio of batches up to which step times are comparable."""


def find_outliers(windows: Sequence[Window], yardstick: Yardstick = _NOTHING_MEASURED) -> tuple[Window, ...]:
    """Return engines with lower acceptance or slower steps than their neighbors; empty if most are affected.

    Args:
        windows: windows of the engines.
        yardstick: tells how long a step takes under an engine's load.
    """
    found = tuple(each for each in windows if _accepts_less(each, windows) or _is_slower(each, windows, yardstick))
    return found if len(windows) > 1 and 2 * len(found) <= len(windows) else ()


def _accepted(window: Window) -> float | None:
    """Return accepted tokens of a draft; of a server that does not count its drafts, of a step."""
    verified = count_verified(window)
    return window.counters.spec.num_accepted_tokens / verified if verified >= MIN_DRAFTS else None


def _compare(
    window: Window, windows: Sequence[Window], read: Callable[[Window], float | None]
) -> tuple[float, float] | None:
    """Return a reading and the median of the others; None where either is unknown."""
    own = read(window)
    others = [value for each in windows if each is not window and (value := read(each)) is not None]
    return None if own is None or not others else (own, median(others))


def _leave_out_small(window: Window, windows: Sequence[Window]) -> Sequence[Window]:
    """Return a window and those with enough requests to be held against it; all if there are no such others."""
    large = [each for each in windows if each is window or _SMALL * count_requests(each) >= count_requests(window)]
    return large if len(large) > 1 else windows


def _accepts_less(window: Window, windows: Sequence[Window]) -> bool:
    known = _leave_out_small(window, [each for each in windows if _accepted(each) is not None])
    pair = _compare(window, known, _accepted)
    if pair is None or pair[1] <= NOISE:  # nothing is less than next to nothing
        return False
    others = [each for each in known if each is not window and _accepted(each)]
    error = draft_error(others[0], window) if others else inf
    return is_less(*pair, by=_LESS, error=error)


def _is_slower(window: Window, windows: Sequence[Window], yardstick: Yardstick) -> bool:
    if not window.batch or (window.sums.finished or 0.0) < 2 * MIN_REQUESTS:
        return False
    same = [each for each in windows if bool(each.counters.spec.num_drafts) == bool(window.counters.spec.num_drafts)]
    alike = [each for each in same if each is window or _is_alike(window, each)]
    large = _leave_out_small(window, alike)
    measured = _compare(window, large, yardstick.step_ratio)
    if measured is not None and measured[0] < _AS_MEASURED * measured[1]:
        return False  # it has more to do
    pair = _compare(window, large, attrgetter("step_s"))
    return pair is not None and is_less(pair[1], pair[0], by=_SLOWER, error=relative_error(window))


def _is_alike(window: Window, other: Window) -> bool:
    """Return whether a batch is no larger, or only because requests that come as often stay longer."""
    rate, theirs = window.finished_per_s or 0.0, other.finished_per_s or 0.0
    return bool(other.batch and window.batch and window.batch <= _ALIKE * other.batch) or 0 < rate <= _ALIKE * theirs


def differ_by_k(ill: Sequence[Window], rest: Sequence[Window]) -> bool:
    """Return whether each of these engines has a k of its own, which explains that a draft gives less, not nothing."""
    others = {None, *map(count_drafted, rest)}
    return bool(ill) and all(count_drafted(each) not in others and (_accepted(each) or 0.0) > NOISE for each in ill)


def describe_outlier(ill: Sequence[Window], rest: Sequence[Window]) -> RuleMatch:
    """Describe the worst of these engines, compared with the rest."""
    worst = min(ill, key=lambda each: (_accepted(each) or 0.0) / (each.step_s or 1.0))
    name = f"{worst.instance}, engine {worst.engine}" if worst.engine else worst.instance
    pooled = Window.pooled(rest)
    now, then = worst.tokens_per_step, None if pooled is None else pooled.tokens_per_step
    step, other = worst.step_s, None if pooled is None else pooled.step_s
    slow = step is not None and other is not None and step > other / (1 - _SLOWER)
    says = f"a step takes {1000 * (step or 0):.3g} ms" if slow else f"a step emits {now or 0:.2f} tokens"
    theirs = f"{1000 * (other or 0):.3g} ms" if slow else f"{then or 0:.2f}"
    evidence: tuple[str, ...] = (tell("tokens per step", now, then, of="the others"),)
    if step is not None and other is not None:
        evidence += (tell("ms a step", 1000 * step, 1000 * other, of="the others"),)
    fixes = [text_of("outlier-slow")] if slow else []
    if slow and _accepts_less(worst, (worst, *rest)):
        fixes.append(all_findings()["replica-outlier"].fix)
    return RuleMatch(
        message=f"On {name} {says}; on the others, {theirs}.",
        evidence=evidence,
        where=worst.instance,
        fix=" ".join(fixes),
    )
