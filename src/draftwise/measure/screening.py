"""Screens candidates and loads before a run, with a replay and a calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import (
    Arm,
    Calibration,
    ClosedLoop,
    Condition,
    Exactness,
    Expectation,
    Finding,
    Forecast,
    ForecastCell,
    Interval,
    Omission,
    Profile,
    Progress,
    RunContext,
    RunPlan,
    Workload,
)
from draftwise.core.finding import join_names
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.messages import note, warning
from draftwise.measure.measurement_spec import MeasurementSpec
from draftwise.measure.run_context import describe_machine
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.calibrated_server import match_settings
from draftwise.plan.forecast.forecasting import forecast
from draftwise.plan.forecast.run_cells import accept_everything, find_cell, find_hopeless, is_config_of
from draftwise.runs.documents import read_calibration, read_profile
from draftwise.workloads import find_tokens
from draftwise.workloads.reshape import prompt_length

_REACH = 2.0
"""Largest load to consider, as a multiple of the calibrated batch."""
MODEL_UNKNOWN = "the layers of the run's model are unknown"
_SHAPE = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "num_key_value_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedPlan:
    """A plan, and the forecasts made before its first request."""

    plan: RunPlan
    expected: tuple[Expectation, ...] = ()
    omissions: tuple[Omission, ...] = ()


def screen(plan: RunPlan, spec: MeasurementSpec, context: RunContext, progress: Progress) -> ScreenedPlan:
    """Return a plan without candidates that cannot win, at loads around the forecast crossover.

    With a replay alone, a candidate's largest gain is its tokens per step. With a calibration alone, it is the gain if
    every draft token were accepted. A forecast never leads to an adoption.

    Args:
        plan: the full plan.
        spec: names the files; without loads of its own, loads are chosen here.
        context: what is known about the machine.
        progress: receives what was chosen, or why nothing was.

    Raises:
        InvalidSetup: a file cannot be read, or is not a profile or calibration.
    """
    profile = read_profile(spec.profile) if isinstance(spec.profile, Path) else spec.profile
    calibration = read_calibration(spec.calibration) if isinstance(spec.calibration, Path) else spec.calibration
    if calibration is not None and (differences := list(find_differences(calibration, plan, context))):
        name = _name(spec.calibration, "the calibration")
        progress.notice(warning("not-screened", case="deployment", name=name, names="; ".join(differences)))
        return ScreenedPlan(plan=plan)
    if calibration is None:
        if profile is None:
            return ScreenedPlan(plan=plan)
        return replace(_leave_out(plan, tuple(_bound(plan, profile)), spec, progress), expected=())
    forecasts = _Forecasts(plan, calibration, profile)
    if profile is not None and spec.places_loads:
        plan = forecasts.place_loads(progress)
    found = _leave_out(plan, tuple(forecasts.expect(plan)), spec, progress)
    return found if profile is not None else replace(found, expected=())


def _name(given: object, noun: str) -> str:
    return str(given) if isinstance(given, Path) else noun


def _leave_out(
    plan: RunPlan, expected: Sequence[Expectation], spec: MeasurementSpec, progress: Progress
) -> ScreenedPlan:
    evidence = " and ".join(
        _name(given, f"the {noun}")
        for given, noun in ((spec.profile, "profile"), (spec.calibration, "calibration"))
        if given is not None
    )
    names = [arm.name for arm in plan.arms[1:]]
    cells = len(plan.workloads) * len(plan.conditions)
    hopeless = find_hopeless(
        expected, names, num_cells=cells, margin=spec.thresholds.get("margin", Thresholds().margin)
    )
    omissions = tuple(
        Omission(what=f"candidate {name}", reason=f"{why} (from {evidence})", candidate=name, is_final=True)
        for name, why in hopeless.items()
    )
    for each in omissions:
        progress.notice(Finding.info("left-out", f"Left out: {each.what}: {each.reason}."))
    unknown = [name for name in names if sum(each.candidate == name for each in expected) < cells]
    if unknown:
        does = "does" if len(unknown) == 1 else "do"
        progress.notice(note("not-screened", case="coverage", evidence=evidence, does=does, names=", ".join(unknown)))
    kept = plan.keep_arms({arm.name for arm in plan.arms} - hopeless.keys())
    return ScreenedPlan(plan=kept, expected=tuple(expected), omissions=omissions)


def _bound(plan: RunPlan, profile: Profile) -> Iterator[Expectation]:
    """Yield the most that candidates can gain: a step that drafts takes at least as long as one that does not.

    In closed loops: at a rate that plain decoding hardly keeps up with, waiting less gains more.
    """
    exact = [each for each in profile.entries if each.exactness is Exactness.EXACT]
    for arm, workload, condition in product(plan.arms[1:], plan.workloads, plan.conditions):
        same = {
            each.group: each
            for each in exact
            if arm.spec is not None
            and is_config_of(arm.spec, each.candidate)
            and each.temperature == condition.temperature
        }
        entry = same.get(workload.name, same.get(None))
        if arm.spec is None or entry is None or condition.concurrency is None:
            continue
        if (found := entry.by_k.get(arm.spec.num_speculative_tokens or entry.kmax)) is not None:
            yield _expect(arm, workload, condition, found.tokens_per_step, is_bound=True)


def _expect(arm: Arm, workload: Workload, condition: Condition, speedup: Interval, *, is_bound: bool) -> Expectation:
    return Expectation(
        candidate=arm.name,
        workload=workload.name,
        load=condition.label,
        value=speedup.value,
        low=0.0 if is_bound else speedup.low,
        high=speedup.high,
    )


class _Forecasts:
    """Forecasts of the cells of a run.

    Args:
        plan: everything that is asked for.
        calibration: of its servers.
        profile: of its traffic; None where it is not known, for the most that could be gained.
    """

    def __init__(self, plan: RunPlan, calibration: Calibration, profile: Profile | None) -> None:
        self._plan, self._calibration, self._is_bound = plan, calibration, profile is None
        if profile is None:
            profile = accept_everything(calibration, {each.temperature for each in plan.conditions})
        else:
            profile = replace(profile, entries=tuple(e for e in profile.entries if e.exactness is Exactness.EXACT))
        self._profile = profile
        self._tokens = find_tokens(None, hint=Path(plan.arms[0].setup.target))

    def expect(self, plan: RunPlan) -> Iterator[Expectation]:
        """Yield forecasts for the cells of a plan that the replay and calibration cover."""
        for workload in plan.workloads:
            made = self._forecast(workload, [each.place for each in plan.conditions])
            for arm, condition in product(plan.arms[1:], plan.conditions):
                cells = list(self._find_cells(made, arm, workload, condition))
                if cells and not any(each.is_extrapolated for each in cells):
                    best = max((each.speedup for each in cells), key=lambda speedup: speedup.high)
                    yield _expect(arm, workload, condition, best, is_bound=self._is_bound)

    def place_loads(self, progress: Progress) -> RunPlan:
        """Return the plan at one request in flight and at loads around the best candidate's crossover."""
        most = int(_REACH * min(CalibratedCosts(self._calibration).reach(e.name) for e in self._calibration.settings))
        loads = sorted({*(2**power for power in range(most.bit_length())), most})
        found = {round(load) for each in self._plan.workloads for load in self._find_end(each, loads)}
        if not found:
            return self._plan
        chosen = sorted({1, *(max(1, min(most, load)) for load in found)})
        progress.notice(note("measurement-planned", case="loads", names=", ".join(map(str, chosen))))
        temperatures = dict.fromkeys(each.temperature for each in self._plan.conditions)
        conditions = tuple(
            Condition(load=ClosedLoop(concurrency=load), temperature=temperature)
            for temperature, load in product(temperatures, chosen)
        )
        return replace(self._plan, conditions=conditions)

    def _find_end(self, workload: Workload, loads: Sequence[int]) -> Iterator[float]:
        """Yield the forecast crossover of a workload's best candidate with the ends of its interval, if it has one."""
        made = self._forecast(workload, [("concurrency", load) for load in loads])
        cells = [
            cell
            for arm, condition in product(self._plan.arms[1:], self._plan.conditions)
            for cell in self._find_cells(made, arm, workload, condition)
        ]
        best = max(cells, key=lambda cell: cell.speedup.value, default=None)
        for each in made.crossovers if made is not None and best is not None else ():
            assert best is not None
            same = all(getattr(each, name) == getattr(best, name) for name in ("setting", "k", "group", "temperature"))
            if same and (each.value is not None or 0 < each.low < math.inf):
                yield from (max(1.0, each.low), each.value or loads[-1], min(each.high, loads[-1]))

    def _forecast(self, workload: Workload, places: Sequence[tuple[str, float] | None]) -> Forecast | None:
        """Return the forecast for a workload's own prompts; None where no candidate is both replayed and calibrated."""
        prompts = workload.prompts
        answers = fmean(prompt.max_tokens for prompt in prompts)
        if not self._is_bound:  # answers may end before their limit: the log knows
            answers = min(answers, self._profile.log.tokens_out / max(1, self._profile.log.used))
        loads = [place for place in places if place is not None]
        if not loads or not match_settings(self._profile, self._calibration):
            return None
        return forecast(
            self._profile,
            self._calibration,
            concurrency=[load for axis, load in loads if axis == "concurrency"],
            rates=[load for axis, load in loads if axis == "rate"],
            prompt_tokens=fmean(prompt_length(prompt, self._tokens) for prompt in prompts),
            output_tokens=answers,
        )

    def _find_cells(
        self, made: Forecast | None, arm: Arm, workload: Workload, condition: Condition
    ) -> Iterator[ForecastCell]:
        """Yield what is forecast of an arm; where acceptance is not known, at every k up to its own: with an own choice
        of how much it drafts, a method does no better than the best of them."""
        for setting in self._calibration.candidates if made is not None else ():
            assert made is not None
            assert setting.spec is not None
            if arm.spec is None or not is_config_of(arm.spec, setting.spec):
                continue
            k = arm.spec.num_speculative_tokens or setting.k
            for each in range(1, k + 1) if self._is_bound else (k,):
                if (cell := find_cell(made, setting.name, each, workload.name, condition)) is not None:
                    yield cell


