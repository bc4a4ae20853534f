"""A run's conclusions as one JSON document for scripts; everything a report shows in numbers is in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from draftwise.core import Comparison, Counters, Decision, Finding, Run
from draftwise.measure.decide import TOKENS_PER_STEP
from draftwise.measure.guards import TextQuality
from draftwise.measure.latency import QUANTILES, Latencies
from draftwise.measure.thresholds import Thresholds

__all__ = ["summarise"]


def summarise(
    run: Run,
    decision: Decision,
    rows: Sequence[Latencies],
    quality: Sequence[TextQuality],
    thresholds: Thresholds,
) -> dict[str, Any]:
    """Return the document; unbounded intervals become null."""
    plan = run.plan
    document = {
        "evidence": decision.is_evidence,
        "missing_context": decision.missing_context,
        "decision": decision.sentence,
        "rollback": decision.rollback,
        "comparisons": [_comparison(each) for each in decision.comparisons],
        "latencies": [_latencies(row) for row in rows],
        "text_quality": [asdict(each) for each in quality],
        "findings": [_finding(each) for each in decision.findings],
        "arms": [{"name": arm.name, "speculative_config": arm.spec and arm.spec.to_dict()} for arm in plan.arms],
        "workloads": [
            {"name": each.name, "source": each.source, "prompts": len(each.prompts), "sha256": each.sha256}
            for each in plan.workloads
        ],
        "request_parameters": {
            "temperature": plan.temperature,
            "seed": plan.seed,
            "concurrency": plan.concurrency,
            "repeats": plan.repeats,
            "warmup": plan.warmup,
        },
        "num_requests": len(run.answers),
        "thresholds": asdict(thresholds),
        "context": run.context,
        "definitions": {"tokens_per_step": TOKENS_PER_STEP},
    }
    finite: dict[str, Any] = _finite(document)
    return finite


def _comparison(each: Comparison) -> dict[str, Any]:
    names = ("speedup", "total", "ttft", "tpot")
    ratios = {name: None if (ratio := getattr(each, name)) is None else asdict(ratio) for name in names}
    rest = ("workload", "candidate", "num_prompts", "passes", "tail", "share_slower", "warm_speedup", "reason")
    return {
        **{name: getattr(each, name) for name in rest},
        **ratios,
        **_acceptance(each.counters),
        "verdict": str(each.verdict),
        "conversion": each.conversion,
        "equal_outputs": each.equal_outputs,
        "findings": [_finding(finding) for finding in each.findings],
    }


def _acceptance(counters: Counters) -> dict[str, Any]:
    return {
        "mean_acceptance_length": counters.spec.acceptance_length,
        "acceptance_rate": counters.spec.acceptance_rate,
        "acceptance_per_position": counters.spec.rate_per_pos,
        "tokens_per_step": counters.tokens_per_step,
        "prefix_cache_hit_rate": counters.prefix_hit_rate,
        "counters": asdict(counters),
    }


def _latencies(row: Latencies) -> dict[str, Any]:
    percentiles = {
        name: dict(zip((f"p{q}" for q in QUANTILES), values, strict=False))
        for name, values in row.percentiles_ms.items()
    }
    return {**asdict(row), "percentiles_ms": percentiles}


def _finding(finding: Finding) -> dict[str, str]:
    return {"code": finding.code, "severity": str(finding.severity), "message": finding.message, "fix": finding.fix}


def _finite(value: Any) -> Any:
    """Return the value with infinities and NaN as None: JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
