"""Rules on how requests end: failed, canceled by clients, rejected, or cut at their token limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log, sqrt

from draftwise.core import Window
from draftwise.watching.diagnose.pool_case import MIN_REQUESTS, SIGMAS, DiagnosisRule, PoolCase, RuleMatch, tell

_ALL_BUT = 0.999
"""Cap on the share of requests, which keeps the loss finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """A way in which requests end."""

    code: str
    count: Callable[[Window], float | None]
    says: str
    more: float
    """Excess over the share elsewhere that counts."""
    alone: float
    """Share that is a finding regardless of the share elsewhere."""
    loses: bool = False
    """Whether these requests count as lost work."""


def _count_failed(window: Window) -> float | None:
    counts = [each for each in (window.sums.failed, window.sums.broken) if each is not None]
    return max(counts, default=None)


_ENDS = (
    _End(code="requests-fail", count=_count_failed, says="end with an error", more=0.01, alone=0.01, loses=True),
    _End(code="logits-corrupted", count=lambda each: each.sums.corrupted, says="had NaN among their logits", more=0.0,
         alone=0.0),
    _End(code="refused-params", count=lambda each: each.sums.refused, says="are refused (status 4xx)", more=0.05,
         alone=0.25),
    _End(code="requests-aborted", count=lambda each: each.sums.aborted, says="are given up by their clients", more=0.1,
         alone=0.4),
    _End(code="answers-capped", count=lambda each: each.sums.capped, says="end at their limit or repeat themselves",
         more=0.2, alone=inf),
)  # fmt: skip


def _share(end: _End, window: Window | None) -> tuple[float, float] | None:
    """Return the share of a window's requests that end so, and how many requests there are; None if unknown."""
    count = None if window is None else end.count(window)
    if window is None or count is None or window.sums.finished is None:
        return None
    total = max(count, window.sums.finished + (window.sums.refused or 0.0))
    return (count / total, total) if total else None


def _is_more(end: _End, here: tuple[float, float], there: tuple[float, float]) -> bool:
    """Return whether more requests end so than elsewhere, beyond chance."""
    (share, total), (other, counted) = here, there
    error = sqrt(max(other, share / 4) * (1 / total + 1 / counted))
    return share - other > max(end.more, SIGMAS * error)


def _list_elsewhere(case: PoolCase) -> Iterator[tuple[Window | None, str]]:
    yield case.plain, "in the plain pool"
    yield case.expected.earlier, "before"


def _find(end: _End, case: PoolCase) -> RuleMatch | None:
    parts = case.parts
    if len(case.replicas) == 1:  # what the server counts names no rank, and stands with the first one
        parts = {k: replace(each, sums=replace(each.sums, refused=None, broken=None)) for k, each in parts.items()}
    shares = {name: share for name, window in parts.items() if (share := _share(end, window)) is not None}
    worst = max(shares, key=lambda name: shares[name][0], default="")
    rest = [window for name, window in parts.items() if name != worst and shares[worst][0]] if worst else []
    here, others = _share(end, case.window), _share(end, Window.pooled(rest))
    elsewhere = [(share, where) for window, where in _list_elsewhere(case) if (share := _share(end, window))]
    if worst and others is not None and _is_more(end, shares[worst], others):
        here, elsewhere, where = shares[worst], [(others, "on the others")], worst
    else:
        where = ""
    if here is None and worst:
        here, where = shares[worst], worst  # the others do not count it
    if here is None or here[0] * here[1] < (1 if end.alone == 0 else MIN_REQUESTS):
        return None
    more = next((each for each in elsewhere if _is_more(end, here, each[0])), None)
    if more is None and (here[0] <= end.alone or (elsewhere and not end.loses and end.alone)):
        return None
    than = more or next(iter(elsewhere), None)
    on = f"On {where}, " if where else ""
    compared = "" if than is None else f"; {than[1]}, {than[0][0]:.1%}"
    return RuleMatch(
        message=f"{on}{here[0] * here[1]:.0f} of {here[1]:.0f} requests ({here[0]:.1%}) {end.says}{compared}.",
        evidence=(tell(f"share that {end.says}", here[0], None if than is None else than[0][0], of="elsewhere"),),
        loss=-log(1 - min(here[0], _ALL_BUT)) if end.loses else None,
        where=parts[where].instance if where else "",
    )


RULES = tuple(DiagnosisRule(end.code, partial(_find, end)) for end in _ENDS)
