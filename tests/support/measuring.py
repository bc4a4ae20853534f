"""Runs the whole measurement against fakes on a virtual clock: milliseconds, and the same numbers every time."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftwise.core import (
    Arm,
    ClosedLoop,
    Comparison,
    Condition,
    Decision,
    Finding,
    Hardware,
    Prompt,
    RunContext,
    RunPlan,
    Setup,
    Severity,
    Software,
    SpecConfig,
    TargetModel,
    Workload,
)
from draftwise.deciding.conclusions import conclude_run
from draftwise.knowledge.spec_keys import find_remembering
from draftwise.measure.session import Session
from draftwise.runs import RunDirectory
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript

CONTEXT = RunContext(
    hardware=Hardware(cpu="imaginary", cores=2),
    software=Software(python="3"),
    model=TargetModel(name="fake", dtype="bfloat16"),
)
PLAIN = FakeScript(seed=1)
FASTER = FakeScript(k=3, accepted=(3, 1, 0), step_s=0.0045, seed=2)


class Recorder:
    """A progress that keeps what it receives; it asks to stop once so many turns or other units are done."""

    def __init__(self, stop_after: float = math.inf) -> None:
        self.plans: list[tuple[float, int, float | None]] = []
        """Clock of the event loop, steps and seconds."""
        self.done: list[int] = []
        self.waited: list[str] = []
        self.told: list[str] = []
        self._asked, self._stop_after = 0, stop_after

    @property
    def stop_requested(self) -> bool:
        self._asked += 1
        return self._asked > self._stop_after

    def status(self, text: str) -> None:
        self.waited.append(text)

    def plan(self, steps: int, seconds: float | None) -> None:
        self.plans.append((asyncio.get_running_loop().time(), steps, seconds))

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        self.done.append(done)

    def notice(self, finding: Finding) -> None:
        self.told.append(str(finding) if finding.severity is Severity.INFO else f"{finding.severity}: {finding}")


def make_workload(name: str = "code", num_prompts: int = 8, max_tokens: int = 40) -> Workload:
    prompts = (Prompt(id=f"{name}-{i}", text=f"{name} {i}", max_tokens=max_tokens + i) for i in range(num_prompts))
    return Workload(name=name, source="test", prompts=tuple(prompts))


def make_plan(num_candidates: int = 1, **settings: Any) -> RunPlan:
    plain = Arm(name="plain", setup=Setup(target="fake", engine="vllm", engine_version="fake-1"))
    drafting = plain.with_spec(SpecConfig(method="ngram", num_speculative_tokens=3))
    arms = (plain, *(replace(drafting, name=f"candidate {i}") for i in range(1, num_candidates + 1)))
    concurrency, temperature = settings.pop("concurrency", 1), settings.pop("temperature", 0.0)
    condition = Condition(load=ClosedLoop(concurrency=concurrency), temperature=temperature)
    given = {
        "remembering": find_remembering(arms),
        "arms": arms,
        "workloads": (make_workload(),),
        "conditions": (condition,),
        "repeats": 3,
        **settings,
    }
    return RunPlan(**given)


def make_session(path: Path, plan: RunPlan, scripts: Sequence[FakeScript], **settings: Any) -> Session:
    backends = [FakeBackend(arm.name, script) for arm, script in zip(plan.arms, scripts, strict=True)]
    resume = settings.get("resume", False)
    return Session(
        plan=plan,
        backends=backends,
        directory=RunDirectory(path) if resume else RunDirectory.claim(path),
        **{"context": CONTEXT, "progress": Recorder(), **settings},
    )


def measure(path: Path, *candidates: FakeScript, plain: FakeScript = PLAIN, **settings: Any) -> Decision:
    """Return the decision of a whole run."""
    plan = make_plan(len(candidates), **settings)
    virtual_time.run(make_session(path, plan, (plain, *candidates)).run())
    return conclude_run(RunDirectory(path).read()).decision


def compare_one(path: Path, candidate: FakeScript, *, plain: FakeScript = PLAIN, **settings: Any) -> Comparison:
    """Return the only comparison of a run with one workload and one candidate."""
    (comparison,) = measure(path, candidate, plain=plain, **settings).comparisons
    return comparison


def noisy(script: FakeScript, seed: int, jitter: float = 0.03) -> FakeScript:
    return replace(script, seed=seed, jitter=jitter)
