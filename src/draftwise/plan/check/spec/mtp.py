"""MTP drafters: what a config becomes when vLLM takes it as a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.facts.vllm import Release
from draftwise.plan.check.model.model_config import HfConfig

__all__ = ["rewrite_draft"]


def rewrite_draft(release: Release, config: HfConfig) -> HfConfig:
    """Return a drafter's config after vLLM's rewriting of targets into MTP drafters; most configs stay as they are."""
    table = release.table("mtp_remap")
    first = config.architectures[0] if config.architectures else ""
    for key in (_type_key(table, config.model_type), first):
        row = table.get(key)
        if row is not None and (row["by"] == "architecture") == (key == first) and _meets(row, config):
            config = _apply(row, config)
    return config


def _type_key(table: Mapping[str, Any], model_type: str) -> str:
    """Return the row's key for a model_type; some rows stand for every type that contains the key."""
    if model_type in table:
        return model_type
    parts = (key for key, row in table.items() if row["by"] == "part_of_model_type" and key in model_type)
    return next(parts, "")


def _meets(row: Mapping[str, Any], config: HfConfig) -> bool:
    return all(_look_up(config, path) for path in row.get("requires", ()))


def _apply(row: Mapping[str, Any], config: HfConfig) -> HfConfig:
    changes: dict[str, Any] = {}
    if "n_predict" in row:
        changes["n_predict"] = _count_steps(row, config)
    if "model_type" in row:
        changes["model_type"] = row["model_type"]
    if "architectures" in row:
        changes["architectures"] = row["architectures"]
    return config.changed(**changes)


def _count_steps(row: Mapping[str, Any], config: HfConfig) -> int | None:
    """Return the trained MTP steps; the fields lie in the whole config or in its language model's part."""
    given, default = row["n_predict"], row.get("n_predict_default")
    if isinstance(given, int):
        return given
    for path in (given, default):
        if isinstance(path, str) and isinstance(steps := _look_up(config, path), int):
            return steps
    return default if isinstance(default, int) else None


def _look_up(config: HfConfig, path: str) -> Any:
    """Return the value at a dotted path, of the whole config or else of its text part."""
    for part in (config.values, config.text.values):
        value: Any = part
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None
