"""Finds the setting that pays at each load: a sweep's crossovers, the bands between them, and a k schedule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, groupby, takewhile

from draftwise.core import (
    Arm,
    Band,
    Comparison,
    Crossover,
    Finding,
    InvalidSetup,
    Run,
    RunContext,
    Schedule,
    SingleSetting,
    SpecConfig,
    Verdict,
)
from draftwise.core.comparison import ALL
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.comparisons import Estimates
from draftwise.knowledge.messages import text_of
from draftwise.knowledge.vllm import history
from draftwise.plan.schedule.draft_lengths import KEY, join_ranges, judge_schedule, make_schedule_keys
from draftwise.statistics import LoadPoint, find_crossing

SweepKey = tuple[str, str, float, str]
"""Workload, candidate, temperature, and axis of the load."""


Point = tuple[float, dict[str, Comparison]]
"""A load, and the comparisons under it by candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """Results of a run's load sweeps."""

    crossovers: tuple[Crossover, ...]
    bands: tuple[Band, ...]
    single_settings: tuple[SingleSetting, ...]
    schedules: tuple[Schedule, ...]
    findings: tuple[Finding, ...]


def divide_loads(
    run: Run, estimates: Iterable[Estimates], comparisons: Sequence[Comparison], *, margin: float
) -> Sweeps:
    """Return each candidate's crossover, and what to run at each load or at all loads.

    Args:
        margin: minimum gain that justifies a change of configuration.
    """
    baseline, points = run.plan.arms[0].name, gather_load_points(estimates)
    crossovers = find_crossovers(points, comparisons)
    bands = find_bands(comparisons, crossovers, baseline, margin=margin)
    return Sweeps(
        crossovers=crossovers,
        bands=bands,
        single_settings=find_single_settings(comparisons, bands, baseline),
        schedules=propose_schedules(run, bands, comparisons),
        findings=tuple(find_rises(points)),
    )


def gather_load_points(estimates: Iterable[Estimates]) -> Mapping[SweepKey, list[LoadPoint]]:
    """Return the deciding ratio of every measured load by sweep, lightest load first. Includes pooled rows."""
    points: dict[SweepKey, list[LoadPoint]] = {}
    for each in estimates:
        if (place := each.cell.condition.place) is not None:
            axis, load = place
            sweep = (each.cell.workload, each.cell.candidate, each.cell.condition.temperature, axis)
            points.setdefault(sweep, []).append(LoadPoint(load=load, estimate=each.ratios.deciding))
    return {sweep: sorted(line, key=lambda point: point.load) for sweep, line in points.items()}


def find_crossovers(
    points: Mapping[SweepKey, Sequence[LoadPoint]], comparisons: Sequence[Comparison]
) -> tuple[Crossover, ...]:
    """Return the crossover of every sweep over two or more loads, by the deciding ratio of each load."""
    found = []
    for sweep, line in points.items():
        crossing = find_crossing(line) if len(line) > 1 else None
        if crossing is not None:
            workload, candidate, temperature, axis = sweep
            found.append(
                Crossover(
                    workload=workload,
                    candidate=candidate,
                    temperature=temperature,
                    axis=axis,
                    value=crossing.value,
                    low=crossing.low,
                    high=crossing.high,
                    adopt_below=_adopt_below(sweep, comparisons),
                )
            )
    return tuple(found)


def find_rises(points: Mapping[SweepKey, Sequence[LoadPoint]]) -> Iterator[Finding]:
    """Yield a finding per sweep whose ratio rises with load beyond chance. A crossover assumes that the ratio falls."""
    for (workload, candidate, _, axis), line in points.items():
        known = [(point.load, point.estimate.interval()) for point in line]
        rises = (pair for pair in combinations(known, 2) if pair[0][1].high < 1 < pair[1][1].low)
        if workload != ALL and (rise := next(rises, None)) is not None:
            (light, slower), (heavy, faster) = rise
            yield Finding.warning(
                "gain-returns",
                f"{candidate} is slower on {workload} at {light:g} ({slower.span}) and faster again at "
                f"{heavy:g} ({faster.span}, {axis}). No single load marks where it stops paying.",
                where=candidate,
                fix=text_of("gain-rises-fix"),
            )


def _adopt_below(sweep: SweepKey, comparisons: Sequence[Comparison]) -> float | None:
    """Return the largest load up to which every verdict is adopt, None where already the smallest is not."""
    workload, candidate, temperature, axis = sweep
    verdicts = sorted(
        (place[1], each.verdict)
        for each in comparisons
        if (each.workload, each.candidate, each.condition.temperature) == (workload, candidate, temperature)
        and (place := each.condition.place) is not None
        and place[0] == axis
    )
    adopted = list(takewhile(lambda point: point[1] is Verdict.ADOPT, verdicts))
    return adopted[-1][0] if adopted else None


