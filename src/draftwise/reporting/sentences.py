"""A decision in one sentence to send to a colleague, and the reason of each verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import (
    Band,
    Comparison,
    Condition,
    Crossover,
    Decision,
    Reason,
    ReasonCode,
    Recommendation,
    Scope,
    Verdict,
)
from draftwise.core.comparison import ALL
from draftwise.core.finding import join_names
from draftwise.knowledge.stored import read_data
from draftwise.reporting.units import (
    LATE_FIRST_TOKEN,
    LOAD_UNITS,
    count_drawn,
    count_load,
    count_prompts,
    describe_load,
    format_load,
    format_ratio,
    format_stretch,
)

_SPLIT = "no single setting pays for all of it, so split the traffic"
_MEMORY = re.compile(r", \d+ MiB\b.*")
"""What the driver tells of a GPU behind its name."""


def describe_decision(decision: Decision) -> str:
    """Return the sentence: the bands of every sweep over load, and the fastest candidates elsewhere."""
    return "; ".join(list_clauses(decision)) + "."


def list_clauses(decision: Decision) -> list[str]:
    """Return the clauses of the sentence, without the full stop."""
    if not decision.comparisons:
        disturbed = any(finding.code == "disturbed-blocks" for finding in decision.findings)
        nothing = (
            "Every paired block was disturbed" if disturbed else ("No workload has been measured on both sides yet")
        )
        return [f"{nothing}, so there is nothing to decide"]
    where = _describe_place(decision.scope)
    if any(each.verdict is Verdict.ADOPT for each in decision.comparisons):
        clauses = [clause for each in decision.recommendations for clause in _recommend(each, decision)]
    else:
        clauses = [_describe_no_gain(decision)]
    first = f"{where}, {clauses[0]}" if where else clauses[0]
    return [f"{first[0].upper()}{first[1:]}", *clauses[1:], *_doubt(decision)]


def _doubt(decision: Decision) -> Iterator[str]:
    """Yield the clauses that name adopted candidates of which something is not shown."""
    adopted = {each.candidate for recommendation in decision.recommendations for each in recommendation.adopted}
    if names := [name for name in decision.scope.uncompared if name in adopted]:
        yield f"outputs of {join_names(names, most=4)} were not compared with the baseline's"
    if names := [name for name in decision.scope.unproven if name in adopted]:
        yield f"speculation is not proven for {join_names(names, most=4)}, as no counters of its server can be read"


def _describe_place(scope: Scope) -> str:
    """Return the machine and the model. What is not known is left out."""
    machines = Counter(_MEMORY.sub("", each) for each in scope.hardware)
    machine = join_names(
        [name if count == 1 else f"{count}x {name}" for name, count in machines.items()] or [""], most=4
    )
    parts = [f"on {machine}" if machine else "", f"with {scope.model}" if scope.model else ""]
    return " ".join(filter(None, parts))


def _recommend(recommendation: Recommendation, decision: Decision) -> Iterator[str]:
    """Yield the clauses of one condition or sweep. The first says which it is, where there are several."""
    sweep = bool(recommendation.bands)
    clauses = _describe_sweep(recommendation, decision.baseline) if sweep else _describe_condition(recommendation)
    condition = recommendation.comparisons[0].condition
    several = len({each.condition.temperature for each in decision.comparisons}) > 1
    parts = [
        *([] if sweep else [_name_load(condition)]),
        *([f"at temperature {condition.temperature:g}"] if several or condition.temperature else []),
    ]
    place = " ".join(parts)
    yield f"{place}, {clauses[0]}" if place else clauses[0]
    yield from clauses[1:]


def _name_load(condition: Condition) -> str:
    """Return a load with its preposition."""
    if condition.concurrency == 1:
        return describe_load(condition)
    return f"{'under' if condition.place is None else 'at'} {describe_load(condition)}"


def _describe_condition(recommendation: Recommendation) -> list[str]:
    won = {each.workload: each for each in recommendation.adopted}
    names = list(dict.fromkeys(each.workload for each in recommendation.comparisons if each.workload != ALL))
    by_candidate: dict[str, list[str]] = {}
    for name in names:
        if name in won:
            by_candidate.setdefault(won[name].candidate, []).append(f"{name} {_tell_gain(won[name])}")
    parts = [f"{candidate} answers {join_names(gains)}" for candidate, gains in by_candidate.items()]
    open_ones = {each.workload for each in recommendation.comparisons if _is_open(each)}
    if lost := [name for name in names if name not in won and name not in open_ones]:
        there = [each for each in recommendation.comparisons if each.workload in lost]
        parts.append(f"leave {join_names(lost)} plain{_count_shown(there)}")
    if undecided := [name for name in names if name not in won and name in open_ones]:
        stay = "is not decided yet and stays" if len(undecided) == 1 else "are not decided yet and stay"
        parts.append(f"{join_names(undecided)} {stay} plain")
    if len(names) > 1:
        best = won.get(ALL)
        whole = "" if best is None else f"one setting for all of it: {best.candidate}, {format_ratio(best.deciding)}"
        parts.append(whole or _SPLIT)
    return parts


def _count_shown(comparisons: Sequence[Comparison]) -> str:
    """Return in how many comparisons it is shown that nothing is gained, and how many are open."""
    shown = sum(each.verdict.stays_plain for each in comparisons)
    unsettled = sum(each.verdict is Verdict.INCONCLUSIVE for each in comparisons)
    more = f", {unsettled} open" if unsettled else ""
    return f" (no gain in {shown} of {len(comparisons)} comparisons{more})" if shown and len(comparisons) > 1 else ""


def _is_open(each: Comparison) -> bool:
    """Return whether a candidate looks faster, and something but its speed keeps that from being a verdict."""
    return each.verdict is Verdict.INCONCLUSIVE and each.deciding.low > 1


def _tell_gain(each: Comparison) -> str:
    """Return a gain with what it rests on: `1.48x as fast (1.41-1.55, 64 prompts)`."""
    rests = [each.deciding.span, count_drawn(each), *_tell_log(each), *_tell_guards(each), *_tell_delay([each])]
    return f"{each.deciding.value:.2f}x as fast ({', '.join(rests)})"


def _tell_log(each: Comparison) -> Iterator[str]:
    """Yield the gain on the prompts of the log themselves, where it is known."""
    if each.log_itself is not None:
        yield f"these {each.population} prompts themselves {each.log_itself.span}"


def _tell_guards(each: Comparison) -> Iterator[str]:
    """Yield what a guard had no power to tell: it decides nothing, and is said."""
    for guard in each.guards:
        if guard.answer == "no power":
            yield f"{guard.of} not judged"


def _tell_delay(comparisons: Iterable[Comparison]) -> Iterator[str]:
    """Yield by how much first tokens come later, where that is much and shown."""
    shown = (each.ttft.value for each in comparisons if each.ttft is not None and each.ttft.low > 1)
    worst = max(shown, default=0.0)
    if worst >= LATE_FIRST_TOKEN:
        yield f"first token {worst - 1:.0%} later"


def _describe_sweep(recommendation: Recommendation, baseline: str) -> list[str]:
    told = {
        workload: _Stretches(recommendation, workload, baseline)
        for workload in dict.fromkeys(band.workload for band in recommendation.bands)
    }
    clauses = [each.describe() for name, each in told.items() if name != ALL and each.pays]
    if lost := [name for name, each in told.items() if name != ALL and not each.pays]:
        clauses.append(f"leave {join_names(lost)} plain at every load measured")
    if ALL in told and clauses:
        whole = told[ALL]
        clauses += [f"all of it together: {whole.describe_shortly()}" if whole.pays else _SPLIT]
    return clauses


@dataclass(frozen=True, slots=True)
class _Stretches:
    """What to run at which load on one workload of a sweep."""

    recommendation: Recommendation
    workload: str
    baseline: str

    @property
    def bands(self) -> list[Band]:
        return [band for band in self.recommendation.bands if band.workload == self.workload]

    @property
    def pays(self) -> bool:
        """Whether a candidate is set at any load."""
        return any(band.setting != self.baseline for band in self.bands)

    def describe(self) -> str:
        """Return the bands with their gains, lightest load first."""
        bands = self.bands
        following = [*(band.setting for band in bands[1:]), None]
        return ", then ".join(self._describe_band(band, after) for band, after in zip(bands, following, strict=True))

    def _describe_band(self, band: Band, after: str | None) -> str:
        end = self._tell_end(band, after)
        if band.setting == self.baseline:
            return f"{'plain' if band.above else f'leave {self.workload} plain'}{end.removeprefix(',')}"
        answers = f" answers {self.workload}" if not band.above else ""
        return f"{band.setting}{answers} {self._tell_gains(band)}{end}"

    def _tell_gains(self, band: Band) -> str:
        """Return the gains of a band's setting at its lightest and its heaviest load, and what they rest on."""
        found = sorted(self._find_points(band), key=lambda point: point[0])
        (lightest, first), (heaviest, last) = found[0], found[-1]
        gains = [f"{first.deciding.value:.2f}x as fast ({first.deciding.span})"]
        if last is not first:
            gains.append(f"at {lightest:g} and {last.deciding.value:.2f}x ({last.deciding.span})")
        rests = [count_drawn(first), *_tell_guards(first), *_tell_delay(each for _, each in found)]
        return f"{' '.join(gains)} at {count_load(heaviest, band.axis)} ({', '.join(rests)})"

    def _find_points(self, band: Band) -> Iterator[tuple[float, Comparison]]:
        for each in self.recommendation.comparisons:
            place = each.condition.place
            mine = (each.workload, each.candidate) == (band.workload, band.setting)
            if mine and place is not None and band.above < place[1] <= band.up_to:
                yield place[1], each

    def _tell_end(self, band: Band, after: str | None) -> str:
        """Return up to which load a band goes, with the interval of its crossover where the baseline follows."""
        if math.isinf(band.up_to):
            return ", at every load measured" if not band.above else ""
        text = f", up to {format_load(band.up_to, band.axis)}"
        crossing = self._find_crossing(band.setting) if after == self.baseline else None
        if crossing is None or crossing.value is None:
            return text
        end = format_load(crossing.value, crossing.axis)
        interval = format_stretch(crossing.low, crossing.high, crossing.axis)
        is_sharp = interval == f"{end}-{end}"
        if band.up_to == (math.floor(crossing.value) if band.axis == "concurrency" else crossing.value):
            return text if is_sharp else f"{text} ({interval})"
        hurdle = self._find_hurdle(band)
        if hurdle is not None and hurdle[0] < crossing.value:
            return f"{text} (at {format_load(hurdle[0], band.axis)} {describe_reason(hurdle[1].reason)})"
        # The verdicts end before the estimate does: at some load between no difference was shown.
        return f"{text} (the gain ends at about {end}{'' if is_sharp else f', {interval}'})"

    def _find_hurdle(self, band: Band) -> tuple[float, Comparison] | None:
        """Return the next load and its comparison if the setting gains there, but at a price or with a doubt."""
        beyond = self._find_points(replace(band, above=band.up_to, up_to=math.inf))
        nearest = min(beyond, key=lambda point: point[0], default=None)
        return nearest if nearest and nearest[1].verdict in (Verdict.MIXED, Verdict.BLOCKED) else None

    def _find_crossing(self, candidate: str) -> Crossover | None:
        every = self.recommendation.crossovers
        return next((e for e in every if (e.workload, e.candidate) == (self.workload, candidate)), None)

    def describe_shortly(self) -> str:
        """Return the bands without their gains: `ngram k=5 up to 4, ngram k=3 up to 19, plain above`."""
        bands = self.bands
        if len(bands) == 1:
            return f"{bands[0].setting} at every load measured"
        parts = (
            f"{'plain' if band.setting == self.baseline else band.setting} "
            f"{'above' if math.isinf(band.up_to) else f'up to {format_load(band.up_to, band.axis)}'}"
            for band in bands
        )
        return f"{', '.join(parts)} ({LOAD_UNITS[bands[0].axis]})"


