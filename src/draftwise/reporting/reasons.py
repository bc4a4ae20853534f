"""Why a comparison has its verdict, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from draftwise.core import Reason, ReasonCode

__all__ = ["describe_reason"]

_BLIND = 2.0
"""Detectable gain from which the spread itself is not known: two repetitions under load say nothing of the third."""
_NOTHING = 100.0
"""From which it is no number that anybody could use."""
_Values = Mapping[str, Any]


def describe_reason(reason: Reason | None) -> str:
    """Return a reason as part of a sentence, with the prompts that lose and the number of those that it rests on.

    Empty for a comparison that was not judged.
    """
    if reason is None:
        return ""
    text = _describe(reason)
    if reason.losers:
        text += f" ({reason.losers})"
    return text if reason.num_prompts is None else f"{text} ({reason.num_prompts} prompts)"


def _describe(reason: Reason) -> str:
    if reason.detail is None:
        return _WORDS[reason.code](reason.values)
    return f"{_WORDS[reason.code](reason.values)} {_describe(reason.detail)}"


def _say_slow_server(found: _Values) -> str:
    return (
        f"the server of {found['arm']} takes {found['step']:.1f}x as long as the other one for a decoding step and "
        f"{found['first']:.1f}x to the first token, in which drafting has no part: is it slow itself? See to it, or "
        f"measure it for {found['wanted_s'] / 60:.0f} minutes instead of {found['seen_s'] / 60:.1f}"
    )


def _say_change(found: _Values, *, gains: bool) -> str:
    if found["promise"]:
        return f"{'more' if gains else 'fewer'} requests within the SLO"
    return "faster" if gains else "slower"


def _say_gain(found: _Values) -> str:
    bound = "no change" if found["promise"] else f"{1 + found['margin']:.2f}"
    return f"{_say_change(found, gains=True)}, with the whole interval above {bound}"


def _say_loss(found: _Values) -> str:
    loss = _say_change(found, gains=False)
    if found["promise"]:
        return f"{loss}, with the whole interval below no change"
    return f"{loss}, with the whole interval below 1 and the estimate beyond {found['margin']:.0%}"


def _say_open(found: _Values) -> str:
    text, detectable = f"the interval does not clear {1 + found['margin']:.2f}", found["detectable"]
    if detectable is None:
        return f"{text}; more prompts{' or repetitions' if found['can_repeat'] else ''} would narrow it"
    if detectable > _BLIND:
        shown = f"only {detectable:.1f}x or more" if detectable < _NOTHING else "no gain whatever"
        return f"{text}: so few turns would have shown {shown}; measure more repetitions"
    more = " or ".join(_list_remedies(found))
    remedy = f"{more} would settle it" if more else "it lies so close to a limit that more would hardly help"
    return f"{text}; a gain of {detectable:.2f}x would have been found 8 times in 10; {remedy}"


def _list_remedies(found: _Values) -> Iterator[str]:
    if found["prompts"]:
        yield f"about {found['prompts']} more prompts"
    if found["repetitions"]:
        yield f"{found['repetitions']} repetitions instead of {found['done']}"


_WORDS: Mapping[ReasonCode, Callable[[_Values], str]] = {
    ReasonCode.FEW_PROMPTS: "rests on {count} prompts; at least {fewest} are needed".format_map,
    ReasonCode.DISTURBED: (
        "{count} of {of} pairs of turns were disturbed and count for nothing ({why}): {left:.0%} of them must be left"
    ).format_map,
    ReasonCode.UNSETTLED: "{message} ({code})".format_map,
    ReasonCode.FASTER_AT_TIMES: (
        "{arm} alone was far faster in {count} of the turns set aside than in those that count: was it slow there?"
    ).format_map,
    ReasonCode.SLOW_SERVER: _say_slow_server,
    ReasonCode.PACE_CHANGED: (
        "the speed-up changed in the course of the run, from {lowest:.2f}x in one stretch of it to {highest:.2f}x in "
        "another: one of the two servers was slower for a while; measure again"
    ).format_map,
    ReasonCode.MEASURES_DISAGREE: lambda found: (
        f"{' and '.join(found['better'])} better, {' and '.join(found['worse'])} worse"
    ),
    ReasonCode.MAY_BE_CHANCE: (
        "alone it would count, but with all comparisons of the run taken together p is {p:.2g}; more prompts would tell"
    ).format_map,
    ReasonCode.NOT_TRUSTED: lambda found: (
        f"{_say_change(found, gains=found['gains'])}, but not to be trusted: {found['code']} (see the findings)"
    ),
    ReasonCode.GAIN: _say_gain,
    ReasonCode.LOSS: _say_loss,
    ReasonCode.GAIN_WITH_DAMAGE: lambda found: f"{_say_change(found, gains=True)} on the whole, but",
    ReasonCode.MIXED_WORKLOAD: (
        "a mixed workload: P50 of the {of} is {half:.2f}x the baseline's, P99 {slowest:.2f}x"
    ).format_map,
    ReasonCode.SLOW_TAIL: "P99 of the time per token is {ratio:.2f}x the baseline's".format_map,
    ReasonCode.LATE_FIRST_TOKEN: "the first token comes {ratio:.2f}x as late".format_map,
    ReasonCode.LATE_FIRST_TOKENS_TAIL: "P99 of the time to the first token is {ratio:.2f}x the baseline's".format_map,
    ReasonCode.ANSWERS_NOT_FASTER: lambda _: (
        "the server puts out more, but the time per token of a request does not fall with it"
    ),
    ReasonCode.EQUAL: "equal within {margin:.0%}: no difference worth a change".format_map,
    ReasonCode.OPEN: _say_open,
}