def find_bands(
    comparisons: Iterable[Comparison], crossovers: Sequence[Crossover], baseline: str, *, margin: float
) -> tuple[Band, ...]:
    """Return the bands of every workload and temperature measured at two or more loads.

    Each load gets an adopted candidate whose deciding ratio is within the margin of the best. If several are, the one
    that stays valid over most heavier loads wins. A candidate also stays while the best lies within its own interval,
    because a switch must be worth it, and across a load without a verdict.
    """
    bands: list[Band] = []
    for (workload, temperature, axis), points in _sweeps(comparisons).items():
        if len(points) > 1:
            place = (workload, temperature, axis)
            limits = {e.candidate: e for e in crossovers if (e.workload, e.temperature, e.axis) == place}
            settings = _fill(_choose(points, baseline, margin), points, baseline)
            bands += _merge(*place, [load for load, _ in points], settings, limits, baseline)
    return tuple(bands)


def _sweeps(comparisons: Iterable[Comparison]) -> dict[tuple[str, float, str], list[Point]]:
    """Return the points of every sweep over load, lightest load first."""
    found: dict[tuple[str, float, str], dict[float, dict[str, Comparison]]] = {}
    for each in comparisons:
        if (place := each.condition.place) is not None:
            axis, load = place
            sweep = found.setdefault((each.workload, each.condition.temperature, axis), {})
            sweep.setdefault(load, {})[each.candidate] = each
    return {key: sorted(points.items(), key=lambda point: point[0]) for key, points in found.items()}


def _choose(points: Sequence[Point], baseline: str, margin: float) -> list[str]:
    """Return the setting at each load."""
    adopted = [
        {name: each.deciding for name, each in here.items() if each.verdict is Verdict.ADOPT} for _, here in points
    ]
    best = [max((ratio.value for ratio in here.values()), default=1.0) for here in adopted]
    good = [
        {name: ratio.value for name, ratio in here.items() if ratio.value * (1 + margin) >= most}
        for here, most in zip(adopted, best, strict=True)
    ]
    settings: list[str] = []
    for i, here in enumerate(adopted):
        before = settings[-1] if settings else baseline
        if before in here and (before in good[i] or here[before].high >= best[i]):
            settings.append(before)
        else:
            settings.append(max(good[i], key=partial(_rank, good[i:]), default=baseline))
    return settings


def _rank(good: Sequence[Mapping[str, float]], name: str) -> tuple[int, float]:
    """Return over how many loads a candidate can be kept from the first on, and its ratio there."""
    return sum(1 for _ in takewhile(lambda here: name in here, good)), good[0][name]


def _fill(settings: Sequence[str], points: Sequence[Point], baseline: str) -> list[str]:
    """Return the settings with a candidate across loads where it was not told apart, between two where it wins."""
    filled = list(settings)
    for i in range(1, len(settings) - 1):
        before = filled[i - 1]
        after = next((each for each in settings[i + 1 :] if each != baseline), baseline)
        here = points[i][1].get(before)
        if filled[i] == baseline and before == after != baseline and here is not None and _may_gain(here):
            filled[i] = before
    return filled


def _may_gain(comparison: Comparison) -> bool:
    return comparison.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_BEST) and comparison.deciding.value >= 1


def _merge(
    workload: str,
    temperature: float,
    axis: str,
    loads: Sequence[float],
    settings: Sequence[str],
    limits: Mapping[str, Crossover],
    baseline: str,
) -> Iterator[Band]:
    pairs = groupby(zip(loads, settings, strict=True), key=lambda pair: pair[1])
    stretches = [(setting, [load for load, _ in group]) for setting, group in pairs]
    above = 0.0
    for i, (setting, mine) in enumerate(stretches):
        up_to = math.inf
        if i + 1 < len(stretches):
            following, theirs = stretches[i + 1]
            last, first = mine[-1], theirs[0]
            value = _value(limits.get(setting), last) if following == baseline else math.sqrt(last * first)
            up_to = _end(axis, last, first, value)
        yield Band(workload=workload, temperature=temperature, axis=axis, above=above, up_to=up_to, setting=setting)
        above = up_to


def _value(crossover: Crossover | None, last: float) -> float:
    """Return the estimated crossover; without one, the last load at which the candidate was shown to pay."""
    return last if crossover is None or crossover.value is None else crossover.value


def _end(axis: str, last: float, first: float, value: float) -> float:
    """Return where a band ends between the last load at which it won and the first at which another did.

    `value` is the estimated crossover where the baseline follows, else the middle on a logarithmic scale.
    """
    end = min(max(value, last), first)
    if axis == "concurrency":
        return float(max(last, min(math.floor(end), first - 1)))
    return end


def find_single_settings(
    comparisons: Iterable[Comparison], bands: Sequence[Band], baseline: str
) -> tuple[SingleSetting, ...]:
    """Return the best single setting for all loads of every sweep with several bands.

    A gain counts only where it was adopted, a loss everywhere, and all loads count equally. A candidate that a validity
    check blocked at any load is not offered.
    """
    found = []
    for (workload, temperature, axis), points in _sweeps(comparisons).items():
        place = (workload, temperature, axis)
        mine = [band for band in bands if (band.workload, band.temperature, band.axis) == place]
        if len(mine) > 1:
            setting = max(_rate_settings(points, baseline).items(), key=lambda pair: pair[1])[0]
            found.append(
                SingleSetting(
                    workload=workload,
                    temperature=temperature,
                    axis=axis,
                    setting=setting,
                    gains={load: (_gain(here, setting), _gain(here, _set_at(load, mine))) for load, here in points},
                )
            )
    return tuple(found)


