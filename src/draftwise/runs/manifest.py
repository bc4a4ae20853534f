"""Converts a run's plan and context to one JSON document, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwise.core import Arm, Condition, InvalidSetup, RunContext, RunPlan, Setup, SpecConfig, Workload
from draftwise.core.documents import from_json
from draftwise.core.grouping import copy_fields
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.spec_keys import find_remembering

_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRow:
    """A setup without its speculative config."""

    target: str
    engine: str
    engine_version: str
    args: Mapping[str, Any]
    env: Mapping[str, str]
    extra_args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """An arm of the plan."""

    name: str
    url: str | None
    metrics_url: str | None = None
    header_names: tuple[str, ...] = ()
    spec: SpecConfig | None
    setup: SetupRow | None = None
    """None in runs of earlier releases."""

    @classmethod
    def of(cls, arm: Arm) -> ArmRow:
        """Return the row of an arm."""
        return copy_fields(cls, arm, setup=copy_fields(SetupRow, arm.setup))

    def to_arm(self, context: Mapping[str, Any]) -> Arm:
        """Return the arm.

        Args:
            context: the run's context as JSON, from which the setups of earlier releases' runs are made.
        """
        if self.setup is None:
            setup = _setup_of_earlier_run(self.name, context)
        else:
            setup = copy_fields(Setup, self.setup, spec=self.spec, device=None)
        return copy_fields(Arm, self, setup=replace(setup, spec=self.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """A workload of the plan; its prompts are in a separate file."""

    name: str
    source: str
    description: str
    random_tokens: bool
    prompts: int
    """Number of prompts."""
    sha256: str
    population: int = 0
    choice: str = ""

    @classmethod
    def of(cls, workload: Workload) -> WorkloadRow:
        """Return the row of a workload."""
        return copy_fields(cls, workload, prompts=len(workload.prompts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The document manifest.json."""

    format: int = _FORMAT
    arms: tuple[ArmRow, ...]
    workloads: tuple[WorkloadRow, ...]
    conditions: tuple[Condition, ...]
    repeats: int
    warmup: int
    seed: int
    turn_s: float
    adaptive: bool
    one_at_a_time: bool = False
    minutes: float | None = None
    remembering: Mapping[str, str] | None = None
    """None in runs of earlier releases, which sent prompts repeatedly to every candidate."""
    context: RunContext

    def __post_init__(self) -> None:
        for name in ("arms", "workloads", "conditions"):
            if not getattr(self, name):
                raise ValueError(f"it plans no {name}")

    @classmethod
    def of(cls, plan: RunPlan, context: RunContext) -> Manifest:
        """Return the manifest of a plan."""
        arms, workloads = tuple(map(ArmRow.of, plan.arms)), tuple(map(WorkloadRow.of, plan.workloads))
        return copy_fields(cls, plan, format=_FORMAT, arms=arms, workloads=workloads, context=context)

    @classmethod
    def read(
        cls, row: Mapping[str, Any], read_workload: Callable[[WorkloadRow], Workload]
    ) -> tuple[RunPlan, RunContext]:
        """Return the plan and the context of a manifest.

        Args:
            row: the document.
            read_workload: returns a workload with its prompts.

        Raises:
            ValueError: the document was edited by hand.
            InvalidSetup: a workload is not the measured one.
        """
        found = from_json(cls, row)
        arms = tuple(arm.to_arm(row["context"]) for arm in found.arms)
        plan = copy_fields(
            RunPlan,
            found,
            arms=arms,
            workloads=tuple(map(read_workload, found.workloads)),
            remembering=found._find_remembering(arms),
            asks_once=found.remembering is not None,
        )
        return plan, found.context

    def _find_remembering(self, arms: Sequence[Arm]) -> Mapping[str, str]:
        """Return which candidates could remember answers, and why; earlier runs do not say, but their configs do."""
        if self.remembering is None:
            return find_remembering(arms)
        if strange := set(self.remembering) - {arm.name for arm in arms[1:]}:
            raise ValueError(f"it has no candidate {min(strange)!r}")
        return self.remembering


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the document of a file.

    Raises:
        InvalidSetup: it is not a manifest, or was written by another version of the format.
    """
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        known = manifest["format"] == _FORMAT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        if path.is_file():
            raise refusal("not-a-run", case="damaged", folder=path.parent, name=path.name) from None
        raise refusal("not-a-run", folder=path.parent, name=path.name) from None
    if not known:
        raise refusal("run-format", path=path, format=manifest["format"], known=_FORMAT)
    return manifest


def _setup_of_earlier_run(arm: str, context: Mapping[str, Any]) -> Setup:
    """Return the setup that the operator's options led to, or that the operator's note of a command tells."""
    # Only here: processes that only send load import this package, too.
    from draftwise.setups.read import read_setups, read_words

    options = context.get("wish") or {}
    server = (context.get("servers") or {}).get(arm) or {}
    version = (server.get("version") or {}).get("version") or ""
    if target := options.get("target"):
        engine, words = options["engine"], ["vllm", "serve", target, *options["serve_args"]]
        reading = read_words(words, engine_version=version if engine == "vllm" and version else None)
        return replace(reading.setup, engine=engine, engine_version=version)
    with suppress(InvalidSetup):
        return read_setups(server.get("command") or "", engine_version=version or None)[0].setup
    return Setup(engine="")
