"""What a run directory says about its run: plan and context as one JSON document, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise.core import Arm, Condition, InvalidSetup, RunContext, RunPlan, Workload
from draftwise.knowledge.remembering import find_remembering
from draftwise.runs.arm_rows import arm_to_row, row_to_arm

__all__ = ["make_manifest", "read_manifest", "to_plan"]

_FORMAT = 2
_SETTINGS = ("repeats", "warmup", "seed", "turn_s", "adaptive")


def make_manifest(plan: RunPlan, context: RunContext) -> dict[str, Any]:
    """Return the document; of prompts it has number and hash."""
    return {
        "format": _FORMAT,
        "arms": [arm_to_row(arm) for arm in plan.arms],
        "workloads": [
            {
                "name": each.name,
                "source": each.source,
                "description": each.description,
                "random_tokens": each.random_tokens,
                "prompts": len(each.prompts),
                "sha256": each.sha256,
            }
            for each in plan.workloads
        ],
        "conditions": [condition.to_dict() for condition in plan.conditions],
        **{name: getattr(plan, name) for name in _SETTINGS},
        "one_at_a_time": plan.one_at_a_time,
        "remembering": dict(plan.remembering),
        "context": context.to_dict(),
    }


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the document of a file.

    Raises:
        InvalidSetup: it is none, or was written by another version of the format.
    """
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        known = manifest["format"] == _FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidSetup.because(
            "not-a-run",
            f"{path.parent} is not a run directory: "
            + (f"its {path.name} cannot be understood." if path.is_file() else f"it has no {path.name}."),
            where=str(path.parent),
            fix="Name the folder that `draftwise decide` wrote.",
        ) from None
    if not known:
        raise InvalidSetup.because(
            "run-format",
            f"{path} has format {manifest['format']}, and this version of draftwise reads format {_FORMAT}.",
            where=str(path),
            fix="Use the draftwise that wrote it.",
        )
    return manifest


def to_plan(manifest: Mapping[str, Any], read_workload: Callable[[Mapping[str, Any]], Workload]) -> RunPlan:
    """Return the plan of a manifest.

    Args:
        manifest: the document.
        read_workload: returns the workload of a row of it, with its prompts.

    Raises:
        KeyError, TypeError, ValueError: the document was changed by hand.
        InvalidSetup: a config in it is none, or a workload is not what was measured.
    """
    for name in _SETTINGS:
        if not isinstance(manifest[name], int | float):
            raise TypeError(f"{name} is {manifest[name]!r}")
    for name in ("arms", "workloads", "conditions"):
        if not manifest[name]:
            raise ValueError(f"it plans no {name}")
    arms = tuple(row_to_arm(row, manifest["context"]) for row in manifest["arms"])
    return RunPlan(
        arms=arms,
        workloads=tuple(map(read_workload, manifest["workloads"])),
        conditions=tuple(Condition.from_dict(row) for row in manifest["conditions"]),
        remembering=_read_remembering(manifest, arms),
        one_at_a_time=bool(manifest.get("one_at_a_time")),
        asks_once="remembering" in manifest,
        **{name: manifest[name] for name in _SETTINGS},
    )


def _read_remembering(manifest: Mapping[str, Any], arms: Sequence[Arm]) -> dict[str, str]:
    """Return which candidates could remember answers, and why; earlier runs do not say, but their configs do."""
    if (told := manifest.get("remembering")) is None:
        return find_remembering(arms)
    if strange := set(told) - {arm.name for arm in arms[1:]}:
        raise ValueError(f"it has no candidate {min(strange)!r}")
    return {name: str(reason) for name, reason in told.items()}
