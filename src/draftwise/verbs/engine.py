"""The embedded engine's settings, as `serve` and `warm-up` take them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise.checkpoints.config_json import read_config
from draftwise.core import InvalidSetup, Severity, SpecConfig
from draftwise.engine.engine_config import (
    DEVICES,
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    PARALLEL_SIZES,
    QUANTIZATIONS,
    EngineConfig,
    one_gpu_settings,
    vllm_setup,
)
from draftwise.engine.families import get_family
from draftwise.machine.processes import require_posix
from draftwise.verbs.sources import require_spec

if TYPE_CHECKING:
    from draftwise.serve.channel import StartupPhase

__all__ = [
    "DEVICES", "DTYPES", "KV_CACHE_DTYPES", "LOAD_FORMATS", "PARALLEL_SIZES", "QUANTIZATIONS", "EngineConfig",
    "StartupPhase", "make_config", "parse_spec",
]  # fmt: skip


def parse_spec(given: SpecConfig | Mapping[str, Any] | str | None) -> SpecConfig | None:
    """Return the speculative config; None for plain decoding.

    Raises:
        InvalidSetup: it is not a JSON object, or a known key has the wrong type.
    """
    return None if given is None else require_spec(given)


def make_config(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> EngineConfig:
    """Return the engine's config.

    Args:
        model: directory of a checkpoint, or a GGUF file.
        spec: the speculative config.
        settings: vLLM's engine flags by their long name with underscores; None for a flag that is not given.

    Raises:
        InvalidSetup: the settings cannot work, or need vLLM; the finding then has vLLM's command and its judgement.
    """
    require_posix("The embedded engine runs")
    given = {name: value for name, value in settings.items() if value is not None}
    if Path(model).is_dir():  # before torch, which takes seconds to import
        get_family(read_config(Path(model)), where=str(Path(model) / "config.json"))
    try:
        return EngineConfig.from_settings(model=model, **one_gpu_settings(model, spec, given))
    except InvalidSetup as error:
        raise _judged_by_vllm(error, model, spec, given) from None


def _judged_by_vllm(error: InvalidSetup, model: str, spec: SpecConfig | None, given: Mapping[str, Any]) -> InvalidSetup:
    """Return the error with what the newest vLLM would say of the command it names, if it names one."""
    if not any(finding.code == "more-than-one-gpu" for finding in error.findings):
        return error
    from draftwise.plan.check import check

    report = check(vllm_setup(model, spec, given))
    serious = [each for each in report.findings if each.severity is Severity.ERROR]
    return InvalidSetup([*error.findings, *serious])
