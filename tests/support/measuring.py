"""Runs the whole measurement against fakes on a virtual clock: milliseconds, and the same numbers every time."""

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
    Hardware,
    Prompt,
    RunContext,
    RunPlan,
    Setup,
    Software,
    SpecConfig,
    TargetModel,
    Workload,
)
from draftwise.deciding.conclusions import conclude_run
from draftwise.knowledge.remembering import find_remembering
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


class Silent:
    """A progress nobody looks at."""

    def __init__(self) -> None:
        self.first: tuple[int, int] | None = None
        self.advanced = 0
        self.doing = ""
        self.waited: list[str] = []

    def wait(self, doing: str) -> None:
        self.doing = doing
        self.waited.append(doing)

    def start(self, total: int, done: int) -> None:
        self.first = self.first or (total, done)

    def advance(self, requests: int, what: str) -> None:
        self.advanced += requests


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
        **{
            "context": CONTEXT,
            "progress": Silent(),
            "announce": lambda plan, pace, seconds: None,
            "tell": lambda text: None,
            **settings,
        },
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