def find_differences(calibration: Calibration, plan: RunPlan, context: RunContext) -> Iterator[str]:
    """Yield how a calibration differs from the run, and what cannot be compared."""
    here = describe_machine(context.hardware)
    if not here or here != calibration.hardware:
        yield f"calibrated on {calibration.hardware or 'unknown hardware'}, run on {here or 'unknown hardware'}"
    setup = plan.arms[0].setup
    found = find_model_config(setup.target) or find_model_config(context.model_name or "")
    if found is None:
        yield MODEL_UNKNOWN
    elif different := [key for key in _SHAPE if found.config.get(key) != calibration.config.get(key)]:
        values = (f"{key} {calibration.config.get(key)} and {found.config.get(key)}" for key in different)
        yield f"the models differ (calibrated, run): {join_names(values)}"
    record = context.server(plan.arms[0].name)
    engine = setup.engine or str(record.version.get("engine", ""))
    version = setup.engine_version or record.release or ""
    there = (calibration.engine, calibration.engine_version)
    if there != (engine, version):
        was, now = (" ".join(filter(None, each)) or "an unknown engine" for each in (there, (engine, version)))
        yield f"calibrated with {was}, run with {now}"
    args = {key: (calibration.args.get(key), setup.args.get(key)) for key in {**calibration.args, **setup.args}}
    told = [[key, *("unset" if each is None else each for each in both)] for key, both in sorted(args.items())]
    if flags := [f"{key} {old} and {new}" for key, old, new in told if old != new]:
        yield f"flags differ (calibrated, run): {join_names(flags)}"
