"""From a run to a calibration: its servers, the shapes of their models, and the steps that were seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import Arm, CalibratedSetting, Calibration, InvalidSetup, Run, SpecConfig
from draftwise.knowledge.gpus import get_gpu
from draftwise.measure.calibrate.points import find_firsts, find_points
from draftwise.measure.context import describe_machine

__all__ = ["make_calibration"]


def make_calibration(run: Run, *, target: str | None = None) -> Calibration:
    """Return what a run says of the steps of its servers.

    Args:
        run: of servers that differ in their speculative config only, under closed loads.
        target: directory or well-known id of the model; None for what the run says it is.

    Raises:
        InvalidSetup: the target's shape or a server's speculative config is not known, or nothing was measured.
    """
    settings = tuple(_make_setting(run, arm) for arm in run.plan.arms)
    lengths = {each.name: each.k for each in settings}
    points = find_points(run, lengths)
    known = {each.name for each in settings if each.name in {point.setting for point in points}}
    baseline = settings[0]
    if baseline.name not in known:
        raise InvalidSetup.because(
            "nothing-calibrated",
            f"The run has too few undisturbed steps of {baseline.name} to calibrate by.",
            where="run",
            fix="Give more --minutes, on a machine that does nothing else.",
        )
    name = target or run.context.model_name or baseline.name
    plain = run.plan.arms[0].setup
    record = run.context.server(baseline.name)
    return Calibration(
        made=run.context.started,
        hardware=describe_machine(run.context.hardware) or "not known",
        gpu=_find_gpu(run),
        engine=plain.engine or str(record.version.get("engine", "")),
        engine_version=plain.engine_version or record.release or "",
        args=dict(plain.args),
        target=name,
        config=_find_config(name, plain.target),
        settings=tuple(_with_pool(run, each) for each in settings if each.name in known or each.is_plain),
        points=points,
        firsts=tuple(each for each in find_firsts(run, lengths) if each.setting in known),
    )


def _make_setting(run: Run, arm: Arm) -> CalibratedSetting:
    if arm == run.plan.arms[0]:
        return CalibratedSetting(name=arm.name)
    spec, told = arm.spec, _told_spec(run.context.server(arm.name).version)
    if spec is None:
        spec = told
    elif spec.num_speculative_tokens is None and told is not None:  # it has a default: suffix, modules of the target
        spec = replace(spec, num_speculative_tokens=told.num_speculative_tokens)
    if spec is None or spec.num_speculative_tokens is None:
        raise InvalidSetup.because(
            "candidate-unknown",
            f"What {arm.name} drafts with is not known: its server does not say.",
            where="--candidate",
            fix=f"""Give its config: --candidate '{arm.name}={{"method": "eagle3", "num_speculative_tokens": 3}}'.""",
        )
    found = None if spec.model is None else find_model_config(spec.model)
    return CalibratedSetting(name=arm.name, spec=spec, drafter=None if found is None else found.config)


def _with_pool(run: Run, setting: CalibratedSetting) -> CalibratedSetting:
    """Return a setting with the tokens that its server's KV cache holds, where it said so."""
    told = run.context.server(setting.name).started.get("kv_cache_tokens")
    return replace(setting, kv_tokens=told) if isinstance(told, int) and told > 0 else setting


def _told_spec(version: Mapping[str, Any]) -> SpecConfig | None:
    """Return the speculative config that a server says it runs."""
    told = version.get("speculative_config")
    return SpecConfig.keep(told) if isinstance(told, Mapping) else None


def _find_config(name: str, directory: str) -> Mapping[str, Any]:
    for given in (directory, name):
        if given and (found := find_model_config(given)) is not None:
            return found.config
    raise InvalidSetup.because(
        "target-unknown",
        f"The shape of {name} is not known: it is neither a directory here nor a well-known model.",
        where="--target",
        fix="Name the directory with its config.json, or the id of a well-known model: `--target DIR`.",
    )


def _find_gpu(run: Run) -> str | None:
    """Return the name of the GPU in the table; None for a processor, and for a GPU that is not in it."""
    hardware = run.context.hardware
    devices = {str(each.version.get("device", "")) for each in run.context.servers.values()}
    if devices & {"cpu"}:
        return None
    for text in (*hardware.gpus, hardware.told or "", *devices):
        try:
            return get_gpu(text.split(",")[0].strip()).name
        except InvalidSetup:
            continue
    return None
