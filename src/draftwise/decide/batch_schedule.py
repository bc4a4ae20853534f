"""The engine's own schedule of k by batch size, made from the bands of a sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from draftwise.core import Arm, Band, Effect, InvalidSetup, Ruling, Run, RunContext, Schedule, Setup, SpecConfig
from draftwise.facts.vllm import history
from draftwise.plan.check import check
from draftwise.plan.forecast.schedule import KEY, join_ranges, make_schedule_keys

__all__ = ["propose_schedules"]

_NOT_HONOURED = (Effect.REJECTED, Effect.INEFFECTIVE, Effect.FAILS_LATER)


def propose_schedules(run: Run, bands: Sequence[Band]) -> tuple[Schedule, ...]:
    """Return a schedule for every sweep over concurrency whose bands differ in k alone, and that its server honours.

    Concurrency stands for batch size: in a closed loop nearly all requests in flight are being decoded.
    """
    sweeps: dict[tuple[str, float], list[Band]] = {}
    for band in bands:
        if band.axis == "concurrency":
            sweeps.setdefault((band.workload, band.temperature), []).append(band)
    found = (_propose(run, workload, temperature, each) for (workload, temperature), each in sweeps.items())
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
    unmeasured = "This schedule follows from the measurement and was not itself measured: make it a candidate first."
    if server.version.get("engine") == "draftwise":
        return (unmeasured,)
    since = history("spec_fields", KEY)[0].since
    setup = _find_setup(arm.setup, server.release, context.model.name)
    if setup is None:
        return (unmeasured, f"It needs vLLM {since} or newer.")
    report = check(replace(setup, spec=spec))
    about = [each for each in report.findings if each.where == KEY]
    if any(isinstance(each, Ruling) and (each.effect in _NOT_HONOURED or each.becomes == "null") for each in about):
        return None
    return (unmeasured, *(f"{each.message} {each.fix}".strip() for each in about))


def _find_setup(measured: Setup, version: str | None, model: str | None) -> Setup | None:
    """Return the measured setup on the version that its server tells; None where the catalogue does not cover it."""
    if version is None:
        return None
    setup = replace(measured, target=measured.target or str(model), engine="vllm", engine_version=version)
    try:
        check(setup)
    except InvalidSetup:
        return None
    return setup