def describe_setting(band: Band, baseline: str) -> str:
    """Return what to run over which range of loads: `eagle3 k=3 up to 19 concurrent requests`."""
    name = "plain decoding" if band.setting == baseline else band.setting
    if math.isinf(band.up_to):
        return f"{name} above {count_load(band.above, band.axis)}" if band.above else f"{name} at every load measured"
    above = f"above {format_load(band.above, band.axis)} and " if band.above else ""
    return f"{name} {above}up to {count_load(band.up_to, band.axis)}"


def _describe_no_gain(decision: Decision) -> str:
    single = [each for each in decision.comparisons if each.workload != ALL]
    names, several = list(dict.fromkeys(each.workload for each in single)), len({c.condition for c in single}) > 1
    best = max(single, key=lambda each: each.deciding.value)
    where = f"{best.workload} at {best.condition.label}" if several else best.workload
    return (
        f"leave {join_names(names)} plain{' at every load measured' if several else ''}: no candidate "
        f"qualified{_count_shown(single)}. The fastest was {best.candidate} on {where} with "
        f"{format_ratio(best.deciding)} on {count_drawn(best)} ({best.verdict}: {describe_reason(best.reason)})"
    )


_BLIND = 2.0
"""Detectable gain from which the spread itself is not known: two repetitions under load say nothing of the third."""
_NOTHING = 100.0
"""Smallest value that is useless as a number."""
_Values = Mapping[str, Any]


