"""A run's conclusions as one JSON document for scripts; everything a report shows in numbers is in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from draftwise.core import (
    Comparison,
    Counters,
    Decision,
    Finding,
    Interval,
    Rollback,
    Scope,
    SingleSetting,
    UnmeasuredCell,
)
from draftwise.core.documents import to_json
from draftwise.deciding.comparison.acceptance import ACCEPTANCE_QUANTILES, DEFINITION, Acceptance
from draftwise.deciding.comparison.latency import QUANTILES, Latencies
from draftwise.deciding.conclusions import Conclusions
from draftwise.knowledge.signals import TOKENS_PER_STEP
from draftwise.reporting.conditions import describe_rollback, describe_scope, describe_unmeasured
from draftwise.reporting.estimates import find_undisturbed, hold_estimates
from draftwise.reporting.forecasts import hold_forecasts
from draftwise.reporting.promql import write_expression
from draftwise.reporting.reasons import describe_reason
from draftwise.reporting.sentences import describe_decision

__all__ = ["replace_non_finite", "summarise"]


def summarise(found: Conclusions) -> dict[str, Any]:
    """Return the document; what is unbounded or unknown becomes null.

    Names are stable: one is added, never given another meaning. A ratio is `{value, low, high}`, candidate over
    baseline, with its 95 % interval. Times are in the unit that the name ends in.

    - `decision`, `rollback`, `scope`, `unmeasured`, `missing_context`: in words; `rollback_rules`, `scope_values` and
      `unmeasured_cells`: the same as values (a rule's `metric` is a name of `draftwise.knowledge.signals`, `loads` the
      stretch (above, up to] that it is for, and `promql` its condition over vLLM's metrics). `evidence`: whether all
      context that the numbers depend on is there.
    - `comparisons`: one per workload (`all`: pooled), `condition` and candidate. `verdict`; `reason` in words, and
      `reason_code`, which stays the same from version to version; `decided_by` names the ratio that decided, which is
      `deciding`. `passes`: the repetitions that count. `speedup`, `total`,
      `ttft`, `tpot`, `throughput`: ratios. `percentiles`: ratios by `ttft`, `tpot`, `itl`, `e2e`, then `p50` to `p99`.
      `goodput`: shares of `plain` (the baseline) and `candidate` within the SLO, and their `change`. `p_value`,
      `adjusted_p` (Holm over the run), `detectable`, `prompts_needed`; `settled`: more repetitions would not change
      it; acceptance from the server's counters.
    - `crossovers`: where a candidate stops paying; `bands`: what to run at which load (`above`, `up_to`);
      `single_settings`: the best one for all loads, with its `gain` and that of the bands at each;
      `schedules`: the bands as the engine's own schedule by batch size, with `remarks`.
    - `forecasts`: speed-ups that were forecast before the run (90 % interval), beside what it measured.
    - `estimates`: `at_s` seconds after the command, with so many turns `done`, those `ahead` were expected to take
      `left_s`; the `turns` measured after that took `took_s`. `undisturbed`: the same of the turns that count.
    - `latencies`: of every arm, in milliseconds; `acceptance`: tokens per step of single requests, as quantiles and
      histogram, by temperature; `conversions`: from acceptance length to realised speed-up; `text_quality`;
      `findings` of the run as a whole.
    - `arms`, `workloads`, `request_parameters`, `context`, `thresholds`: what it rests on.
    """
    run, decision, plan = found.run, found.decision, found.run.plan
    undisturbed = find_undisturbed(run)
    document = {
        "evidence": decision.is_evidence,
        "missing_context": decision.missing_context,
        "decision": describe_decision(decision),
        "rollback": describe_rollback(decision),
        "rollback_rules": [_rollback(each) for each in decision.rollback],
        "scope": describe_scope(decision.scope),
        "scope_values": _scope(decision.scope),
        "unmeasured": describe_unmeasured(decision),
        "unmeasured_cells": [_unmeasured(each) for each in decision.unmeasured],
        "comparisons": [_comparison(each) for each in decision.comparisons],
        "crossovers": [asdict(each) for each in decision.crossovers],
        "bands": [asdict(each) for each in decision.bands],
        "single_settings": [_single_setting(each) for each in decision.single_settings],
        "schedules": _schedules(decision),
        "forecasts": [each.to_dict() for each in hold_forecasts(run.expected, decision.comparisons)],
        "estimates": [each.to_dict() for each in hold_estimates(run.estimates)],
        "undisturbed": undisturbed and undisturbed.to_dict(),
        "latencies": [_latencies(row) for row in found.latencies],
        "acceptance": [_distribution(each) for each in found.acceptances],
        "conversions": [asdict(each) | {"step_cost": each.step_cost} for each in found.conversions],
        "text_quality": [asdict(each) for each in found.quality],
        "findings": [_finding(each) for each in decision.findings],
        "arms": [{"name": arm.name, "speculative_config": arm.spec and arm.spec.to_dict()} for arm in plan.arms],
        "workloads": [
            {"name": each.name, "source": each.source, "prompts": len(each.prompts), "sha256": each.sha256}
            for each in plan.workloads
        ],
        "request_parameters": {
            "conditions": [{"label": each.label, **to_json(each)} for each in run.conditions],
            "seed": plan.seed,
            "repeats": plan.repeats,
            "warmup": plan.warmup,
        },
        "num_requests": len(run.answers),
        "thresholds": asdict(found.thresholds),
        "context": to_json(run.context),
        "definitions": {"tokens_per_step": TOKENS_PER_STEP.definition, "conversion": DEFINITION},
    }
    finished: dict[str, Any] = replace_non_finite(document)
    return finished


_RATIOS = ("speedup", "total", "ttft", "tpot", "throughput")
_PLAIN_VALUES = (
    "workload",
    "candidate",
    "num_prompts",
    "tail",
    "share_slower",
    "warm_speedup",
    "p_value",
    "adjusted_p",
    "detectable",
    "prompts_needed",
    "settled",
)


def _comparison(each: Comparison) -> dict[str, Any]:
    return {
        **{name: getattr(each, name) for name in _PLAIN_VALUES},
        **{name: _ratio(getattr(each, name)) for name in _RATIOS},
        **_acceptance(each.counters),
        "passes": each.repetitions,
        "condition": each.condition.label,
        **to_json(each.condition),
        "verdict": str(each.verdict),
        "reason": describe_reason(each.reason),
        "reason_code": None if each.reason is None else str(each.reason.code),
        "decided_by": str(each.decided_by),
        "deciding": _ratio(each.deciding),
        "percentiles": {
            name: {f"p{percentile}": _ratio(ratio) for percentile, ratio in ratios.items()}
            for name, ratios in each.percentiles.items()
        },
        "goodput": _goodput(each),
        "conversion": each.conversion,
        "equal_outputs": each.equal_outputs,
        "findings": [_finding(finding) for finding in each.findings],
    }


def _ratio(ratio: Interval | None) -> dict[str, float] | None:
    return None if ratio is None else asdict(ratio)


def _goodput(each: Comparison) -> dict[str, Any] | None:
    if each.goodput is None:
        return None
    baseline, candidate = each.goodput
    return {"plain": baseline, "candidate": candidate, "change": _ratio(each.goodput_change)}


def _acceptance(counters: Counters) -> dict[str, Any]:
    return {
        "mean_acceptance_length": counters.spec.acceptance_length,
        "acceptance_rate": counters.spec.acceptance_rate,
        "acceptance_per_position": counters.spec.rate_per_pos,
        "tokens_per_step": counters.tokens_per_step,
        "prefix_cache_hit_rate": counters.prefix_hit_rate,
        "counters": asdict(counters),
    }


def _schedules(decision: Decision) -> list[dict[str, Any]]:
    return [
        {
            "workload": each.workload,
            "temperature": each.temperature,
            "speculative_config": each.spec.to_dict(),
            "remarks": each.remarks,
        }
        for each in decision.schedules
    ]


def _single_setting(each: SingleSetting) -> dict[str, Any]:
    gains = [{"load": load, "gain": gain, "of_bands": best} for load, (gain, best) in each.gains.items()]
    return {**asdict(each), "gains": gains}


def _rollback(rule: Rollback) -> dict[str, Any]:
    return {
        **asdict(rule),
        "condition": rule.condition.label,
        "temperature": rule.condition.temperature,
        "promql": write_expression(rule),
    }


def _scope(scope: Scope) -> dict[str, Any]:
    return {**asdict(scope), "conditions": [each.label for each in scope.conditions]}


def _unmeasured(cell: UnmeasuredCell) -> dict[str, Any]:
    return {**asdict(cell), "condition": cell.condition.label}


def _latencies(row: Latencies) -> dict[str, Any]:
    percentiles = {name: _named(values, QUANTILES) for name, values in row.percentiles_ms.items()}
    return {**asdict(row), "percentiles_ms": percentiles}


def _distribution(each: Acceptance) -> dict[str, Any]:
    names = ("workload", "candidate", "temperature", "num_requests", "source")
    return {
        **{name: getattr(each, name) for name in names},
        "tokens_per_step": _named(each.quantiles, ACCEPTANCE_QUANTILES),
        "histogram": {"edges": each.edges, "counts": each.counts},
        "per_position": each.stats.rate_per_pos,
        "mean_acceptance_length": each.stats.acceptance_length,
    }


def _named(values: Sequence[float], quantiles: Sequence[int]) -> Mapping[str, float]:
    """Return values by `p50` and so on; empty where there are none."""
    return dict(zip((f"p{q}" for q in quantiles), values, strict=False))


def _finding(finding: Finding) -> dict[str, str]:
    return {"code": finding.code, "severity": str(finding.severity), "message": finding.message, "fix": finding.fix}


def replace_non_finite(value: Any) -> Any:
    """Return JSON values with infinities and NaN as None: JSON has neither."""
    if isinstance(value, Mapping):
        return {str(key): replace_non_finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
