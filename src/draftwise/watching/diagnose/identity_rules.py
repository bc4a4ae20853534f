"""Rules on swapped pools, differing revisions, another k, slow tails, and too little data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from math import ceil, inf, log, sqrt

from draftwise.core import Sums, Window
from draftwise.core.grouping import group_by
from draftwise.watching.diagnose.pool_case import (
    MIN_DRAFTS,
    MIN_REQUESTS,
    MIN_TOKENS,
    SIGMAS,
    DiagnosisRule,
    PoolCase,
    RuleMatch,
    count_drafted,
    count_requests,
    differ_in_prompts,
    find_losses,
    find_only,
    is_less,
    is_same_load,
    relative_error,
    requests_to_tell,
    tell,
)

_LESS, _SLOWER = 0.08, 0.12
"""Revisions differ if acceptance length, or step time, differs by this share."""
_TOGETHER_S, _OLDER = 3600.0, 4.0
"""Servers started within an hour belong to one roll-out; those of the previous one are at least four times as old."""
_SUSPECT_SIGMAS = 1.65
"""Number of standard errors above which a fall is suspected: one healthy window in twenty reaches it."""
_FELL = 0.08
_TAIL = 0.01
_SAME = 0.05
"""Share by which the mean time per token may exceed the other one's."""
_UNLIKE = 1.5
_BUSIER = 1.25
"""Ratio of the running requests of an engine up to which its tail is held against another one's."""


def leave_out_models(
    windows: Sequence[Window], plain: Window | None
) -> tuple[RuleMatch | None, tuple[Window, ...], Window | None]:
    """Return the match for servers of another model, and the windows of the common one (none without a majority)."""
    counts = Counter(_shorten(each.model) for each in windows if each.model)
    most = max(counts, key=lambda name: counts[name], default="")
    common = next((each.model for each in windows if _shorten(each.model) == most), "")
    strange = [each for each in windows if each.model and _shorten(each.model) != most]
    odd = [*strange, *([plain] if plain is not None and _is_other(plain.model, common) else [])]
    if not odd:
        return None, tuple(windows), plain
    match = RuleMatch(
        message=f"{odd[0].instance} serves {odd[0].model}, the other servers {common}. They are not compared.",
        evidence=tuple(f"{each.instance}: {each.model}" for each in odd),
        where=odd[0].instance,
    )
    kept = () if 2 * len(strange) >= len(windows) else tuple(each for each in windows if each not in strange)
    return match, kept, None if plain in odd else plain


def _is_other(name: str, common: str) -> bool:
    """Return whether two names are of two models; a plain twin may add to the name of its service."""
    a, b = _shorten(name), _shorten(common)
    return bool(a and b) and a not in b and b not in a


def _shorten(name: str) -> str:
    """Return the last part of a model's name or path, without what a twin adds."""
    return name.rstrip("/").rpartition("/")[2].casefold().removesuffix("-plain")