def describe_reason(reason: Reason | None) -> str:
    """Return a reason as part of a sentence, with the prompts that lose and the number of prompts behind it.

    Empty for a comparison that was not judged.
    """
    if reason is None:
        return ""
    text = _describe(reason)
    if reason.losers:
        text += f" ({reason.losers})"
    return text if reason.num_prompts is None else f"{text} ({reason.num_prompts} prompts)"


def _describe(reason: Reason) -> str:
    say = _SAYERS.get(reason.code) or read_data("verdict_reasons")[reason.code].format_map
    said = say(reason.values)
    return said if reason.detail is None else f"{said} {_describe(reason.detail)}"


def _say_slow_server(found: _Values) -> str:
    if found.get("alike"):
        return (
            f"the first token of {found['arm']} takes {found['first']:.1f}x as long as well, and drafting shortens no "
            "first token. So that server may be slow in all it does, and the gain may be no more than that. Check it, "
            "or measure again at another time"
        )
    if found["step"] is None:
        return (
            f"{found['arm']} only begins later: its first token takes {found['first']:.1f}x as long, but its decoding "
            "is not slower. Drafting does not do that. Check what stands in front of that server, such as a network, a "
            "gateway, or a proxy that holds streams back"
        )
    return (
        f"a decoding step on the server of {found['arm']} takes {found['step']:.1f}x as long as on the other one, "
        f"and the first token {found['first']:.1f}x. Drafting affects neither, so the server itself may be slow. "
        f"Check it, or measure it for {found['wanted_s'] / 60:.0f} minutes instead of {_tell_time(found['seen_s'])}"
    )


