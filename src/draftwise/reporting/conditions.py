"""States in words which command to type after a decision, its evidence, and when to undo it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import TYPE_CHECKING

from draftwise.core import (
    ClosedLoop,
    Condition,
    Decision,
    OpenLoop,
    Recommendation,
    Rollback,
    RollbackBasis,
    Run,
    Schedule,
)
from draftwise.core.finding import join_names
from draftwise.core.grouping import group_by
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP, TTFT_P99_S
from draftwise.reporting.sentences import describe_setting
from draftwise.reporting.tables import name_workload
from draftwise.reporting.units import LOAD_UNITS, count_load, describe_load, format_load

if TYPE_CHECKING:
    from draftwise.core import Decision, Omission, Scope, SingleSetting, UnmeasuredCell

_AXES = {signal.name: axis for axis, signal in LOAD_SIGNALS.items()}


_FLAGS = {
    "hardware": "--context hardware='8x H100'",
    "GPU and its driver": "--context hardware='8x H100, driver 570'",
    "model": "--context model=NAME",
    "precision": "--context precision=bfloat16",
    "serve command of every arm": "--context command.ARM='vllm serve ...' for each arm",
}
"""What tells a run the context that it cannot see, by its name in `Decision.missing_context`."""


def describe_missing(decision: Decision) -> str:
    """Return what context a run lacks and how to supply it; empty if it lacks none."""
    missing = decision.missing_context
    if not missing:
        return ""
    flags = [_FLAGS[name] for name in missing if name in _FLAGS]
    way_out = f" Add it with `draftwise report RUN` and {join_names(flags)}." if flags else ""
    return f"NOT EVIDENCE: the run lacks its {join_names(missing)}, so nobody can repeat or judge it.{way_out}"


def describe_rollback(decision: Decision) -> list[str]:
    """Return a sentence per workload, candidate and temperature; one of its signs is enough to roll back."""
    warm = _is_warm(decision)
    groups = group_by(lambda rule: (rule.workload, rule.arm, rule.condition.temperature), decision.rollback)
    return [
        f"{arm} on {name_workload(workload)}{f' at temperature {temperature:g}' if warm else ''}: "
        f"{'; '.join(_describe_ways(rules))}."
        for (workload, arm, temperature), rules in groups.items()
    ]


def describe_signs(decision: Decision) -> list[str]:
    """Return a sentence per candidate and workload with the first sign to roll back: tokens per step, if measured.

    Of several loads and temperatures, it is the one closest to its threshold.
    """
    rules = [rule for rule in decision.rollback if rule.metric == TOKENS_PER_STEP.name and rule.measured is not None]
    if not rules:
        return describe_rollback(decision)
    groups = group_by(lambda rule: (rule.arm, rule.workload), rules)
    several = Counter(arm for arm, _ in groups)
    closest = [min(mine, key=lambda rule: (rule.measured or 0.0) / rule.value) for mine in groups.values()]
    names = [f" on {name_workload(rule.workload)}" if several[rule.arm] > 1 else "" for rule in closest]
    return [
        f"Roll back {rule.arm}{name} if its tokens per step stay below {rule.value:.2f} for an hour "
        f"(measured: {rule.measured:.2f})."
        for rule, name in zip(closest, names, strict=True)
    ]


def _is_warm(decision: Decision) -> bool:
    """Return whether anything was measured at a temperature above 0, so that each statement must name its own."""
    return any(each.condition.temperature for each in decision.comparisons)


def _describe_ways(rules: Iterable[Rollback]) -> Iterator[str]:
    """Yield what to do upon which signs: to go back to the baseline, or on to another candidate."""
    signs = group_by(lambda rule: (rule.metric, rule.basis), rules).values()
    for other, those in group_by(lambda sign: sign[0].switch_to, signs).items():
        way = "roll back" if other is None else f"switch to {other}"
        yield f"{way} if, for an hour, {', or '.join(map(_describe_sign, those))}"


def describe_rule(rule: Rollback) -> str:
    """Return one rule as a sentence."""
    warm = f" at temperature {rule.condition.temperature:g}" if rule.condition.temperature else ""
    where = f"{name_workload(rule.workload)}{warm}"
    step = f"Roll back {rule.arm}" if rule.switch_to is None else f"Switch from {rule.arm} to {rule.switch_to}"
    return f"{step} on {where} if, for an hour, {_describe_sign([rule])}."


def _describe_sign(rules: Sequence[Rollback]) -> str:
    """Return one reading with its limit under each load, lightest first, and what the run measured."""
    first = rules[0]
    if first.basis is RollbackBasis.BAND_END:
        return f"there are more than {count_load(first.value, _AXES[first.metric])}"
    if first.basis is RollbackBasis.PROMISE:
        return f"P99 of the time to the first token stays over the promised {1e3 * first.value:g} ms"
    unit = LOAD_UNITS[first.condition.place[0]] if first.condition.place is not None else ""
    stretches = [_describe_stretch(rule, alone=len(rules) == 1) for rule in rules]
    limits = " and ".join(f"{_describe_limit(rule)}{where}" for rule, where in zip(rules, stretches, strict=True))
    limits += f" {unit}" if stretches[-1] else ""
    if first.metric == TTFT_P99_S.name:
        return f"P99 of the time to the first token stays over {limits} (baseline: {_measured(rules, 1e3)} ms)"
    if first.metric == TOKENS_PER_STEP.name:
        return f"tokens per step stay under {limits}, where the gain is gone (measured here: {_measured(rules)})"
    return f"output tokens per second stay under the baseline's {limits}"


def _measured(rules: Sequence[Rollback], scale: float = 1.0) -> str:
    values = [f"{scale * rule.measured:.3g}" for rule in rules if rule.measured is not None]
    return " to ".join(dict.fromkeys((values[0], values[-1])))


def _describe_limit(rule: Rollback) -> str:
    if rule.metric == TTFT_P99_S.name:
        return f"{1e3 * rule.value:.3g} ms"
    return f"{rule.value:.2f}" if rule.metric == TOKENS_PER_STEP.name else f"{rule.value:.0f}"


def _describe_stretch(rule: Rollback, *, alone: bool) -> str:
    """Return the loads of a rule, empty for all loads. After another band it begins where that one ends."""
    place = rule.condition.place
    if rule.loads is None or place is None:
        return ""
    above, up_to = rule.loads
    upper = "" if isinf(up_to) else f"up to {format_load(up_to, place[0])}"
    lower = f"above {format_load(above, place[0])}" if above and (alone or not upper) else ""
    return f" {' and '.join(filter(None, (lower, upper)))}" if lower or upper else ""


def describe_scope(scope: Scope) -> list[str]:
    """Return, line by line, what was measured; for anything else, the decision is a guess."""
    lines = {
        "traffic": ", ".join(_describe_traffic(name, scope) for name in scope.workloads),
        "load": _describe_loads(scope.conditions),
        "temperature": ", ".join(f"{value:g}" for value in scope.temperatures),
        "model": ", ".join(filter(None, (scope.model, scope.dtype))),
        "hardware": "; ".join(scope.hardware) or "unknown",
        "server": ", ".join(scope.servers),
        "outputs": f"not compared with the baseline's for {', '.join(scope.uncompared)}" if scope.uncompared else "",
        "speculation": f"not proven by counters for {', '.join(scope.unproven)}" if scope.unproven else "",
    }
    return [f"{name}: {text}" for name, text in lines.items() if text]


def _describe_traffic(workload: str, scope: Scope) -> str:
    repeats = f", {scope.repeats[workload]} of them repeats of others" if workload in scope.repeats else ""
    return f"{workload} ({scope.drawn.get(workload) or f'{scope.workloads[workload]} prompts'}{repeats})"


def _describe_loads(conditions: Sequence[Condition]) -> str:
    streams = sorted({each.load.concurrency for each in conditions if isinstance(each.load, ClosedLoop)})
    others = dict.fromkeys(each.load.label for each in conditions if not isinstance(each.load, ClosedLoop))
    parts = []
    if streams:
        points = "1 request at a time" if streams == [1] else f"{', '.join(map(str, streams))} requests in flight"
        parts.append(points)
    if others:
        kind = "arrivals at " if any(isinstance(each.load, OpenLoop) for each in conditions) else ""
        parts.append(kind + ", ".join(others))
    return "; ".join(parts)


def describe_single_settings(decision: Decision) -> list[str]:
    """Return, per sweep with several bands, the best single setting and its losses."""
    warm = _is_warm(decision)
    return [
        f"One setting for all loads of {name_workload(each.workload)}"
        f"{f' at temperature {each.temperature:g}' if warm else ''}: "
        f"{'plain decoding' if each.setting == decision.baseline else each.setting}, "
        f"{', '.join(_describe_gain(load, each) for load in each.gains)} ({LOAD_UNITS[each.axis]})."
        for each in decision.single_settings
    ]


def _describe_gain(load: float, single: SingleSetting) -> str:
    gain, best = single.gains[load]
    lost = f" ({1 - gain / best:.0%} less than with the bands)" if gain < best else ""
    return f"{gain:.2f}x at {format_load(load, single.axis)}{lost}"


def describe_unmeasured(decision: Decision) -> list[str]:
    """Return a line per omission, per shortfall of repetitions that cells share, and one for unused answers."""
    left_out = describe_omissions(decision.omissions)
    alike = group_by(lambda cell: (cell.workload, cell.condition.label, _describe_lack(cell)), decision.unmeasured)
    cells = [
        f"{join_names(cell.candidate for cell in group)}, {workload}, {label}: {lack}"
        for (workload, label, lack), group in alike.items()
    ]
    return [*left_out, *cells, *_describe_leftovers(decision)]


def describe_omissions(omissions: Sequence[Omission]) -> list[str]:
    """Return a line per omission: what and why. Candidates with the same reason share a line."""
    groups = group_by(lambda each: (each.what if each.candidate is None else "", each.reason), omissions)
    return [f"{_name_omitted(each)}: {reason}" for (_, reason), each in groups.items()]


def _name_omitted(omissions: Sequence[Omission]) -> str:
    names = [each.candidate for each in omissions if each.candidate is not None]
    return omissions[0].what if len(names) < 2 else f"candidates {join_names(names)}"


def _describe_lack(cell: UnmeasuredCell) -> str:
    if cell.needed is not None:
        return f"it may remember answers, so it needs {cell.needed} prompts that no other load uses"
    others = cell.blocks_each * (cell.planned - cell.repetitions)
    odd = f" and {cell.odd_blocks} of the {others} paired blocks of the others" if cell.odd_blocks else ""
    return f"{cell.repetitions} of {cell.planned} repetitions{odd}"


def _describe_leftovers(decision: Decision) -> Iterator[str]:
    if decision.num_unfinished:
        yield f"{decision.num_unfinished} answers of interrupted turns are on disk but do not count"


_FLAG = "--speculative-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedConfig:
    """A speculative config, and the traffic to run it for."""

    setting: str
    """Name of the candidate, or the candidates that it combines."""
    places: tuple[str, ...]
    """Traffic that it is for."""
    text: str
    """What to paste, after `vllm serve MODEL` or `draftwise serve MODEL`; empty if nobody told, as `remarks` say."""
    remarks: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The config and its traffic, as a heading."""
        return f"{self.setting}, for {'; '.join(self.places)}"