def find_mute(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Return the engines that lack counters which most others have; empty without a majority."""
    told = {id(each): _list_told(each) for each in windows}
    common = {name for names in told.values() for name in names}
    common = {name for name in common if 2 * sum(name in names for names in told.values()) > len(windows)}
    mute = tuple(each for each in windows if common - told[id(each)] and _is_busy(each))
    return mute if 2 * len(mute) < len(windows) else ()


def _list_told(window: Window) -> frozenset[str]:
    sums = {each.name for each in fields(Sums) if getattr(window.sums, each.name) is not None}
    known = {
        "generation_tokens": window.output_tokens is not None,
        "num_accepted_tokens": window.tells_acceptance,
        "num_requests_running": window.load.running is not None,
        "prefix_cache_queries": window.counters.prefix_queries is not None,
    }
    return frozenset(sums | {name for name, is_known in known.items() if is_known})


def _is_busy(window: Window) -> bool:
    return (window.output_tokens or 0) >= MIN_TOKENS or (window.load.running or 0.0) > 0


def describe_mute(mute: Sequence[Window], windows: Sequence[Window]) -> RuleMatch:
    """Describe the missing counters of the first of these engines."""
    first, others = mute[0], [each for each in windows if each not in mute]
    lacking = sorted(frozenset.union(*map(_list_told, others)) - _list_told(first))
    return RuleMatch(
        message=(
            f"{first.instance} lacks {len(lacking)} of the counters that the pool's other servers have. The readings "
            "below leave it out."
        ),
        evidence=(f"counters missing: {', '.join(lacking)}",),
        where=first.instance,
    )


def _find_pools_swapped(case: PoolCase) -> RuleMatch | None:
    plain = case.plain
    if plain is None or not _drafts(plain) or case.window.counts_drafts or case.window.counters.spec.num_drafts:
        return None
    return RuleMatch(
        message="The servers of this pool have no draft counter, but those given as plain make drafts.",
        evidence=(f"plain: {plain.counters.spec.num_drafts:,} drafts",),
    )


def _find_plain_pool_drafts(case: PoolCase) -> RuleMatch | None:
    plain = case.plain
    if plain is None or not _drafts(plain) or not case.window.counts_drafts:
        return None
    return RuleMatch(
        message=f"{plain.instance} should serve without speculation, but it makes drafts.",
        evidence=(f"plain: {plain.counters.spec.num_drafts:,} drafts",),
        where=plain.instance,
    )


def _drafts(window: Window) -> bool:
    return bool(window.counts_drafts and window.counters.spec.num_drafts >= MIN_DRAFTS)


def _find_k_changed(case: PoolCase) -> RuleMatch | None:
    drafted = {name: k for name, window in case.replicas.items() if (k := count_drafted(window)) is not None}
    wanted = _find_wanted_k(case)
    if not drafted or case.asked.schedule:
        return None
    found = sorted(set(drafted.values()))
    odd = {name: k for name, k in drafted.items() if k != (found[0] if wanted is None else wanted)}
    if not odd or (len(found) == 1 and wanted is None):
        return None
    evidence = tuple(f"{name}: {k} draft tokens" for name, k in drafted.items())
    loss = sum(max(each or 0.0, 0.0) for each in (find_losses(case).machine, find_losses(case).acceptance))
    if len(found) == 1:
        given = case.asked.spec is not None and case.asked.spec.num_speculative_tokens is not None
        text = f"Drafts have {found[0]} tokens; {wanted} {'are configured' if given else 'were measured'}."
        return RuleMatch(message=text, evidence=evidence, loss=loss)
    text = f"{len(odd)} of {len(drafted)} servers draft {' or '.join(map(str, sorted(set(odd.values()))))} tokens, the "
    text += f"others {' or '.join(str(k) for k in found if k not in odd.values())}."
    return RuleMatch(message=text, evidence=evidence, loss=loss, where=next(iter(odd)))


def _find_wanted_k(case: PoolCase) -> int | None:
    asked = None if case.asked.spec is None else case.asked.spec.num_speculative_tokens
    return asked if asked is not None or case.good is None else count_drafted(case.good)


def _find_revisions_differ(case: PoolCase) -> RuleMatch | None:
    groups = _group_by_revision(case.replicas)
    for name, ill in groups.items():
        others = [other for other in groups if other != name]
        pooled, rest = Window.pooled(ill), Window.pooled(each for other in others for each in groups[other])
        label = others[0] if len(others) == 1 else "the other revisions"
        if pooled is not None and rest is not None and (found := _tell_worse(name, ill, pooled, label, rest)):
            return found
    return None


def _group_by_revision(replicas: Mapping[str, Window]) -> Mapping[str, Sequence[Window]]:
    """Return the servers of each revision, the newest first: by their labels, else by when they started."""
    labels = group_by(lambda each: each.revision, replicas.values())
    if len(labels) > 1 and "" not in labels:
        return {f"revision {name}": each for name, each in sorted(labels.items(), key=lambda pair: _age(pair[1]))}
    ages = [window.uptime_s for window in replicas.values()]
    if len(labels) > 1 or None in ages or len(ages) < 3:
        return {}
    youngest = min(age for age in ages if age is not None)
    new = [each for each in replicas.values() if (each.uptime_s or 0.0) <= youngest + _TOGETHER_S]
    old = [each for each in replicas.values() if each not in new]
    newest = max((each.uptime_s or 0.0) for each in new)
    if len(new) < 2 or not old or min(each.uptime_s or 0.0 for each in old) < _OLDER * newest:
        return {}
    return {f"started {newest / 60:.0f} minutes ago": new, "started before": old}


def _age(windows: Sequence[Window]) -> float:
    return min(each.uptime_s or 0.0 for each in windows)


def _tell_worse(name: str, ill: Sequence[Window], pooled: Window, other: str, rest: Window) -> RuleMatch | None:
    """Return in what some servers are worse than the others, all of them."""
    error = relative_error(pooled, rest)
    count = f"{len(ill)} servers, {name}" if len(ill) > 1 else f"{ill[0].instance}, {name}"
    now, then = pooled.acceptance_length, rest.acceptance_length
    if is_less(now, then, by=_LESS, error=error) and all(
        is_less(each.acceptance_length, then, by=_LESS / 2, error=0.0) for each in ill
    ):
        return RuleMatch(
            message=f"With {count}, a draft gives {now:.2f} tokens; with those of {other}, {then:.2f}.",
            evidence=(tell("acceptance length", now, then, of=other),),
            loss=log(rest.tokens_per_step / pooled.tokens_per_step)
            if rest.tokens_per_step and pooled.tokens_per_step
            else None,
            where=ill[0].instance,
        )
    step, other_step = pooled.step_s, rest.step_s
    if is_same_load(pooled, rest) and is_less(other_step, step, by=_SLOWER, error=error):
        return RuleMatch(
            message=f"With {count}, a step takes {1000 * (step or 0):.3g} ms; with those of {other}, "
            f"{1000 * (other_step or 0):.3g} ms.",
            evidence=(tell("ms a step", 1000 * (step or 0), 1000 * (other_step or 0), of=other),),
            loss=log(step / other_step) if step and other_step else None,
            where=ill[0].instance,
        )
    return None


def _find_pools_unlike(case: PoolCase) -> RuleMatch | None:
    window, plain = case.window, case.plain
    now, then = window.mean_prompt_tokens, None if plain is None else plain.mean_prompt_tokens
    if plain is None or not now or not then or min(map(count_requests, (window, plain))) < 2 * MIN_REQUESTS:
        return None
    if not differ_in_prompts(window, plain) or max(now / then, then / now) < _UNLIKE:
        return None
    return RuleMatch(
        message=f"Prompts have {now:,.0f} tokens here and {then:,.0f} in the plain pool, so times are not compared.",
        evidence=(tell("prompt tokens", now, then, of="plain"),),
        loss=0.0,
    )


def _find_p99_worse(case: PoolCase) -> RuleMatch | None:
    """Hold the edges between which P99 and median lie against the plain pool's, or an earlier window's."""
    for other, place in ((case.comparable, "in the plain pool"), (case.expected.earlier, "before")):
        if other is None or any((each.batch or 0.0) > _BUSIER * (other.batch or 0.0) for each in case.windows):
            continue
        where = find_only(case, partial(_has_worse_tail, other=other))
        window = case.parts.get(where, case.window)
        if not _has_worse_tail(window, other):
            continue
        (now, here), (then, there) = _bound_tail(window), _bound_tail(other)
        on = f"on {where}" if where else "here"
        return RuleMatch(
            message=(
                f"1 of 100 requests takes more than {1000 * now[0]:g} ms a token {on} and at most {1000 * then[1]:g} "
                f"ms {place}. The median is at most {1000 * here[1]:g} ms {on} and {1000 * there[1]:g} ms {place}."
            ),
            evidence=(
                tell(f"share beyond {1000 * then[1]:g} ms", window.share_slower(then[1]), other.share_slower(then[1])),
            ),
            where=window.instance if where else "",
        )
    return None


def _bound_tail(window: Window) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the edges of P99 and of the median; without a histogram, those of nothing."""
    unknown = (0.0, inf)
    return window.bound_quantile(1 - _TAIL) or unknown, window.bound_quantile(0.5) or unknown


def _has_worse_tail(window: Window, other: Window) -> bool:
    (now, here), (then, there) = _bound_tail(window), _bound_tail(other)
    mean, before = window.seconds_per_token, other.seconds_per_token
    if mean is None or before is None or mean > (1 + _SAME) * before or not _answers_alike(window, other):
        return False  # all of them are slower, or the mean of a request is one of fewer tokens
    return now[0] >= then[1] and here[1] <= there[1] and _is_sure_tail(window, other, then[1])


def _answers_alike(window: Window, other: Window) -> bool:
    here, there = window.mean_output_tokens, other.mean_output_tokens
    return bool(here and there and max(here / there, there / here) < _UNLIKE)


def _is_sure_tail(window: Window, other: Window, edge_s: float) -> bool:
    """Return whether more requests lie beyond an edge than chance, and the other window's share, explain."""
    total, counted = (dict(each.slower_than).get(0.0, 0.0) for each in (window, other))
    share, before = window.share_slower(edge_s), other.share_slower(edge_s)
    if share is None or before is None or share * total < MIN_REQUESTS:
        return False
    error = sqrt(max(share, _TAIL) * (1 / total + 1 / counted)) if total and counted else inf
    return share - max(before, _TAIL) > SIGMAS * error


def _find_change_unproven(case: PoolCase) -> RuleMatch | None:
    """Name what looks worse and is not told from chance yet, with what is missing."""
    if (case.window.output_tokens or 0) < MIN_TOKENS:
        return None
    for name, now, then, by in _list_suspects(case):
        if now is None or not then or now <= 0:
            continue
        change, requests = log(then / now), count_requests(case.window)
        if not -log(1 - by) < change or not _SUSPECT_SIGMAS * case.error < change <= SIGMAS * case.error:
            continue
        needed = requests_to_tell(change, case.expected.earlier)
        if needed is None:
            more = "the earlier window is too short, so record a longer one"
        else:
            rate, missing = case.window.finished_per_s, max(1.0, needed - requests)
            minutes = f", {max(1, round(missing / rate / 60))} minutes at this rate" if rate else ""
            more = f"about {ceil(missing)} more requests are needed{minutes}"
        return RuleMatch(
            message=f"{name} {now:.2f} tokens instead of {then:.2f}. With {requests:.0f} requests, this may be "
            f"chance: {more}.",
            evidence=(tell("requests", requests),),
            loss=0.0,
        )
    return None


def _list_suspects(case: PoolCase) -> Iterator[tuple[str, float | None, float | None, float]]:
    window, good = case.window, case.good
    if good is not None and window.counters.spec.num_drafts:
        yield "A draft gives", window.acceptance_length, good.acceptance_length, _FELL
    yield "A step gives", window.tokens_per_step, case.expected.yardstick.break_even, 0.0


RULES = (
    DiagnosisRule("pools-swapped", _find_pools_swapped),
    DiagnosisRule("plain-pool-drafts", _find_plain_pool_drafts),
    DiagnosisRule("k-changed", _find_k_changed),
    DiagnosisRule("revisions-differ", _find_revisions_differ),
    DiagnosisRule("pools-unlike", _find_pools_unlike),
    DiagnosisRule("p99-worse", _find_p99_worse),
    DiagnosisRule("change-unproven", _find_change_unproven),
)