def _tell_time(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.1f}"


def _say_pace(found: _Values) -> str:
    when = "over the run" if found["share"] is None else f"after {found['share']:.0%} of it"
    when = "part of the time" if found.get("spells") else "since its warm-up" if found["share"] == 0 else when
    change = f"a decoding step of {found['arm']} took {found['ratio']:.2f}x as long {when}"
    if found.get("relative"):
        return f"compared with the other server's, {change}. Drafting cannot explain that: measure again"
    return f"{change}, but the other server's did not. Drafting cannot explain that: measure again"


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
    return f"{loss}, with the whole interval below {1 - found['margin']:.2f}"


def _say_open(found: _Values) -> str:
    text, detectable = f"the interval does not clear {1 + found['margin']:.2f}", found["detectable"]
    if better := found.get("left"):
        text = f"left out because time was short and {better} was ahead: {text}"
    if detectable is None:
        return f"{text}; more prompts{' or repetitions' if found['can_repeat'] else ''} would narrow it"
    if detectable > _BLIND:
        shown = f"only {detectable:.1f}x or more" if detectable < _NOTHING else "no gain at all"
        return f"{text}: with these turns, the run would have shown {shown}; measure more repetitions"
    more = " or ".join(_list_remedies(found))
    remedy = f"{more} would settle it" if more else "it lies too close to a limit for more prompts to help"
    return f"{text}; a gain of {detectable:.2f}x would have been found 8 times in 10; {remedy}"


def _list_remedies(found: _Values) -> Iterator[str]:
    if found["prompts"]:
        yield f"about {found['prompts']:,} more prompts"
    if found["repetitions"]:
        yield f"{found['repetitions']} repetitions instead of {found['done']}"


_SAYERS: Mapping[ReasonCode, Callable[[_Values], str]] = {
    ReasonCode.FEW_PROMPTS: (
        lambda found: f"rests on {count_prompts(found['count'])}; at least {found['fewest']} are needed"
    ),
    ReasonCode.SLOW_SERVER: _say_slow_server,
    ReasonCode.PACE_CHANGED: _say_pace,
    ReasonCode.NO_GAIN: lambda found: (
        f"{('slower' if found.get('slower') else 'not faster')}: the interval rules out a gain of "
        f"{found['margin']:.0%} or more"
    ),
    ReasonCode.MEASURES_DISAGREE: lambda found: (
        f"{' and '.join(found['better'])} better, {' and '.join(found['worse'])} worse"
    ),
    ReasonCode.NOT_TRUSTED: lambda found: (
        f"{_say_change(found, gains=found['gains'])}, but the measurement is in doubt: {found['code']} (see the "
        "findings)"
    ),
    ReasonCode.GAIN: _say_gain,
    ReasonCode.LOSS: _say_loss,
    ReasonCode.GAIN_WITH_DAMAGE: lambda found: f"{_say_change(found, gains=True)} overall, but",
    ReasonCode.ANSWERS_NOT_FASTER: lambda found: (
        "the server outputs less, but its requests take no longer, so something delays them on their way to it"
        if found.get("slower")
        else "the server outputs more, but the time per token of a request does not fall with it"
    ),
    ReasonCode.OPEN: _say_open,
}
"""Reasons whose words depend on more than values; the others are rows of `data/verdict_reasons.json`."""
