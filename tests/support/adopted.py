"""A setup that a run has adopted, as it is ordered for production."""

from dataclasses import replace

from draftwise.core import (
    ClosedLoop,
    Condition,
    Counters,
    Device,
    Expected,
    Finding,
    Relation,
    Rollback,
    RollbackBasis,
    Setup,
    SpecConfig,
    SpecStats,
)
from draftwise.deploying import Folder, RunEvidence, make_order
from draftwise.knowledge.rules import all_rules
from tests.support.production import BREAK_EVEN, CROSSOVER, MEASURED

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SETUP = Setup(
    target=MODEL,
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="H200", kind="cuda"),
    spec=SpecConfig(method="eagle3", num_speculative_tokens=3, model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
)
SPEED = Rollback(
    workload="code",
    arm="eagle3 k=3",
    metric="tokens_per_step",
    relation=Relation.BELOW,
    value=BREAK_EVEN,
    for_s=3600,
    basis=RollbackBasis.BREAK_EVEN,
    condition=Condition(load=ClosedLoop(concurrency=32)),
    loads=(0, CROSSOVER),
    measured=MEASURED,
)
LOAD = replace(
    SPEED,
    metric="requests_in_flight",
    relation=Relation.ABOVE,
    value=CROSSOVER,
    basis=RollbackBasis.BAND_END,
    loads=None,
    measured=None,
)
FOUND = "Adopt eagle3 k=3 for code: 1.39x (1.31-1.47)."
COUNTED = Counters(
    spec=SpecStats(
        num_drafts=99_000,
        num_draft_tokens=297_000,
        num_accepted_tokens=87_000,
        accepted_per_pos=(50_000, 24_750, 12_250),
    ),
    generation_tokens=187_000,
)
EVIDENCE = RunEvidence(
    run="2026-11-22",
    headline=FOUND,
    rollback=(SPEED, LOAD),
    wanted_gain=0.03,
    expected=Expected(workload="code", condition=SPEED.condition, counters=COUNTED),
)
ORDER = make_order(SETUP, evidence=EVIDENCE)
IMAGES = {"ray-serve": "rayproject/ray-llm:2.60.0-py311-cu128"}
"""Where vLLM's own image does not do."""


def limits_of(folder: Folder) -> list[Finding]:
    """Return what the platform does not grant, without what `check` warns of on every platform."""
    return [limit for limit in folder.limits if limit.code not in all_rules() and limit.code != "target-not-here"]
