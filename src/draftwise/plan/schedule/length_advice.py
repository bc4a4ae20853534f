"""The best k of calibrated servers on replayed traffic, and a schedule in each engine's format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import Acceptance, CalibratedSetting, Calibration, Device, Profile, Setup, SpecConfig
from draftwise.knowledge.messages import refusal
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.calibrated_server import match_settings
from draftwise.plan.schedule.draft_lengths import (
    JudgedSchedule,
    LengthChoice,
    Range,
    choose_lengths,
    judge_schedule,
    make_schedule_keys,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAdvice:
    """What to draft with one server."""

    setting: CalibratedSetting
    group: str | None
    temperature: float
    choice: LengthChoice
    """Draft lengths, under the release's treatment of schedules."""
    ideal_gain: float
    """Gain of a schedule over the best fixed k, on a release that follows schedules."""
    judged: JudgedSchedule | None
    """How the release treats the schedule; None if its rules are unknown, or a fixed k is best anyway."""

    @property
    def fixed(self) -> SpecConfig:
        """The config with the best fixed k."""
        assert self.setting.spec is not None
        return replace(self.setting.spec, num_speculative_tokens=self.choice.fixed_k)

    @property
    def scheduled(self) -> SpecConfig | None:
        """The config with the schedule; None if it is not worth it, or the release does not follow it."""
        follows = self.judged is None or self.judged.acts_as_written or self.judged.drafts_in_full
        if not self.choice.is_schedule_worth_it or not follows:
            return None
        return _schedule(self.setting, self.choice)


def advise_lengths(
    profile: Profile, calibration: Calibration, *, batches: Sequence[int], version: str | None = None
) -> tuple[LengthAdvice, ...]:
    """Return what to draft with each calibrated and replayed server.

    Args:
        profile: acceptance by k.
        calibration: step times.
        batches: ascending numbers of sequences that decode together, equally frequent.
        version: release of vLLM; None for the calibrated one.

    Raises:
        InvalidSetup: the release is unknown, or profile and calibration have no server in common.
    """
    costs = CalibratedCosts(calibration)
    length = sum(point.context for point in calibration.points) / len(calibration.points)
    found = [
        _advise(costs, setting, entry, batches, version or calibration.engine_version, length)
        for setting, entry in match_settings(profile, calibration)
    ]
    if not found:
        raise refusal("no-common-candidate", case="schedule")
    return tuple(found)


def _advise(
    costs: CalibratedCosts,
    setting: CalibratedSetting,
    entry: Acceptance,
    batches: Sequence[int],
    version: str,
    context: float,
) -> LengthAdvice:
    rates = Rates(costs, setting, entry, context)
    lengths = [k for k in entry.by_k if k <= setting.k]
    ideal = choose_lengths(batches, lengths, rates.speed_up)
    judged = None
    choice = ideal
    if len(ideal.ranges) > 1 and costs.calibration.engine == "vllm" and version:
        judged = judge_schedule(_make_setup(costs.calibration, setting, ideal, version))
        if judged.drafts_in_full:
            most = max(k for _, _, k in ideal.ranges)
            within = [k for k in lengths if k <= most]
            kept = choose_lengths(batches, within, rates.speed_up, lambda batch, k: rates.speed_up(batch, k, most))
            choice = replace(kept, fixed_k=ideal.fixed_k, fixed_speedup=ideal.fixed_speedup)
            choice = replace(choice, schedule_gain=kept.schedule_gain * kept.fixed_speedup / ideal.fixed_speedup)
    return LengthAdvice(
        setting=setting,
        group=entry.group,
        temperature=entry.temperature,
        choice=choice,
        ideal_gain=ideal.schedule_gain,
        judged=judged,
    )


class Rates:
    """Speed-ups of the steps of one server over those without speculation."""

    def __init__(self, costs: CalibratedCosts, setting: CalibratedSetting, entry: Acceptance, context: float) -> None:
        self._costs, self._setting, self._entry, self._context = costs, setting, entry, context

    def speed_up(self, sequences: int, k: int, drafted: int | None = None) -> float:
        """Return the speed-up with `sequences` decoding and `k` draft tokens verified."""
        found, costs = self._entry.by_k[k], self._costs
        load = {"sequences": float(sequences), "context": self._context}
        step = costs.step(self._setting.name, k, drafted=found.drafted / found.steps, **load)
        if drafted is not None and drafted > k:
            step = replace(step, drafted=float(drafted))
        plain = costs.step(costs.calibration.plain.name, 0, **load)
        logs = costs.predict([plain, step]).seconds
        return float(found.tokens_per_step.value * logs[0] / logs[1])


def _make_setup(calibration: Calibration, setting: CalibratedSetting, choice: LengthChoice, version: str) -> Setup:
    gpu = calibration.gpu
    return Setup(
        target=calibration.target,
        engine="vllm",
        engine_version=version,
        device=Device(name=gpu, kind="cuda") if gpu else None,
        spec=_schedule(setting, choice),
        args=calibration.args,
    )


def _schedule(setting: CalibratedSetting, choice: LengthChoice) -> SpecConfig:
    assert setting.spec is not None
    return SpecConfig.keep({**setting.spec.to_dict(), **make_schedule_keys(choice.ranges)})


def emit(form: str, spec: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return a schedule in an engine's format."""
    return FORMATS[form](spec, ranges)


def _emit_vllm(spec: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return the JSON of `--speculative-config`, of vLLM and of draftwise's own engine."""
    return json.dumps({**spec.to_dict(), **make_schedule_keys(ranges)})


def _emit_sglang(_: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return the file for `--speculative-adaptive-config`: candidate steps by the batch size from which they hold.

    A range without drafting keeps one step: SGLang's adaptive tiers always draft.
    """
    tiers: Mapping[str, Any] = {str(first): {"candidate_steps": [max(1, k)]} for first, _, k in ranges}
    return json.dumps(tiers, indent=1)


def _emit_up_to(_: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return TensorRT-LLM's `draft_len_schedule` where a key is the largest batch size that its length holds for."""
    return json.dumps({last: k for _, last, k in ranges})


def _emit_from(_: SpecConfig, ranges: Sequence[Range]) -> str:
    """Return TensorRT-LLM's `draft_len_schedule` where a key is the batch size from which its length holds."""
    return json.dumps({first: k for first, _, k in ranges})


FORMATS: Mapping[str, Callable[[SpecConfig, Sequence[Range]], str]] = {
    "vllm": _emit_vllm,
    "sglang": _emit_sglang,
    "trtllm-up-to": _emit_up_to,
    "trtllm-from": _emit_from,
}
"""TensorRT-LLM has read the same key in two ways: the operator says which of them its release has."""