def list_actions(decision: Decision, run: Run) -> list[RecommendedConfig]:
    """Return every config that the decision adopts, then the engine's own equivalent schedules."""
    found: dict[str, dict[str, list[str]]] = {}
    for recommendation in decision.recommendations:
        for setting, workload, where in _list_places(recommendation, decision.baseline):
            found.setdefault(setting, {}).setdefault(where, []).append(name_workload(workload))
    settings = (_recommend(name, _join_places(places), run) for name, places in found.items())
    return [*settings, *_list_schedules(decision)]


def _recommend(candidate: str, places: tuple[str, ...], run: Run) -> RecommendedConfig:
    """Return a candidate's flag, else the command of its server, else what would make it known."""
    spec = next((arm.spec for arm in run.plan.arms if arm.name == candidate), None)
    text = run.context.server(candidate).command if spec is None else f"{_FLAG} '{spec.to_json()}'"
    told = shlex.quote(f"command.{candidate}=vllm serve ...")
    remark = (
        f"Nothing to paste for {candidate}: its server ran already, and nobody told how it was started. "
        f"Add its command with `draftwise report RUN --context {told}`."
    )
    return RecommendedConfig(setting=candidate, places=places, text=text or "", remarks=() if text else (remark,))


def _list_places(recommendation: Recommendation, baseline: str) -> Iterator[tuple[str, str, str]]:
    """Yield every candidate that is set, with the workload and the load that it is set for."""
    for band in recommendation.bands:
        if band.setting != baseline:
            stretch = describe_setting(band, baseline).removeprefix(f"{band.setting} ")
            yield band.setting, band.workload, f"{_tell_temperature(band.temperature)}, {stretch}"
    if not recommendation.bands:
        for each in recommendation.adopted:
            where = f"{_tell_temperature(each.condition.temperature)}, {describe_load(each.condition)}"
            yield each.candidate, each.workload, where


def _tell_temperature(temperature: float) -> str:
    return f"at temperature {temperature:g}"


def _join_places(workloads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(f"{join_names(names)} {where}" for where, names in workloads.items())


def _list_schedules(decision: Decision) -> Iterator[RecommendedConfig]:
    """Yield the schedules by batch size, equal ones once."""
    for text, alike in group_by(lambda each: each.spec.to_json(), decision.schedules).items():
        yield RecommendedConfig(
            setting="Schedule by batch size, instead of switching by hand",
            places=_join_places(_group(alike)),
            text=f"{_FLAG} '{text}'",
            remarks=alike[0].remarks,
        )


def _group(schedules: Sequence[Schedule]) -> dict[str, list[str]]:
    """Return the workloads of schedules by the temperature that they are for."""
    groups = group_by(lambda each: _tell_temperature(each.temperature), schedules)
    return {temperature: [name_workload(each.workload) for each in group] for temperature, group in groups.items()}


def describe_way_back(decision: Decision, run: Run) -> str:
    """Return how to undo an adoption: the baseline's command, if known."""
    command = run.context.server(decision.baseline).command
    return command or f"# the same command without {_FLAG}"