def _rate_settings(points: Sequence[Point], baseline: str) -> dict[str, float]:
    """Return the mean over all loads of the logarithm of what each setting gains; of the baseline it is 0."""
    everywhere = set.intersection(*(set(here) for _, here in points))
    rates = {baseline: 0.0}
    for name in sorted(everywhere):
        mine = [here[name] for _, here in points]
        if all(each.verdict is not Verdict.BLOCKED for each in mine):
            credited = (
                each.deciding.value if each.verdict is Verdict.ADOPT else min(1.0, each.deciding.value) for each in mine
            )
            rates[name] = sum(map(math.log, credited)) / len(mine)
    return rates


def _gain(here: Mapping[str, Comparison], setting: str) -> float:
    """Return the deciding ratio of a setting at a load; that of the baseline is 1."""
    return here[setting].deciding.value if setting in here else 1.0


def _set_at(load: float, bands: Sequence[Band]) -> str:
    return next(band.setting for band in bands if band.above < load <= band.up_to)


def propose_schedules(run: Run, bands: Sequence[Band], comparisons: Sequence[Comparison] = ()) -> tuple[Schedule, ...]:
    """Return a schedule for every concurrency sweep whose bands differ only in k, if its server supports schedules.

    Concurrency stands for batch size, because a closed loop decodes nearly all requests in flight. No schedule is
    proposed if it would run plain decoding at a load where a candidate was measured to be faster but not adopted: it
    would contradict the measurement.
    """
    baseline = run.plan.arms[0].name
    against = {
        (each.workload, each.condition.temperature)
        for each in comparisons
        for band in bands
        if (band.workload, band.temperature, band.setting) == (each.workload, each.condition.temperature, baseline)
        and each.verdict in (Verdict.BLOCKED, Verdict.INCONCLUSIVE, Verdict.NOT_BEST)
        and each.deciding.value > 1
        and (place := each.condition.place) is not None
        and place[0] == band.axis
        and band.above < place[1] <= band.up_to
    }
    of_streams = (band for band in bands if band.axis == "concurrency")
    sweeps = group_by(lambda band: (band.workload, band.temperature), of_streams)
    told = {place: each for place, each in sweeps.items() if place not in against}
    found = (_propose(run, workload, temperature, each) for (workload, temperature), each in told.items())
    return tuple(each for each in found if each is not None)


def _propose(run: Run, workload: str, temperature: float, bands: Sequence[Band]) -> Schedule | None:
    arms = {arm.name: arm for arm in run.plan.arms[1:]}
    specs = {name: arm.spec for name, arm in arms.items()}
    used = [spec for band in bands if (spec := specs.get(band.setting)) is not None]
    if len(bands) < 2 or not used or not _differ_in_k_alone(used):
        return None
    lengths = {name: spec.num_speculative_tokens or 0 for name, spec in specs.items() if spec}
    ends = ((band.up_to, lengths.get(band.setting, 0)) for band in bands)
    ranges = join_ranges(ends, first=int(bands[0].above) + 1)
    spec = SpecConfig.keep({**used[0].to_dict(), **make_schedule_keys(ranges)})
    arm = next(arms[band.setting] for band in bands if band.setting in arms)
    remarks = _judge(spec, run.context, arm)
    return None if remarks is None else Schedule(workload=workload, temperature=temperature, spec=spec, remarks=remarks)


def _differ_in_k_alone(specs: Sequence[SpecConfig]) -> bool:
    """Return whether one server could be all of them: k is known, and everything else is the same."""
    rest = {json.dumps({**spec.to_dict(), "num_speculative_tokens": 0}, sort_keys=True) for spec in specs}
    known = all(spec.num_speculative_tokens is not None and KEY not in spec.options for spec in specs)
    return known and len(rest) == 1


def _judge(spec: SpecConfig, context: RunContext, arm: Arm) -> tuple[str, ...] | None:
    """Return what the arm's server makes of it, None where it would not honour it."""
    server = context.server(arm.name)
    unmeasured = (
        "draftwise derived this schedule from the measurement and did not measure it. Measure it as a candidate first."
    )
    if server.version.get("engine") == "draftwise":
        return (unmeasured,)
    judged = None
    if server.release is not None:
        target = arm.setup.target or str(context.model.name)
        with suppress(InvalidSetup):  # the catalogue does not cover the release
            setup = replace(arm.setup, target=target, engine="vllm", engine_version=server.release, spec=spec)
            judged = judge_schedule(setup)
    if judged is None:
        since = history("spec_fields", KEY)[0].since
        return (unmeasured, f"It needs vLLM {since} or newer.")
    return (unmeasured, *judged.remarks) if judged.is_honoured else None
