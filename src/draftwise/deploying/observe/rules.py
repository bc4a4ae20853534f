"""Recording and alerting rules for Prometheus: what speculation does in production, and when somebody has to act.

All readings are quotients of sums. No quantile is among them: the first bucket of vLLM's time per output token is 10 ms
wide, so that 4.7 and 6.0 ms are the same to it. Denominators are guarded: of an idle server nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core import Rollback, Severity
from draftwise.deploying.observe.naming import Naming
from draftwise.deploying.observe.promise import (
    find_configured_k,
    find_crossover,
    find_expected_coverage,
    find_promise,
)
from draftwise.deploying.order import Order
from draftwise.knowledge.findings import get_finding
from draftwise.knowledge.signals import LOAD_SIGNALS, OUTPUT_TOKENS_PER_S, TOKENS_PER_STEP, TTFT_P99_S
from draftwise.reporting.promql import make_alert

__all__ = ["ALERTS", "READINGS", "Alert", "Constant", "RuleSet", "find_constants", "make_rules"]

_RECORD = re.compile(r"\bdraftwise:\w+(?::\w+)?")
_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "warning", Severity.INFO: "info"}
SPECULATING = 'pool!="plain"'
"""Servers without the label count as speculating: one pool needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number that production is held against."""

    record: str
    value: float | None
    lack: str
    """Why there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; its severity and texts are those of the finding."""

    name: str
    code: str
    severity: Severity
    action: str
    """What to do first: note, probe, lower-k, restart-one, drain or rollback."""
    wait: str
    """How long it must hold."""
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Groups of rules, as Prometheus reads them, and what is not among them."""

    groups: Sequence[Mapping[str, Any]]
    missing: Mapping[str, str]
    """Why an alert is not written, by its name."""


_BY = "(model_name, pool)"


def _rate(sample: str, window: str = "5m", by: str = "model_name, pool") -> str:
    """Return the growth of a counter, summed after `rate`, which knows restarts only series by series."""
    return f"sum by ({by}) (rate({sample}[{window}]))"


_DECODED = (
    f"{_rate('vllm:request_generation_tokens_sum', '15m')} - {_rate('vllm:request_generation_tokens_count', '15m')}"
)
_STEPS = "(draftwise:generated:rate5m - draftwise:accepted:rate5m > 1)"
"""Steps of sequences in a second: each emits one token more than it accepts."""
_DRAFTS = "(draftwise:drafts:rate5m > 0.2)"
_NOTHING_ACCEPTED = f"draftwise:accepted:rate5m < on {_BY} 0.002 * draftwise:drafts:rate5m"
"""Up to an accident of one token."""
_REPLICA = "model_name, pool, instance"

READINGS: Mapping[str, str] = {
    "draftwise:drafts:rate5m": _rate("vllm:spec_decode_num_drafts_total"),
    "draftwise:drafted:rate5m": _rate("vllm:spec_decode_num_draft_tokens_total"),
    "draftwise:accepted:rate5m": _rate("vllm:spec_decode_num_accepted_tokens_total"),
    "draftwise:generated:rate5m": _rate("vllm:generation_tokens_total"),
    "draftwise:tokens_per_step:5m": f"draftwise:generated:rate5m / {_STEPS}",
    "draftwise:coverage:5m": f"draftwise:drafts:rate5m / {_STEPS}",
    "draftwise:mean_k:5m": f"draftwise:drafted:rate5m / {_DRAFTS}",
    "draftwise:position_rate:5m": (
        f"{_rate('vllm:spec_decode_num_accepted_tokens_per_pos_total', by='model_name, pool, position')}"
        f" / on {_BY} group_left () {_DRAFTS}"
    ),
    "draftwise:in_flight:5m": (
        f"avg by {_BY} (sum by ({_REPLICA}) (avg_over_time(vllm:num_requests_running[5m]))"
        f" + sum by ({_REPLICA}) (avg_over_time(vllm:num_requests_waiting[5m])))"
    ),
    # All three are counted when a request ends, so that they are of the same requests.
    "draftwise:seconds_per_token:15m": (f"{_rate('vllm:request_decode_time_seconds_sum', '15m')} / ({_DECODED} > 1)"),
    "draftwise:prefix_hit_rate:30m": (
        f"{_rate('vllm:prefix_cache_hits_total', '30m')} / ({_rate('vllm:prefix_cache_queries_total', '30m')} > 10)"
    ),
    "draftwise:replica_accepted_per_draft:15m": (
        f"{_rate('vllm:spec_decode_num_accepted_tokens_total', '15m', _REPLICA)}"
        f" / ({_rate('vllm:spec_decode_num_drafts_total', '15m', _REPLICA)} > 0.2)"
    ),
}
"""Expressions by the name under which they are recorded, each after those that it reads."""


def _alert(name: str, code: str, severity: Severity, action: str, wait: str, expression: str) -> Alert:
    return Alert(name=name, code=code, severity=severity, action=action, wait=wait, expression=expression)


ALERTS: Sequence[Alert] = (
    _alert(
        "DraftwiseBelowBreakEven", "fell-below-break-even", Severity.WARNING, "rollback", "30m",
        f"draftwise:tokens_per_step:5m{{{SPECULATING}}}"
        " < on (model_name) group_left () draftwise:breakeven_tokens_per_step",
    ),
    _alert(
        "DraftwiseNotSpeculating", "spec-off", Severity.ERROR, "probe", "5m",
        f"draftwise:generated:rate5m{{{SPECULATING}}} > 1 unless on {_BY} draftwise:drafts:rate5m",
    ),
    _alert(
        "DraftwiseNoDrafts", "drafts-stopped", Severity.ERROR, "probe", "5m",
        f"draftwise:drafts:rate5m == 0 and on {_BY} draftwise:generated:rate5m > 1",
    ),
    _alert(
        "DraftwiseCoverageLost", "coverage-lost", Severity.WARNING, "note", "30m",
        "draftwise:coverage:5m < on (model_name) group_left () 0.8 * draftwise:expected_coverage"
        f" and on {_BY} draftwise:drafts:rate5m > 0",
    ),
    _alert(
        "DraftwiseZeroAcceptance", "zero-acceptance", Severity.ERROR, "drain", "2m",
        f"{_NOTHING_ACCEPTED} and on {_BY} draftwise:drafts:rate5m > 1",
    ),
    _alert(
        "DraftwiseFirstPositionDead", "zero-acceptance", Severity.ERROR, "drain", "10m",
        f'draftwise:position_rate:5m{{position="0"}} < 0.05 unless on {_BY} ({_NOTHING_ACCEPTED})',
    ),
    _alert(
        "DraftwiseTailDead", "tail-dead", Severity.INFO, "lower-k", "1h",
        f"min by {_BY} (draftwise:position_rate:5m) < 0.05"
        f' unless on {_BY} draftwise:position_rate:5m{{position="0"}} < 0.05',
    ),
    _alert(
        "DraftwiseDraftsShortened", "drafts-shortened", Severity.INFO, "note", "30m",
        "draftwise:mean_k:5m < on (model_name) group_left () 0.8 * draftwise:configured_k",
    ),
    _alert(
        "DraftwiseAboveCrossover", "above-crossover", Severity.WARNING, "lower-k", "15m",
        f"draftwise:in_flight:5m{{{SPECULATING}}} > on (model_name) group_left () draftwise:crossover_in_flight",
    ),
    _alert(
        "DraftwiseSlowerThanPlain", "slower-than-plain", Severity.ERROR, "rollback", "30m",
        f"draftwise:seconds_per_token:15m{{{SPECULATING}}}"
        ' > on (model_name) group_left () 1.02 * draftwise:seconds_per_token:15m{pool="plain"}',
    ),
    _alert(
        "DraftwisePrefixCacheLoss", "prefix-lost", Severity.WARNING, "note", "30m",
        f"draftwise:prefix_hit_rate:30m{{{SPECULATING}}}"
        ' < on (model_name) group_left () (draftwise:prefix_hit_rate:30m{pool="plain"} - 0.05)',
    ),
    _alert(
        "DraftwisePreemptions", "kv-squeeze", Severity.WARNING, "note", "10m",
        f"{_rate(f'vllm:num_preemptions_total{{{SPECULATING}}}', '10m')} > 0.05"
        f" and on {_BY} max by {_BY} (vllm:kv_cache_usage_perc) > 0.9",
    ),
    _alert(
        "DraftwiseReplicaOutlier", "replica-outlier", Severity.WARNING, "restart-one", "30m",
        f"abs(draftwise:replica_accepted_per_draft:15m / on {_BY} group_left ()"
        f" quantile by {_BY} (0.5, draftwise:replica_accepted_per_draft:15m) - 1) > 0.25",
    ),
    _alert(
        "DraftwiseTooPerfect", "too-perfect", Severity.WARNING, "probe", "30m",
        f"draftwise:accepted:rate5m / draftwise:drafted:rate5m > 0.98 and on {_BY} draftwise:drafts:rate5m > 1",
    ),
    # The start of a process is known by its target alone: the model's name comes from a gauge of the same server.
    _alert(
        "DraftwiseFadesWithUptime", "fades-with-uptime", Severity.INFO, "probe", "1h",
        f"max by {_BY} (0 * vllm:num_requests_running"
        " + on (job, instance) group_left () (time() - process_start_time_seconds)) > 6 * 3600"
        f" and on {_BY} draftwise:tokens_per_step:5m < 0.85 * max_over_time(draftwise:tokens_per_step:5m[6h])",
    ),
    # Nor does a scrape that fails name the model: the server's own gauges did, as long as it answered.
    _alert(
        "DraftwiseServerUnread", "server-unread", Severity.ERROR, "note", "10m",
        f"count by {_BY} (max_over_time(vllm:num_requests_running[1d]) and on (job, instance) up == 0)",
    ),
)  # fmt: skip

_ROLLBACK_CODES = {
    TOKENS_PER_STEP.name: "fell-below-break-even",
    OUTPUT_TOKENS_PER_S.name: "slower-than-plain",
    TTFT_P99_S.name: "ttft-damaged",
    **{signal.name: "above-crossover" for signal in LOAD_SIGNALS.values()},
}
"""The finding that a rule of the decision stands for, by the quantity that it watches."""


def make_rules(order: Order, naming: Naming) -> RuleSet:
    """Return the rules of a service: those whose metrics its release exports and whose numbers were measured."""
    constants = find_constants(order)
    lacking = {each.record: each.lack for each in constants if each.value is None}
    readings = []
    for record, expression in READINGS.items():
        if lack := _find_lack(expression, naming, lacking):
            lacking[record] = lack
        else:
            readings.append({"record": record, "expr": naming.write(expression)})
    missing = {each.name: lack for each in ALERTS if (lack := _find_lack(each.expression, naming, lacking))}
    alerts = [_write_alert(each, order, naming) for each in ALERTS if each.name not in missing]
    known = [_write_constant(each, naming) for each in constants if each.value is not None]
    rollback = [_write_rollback(rule, order, naming) for rule in order.evidence.rollback]
    found = {"constants": known, "readings": readings, "alerts": alerts, "rollback": rollback}
    prefix = f"draftwise-{order.service}"
    groups = [{"name": f"{prefix}-{name}", "interval": "30s", "rules": rules} for name, rules in found.items() if rules]
    return RuleSet(groups=groups, missing=missing)


def find_constants(order: Order) -> Sequence[Constant]:
    """Return the numbers that the rules refer to."""
    promise = find_promise(order)
    unmeasured = "no run of `draftwise decide` that adopted this setup measured {}"
    k = find_configured_k(order)
    return (
        Constant(
            record="draftwise:breakeven_tokens_per_step",
            value=None if promise is None else promise.break_even,
            lack=unmeasured.format("its break-even of tokens per step"),
        ),
        Constant(
            record="draftwise:expected_tokens_per_step",
            value=None if promise is None else promise.measured,
            lack=unmeasured.format("its tokens per step"),
        ),
        Constant(
            record="draftwise:expected_coverage",
            value=find_expected_coverage(order),
            lack="no run that adopted this setup counted its drafts, or a K schedule leaves some steps without",
        ),
        Constant(
            record="draftwise:crossover_in_flight",
            value=find_crossover(order),
            lack=unmeasured.format("beyond how many requests in flight it does not pay"),
        ),
        Constant(record="draftwise:configured_k", value=k, lack="the setup gives drafts no fixed length"),
    )


def _find_lack(expression: str, naming: Naming, lacking: Mapping[str, str]) -> str:
    """Return why a rule cannot be written; empty where it can."""
    if sample := naming.find_missing(expression):
        return f"vLLM {naming.release} does not export vllm:{sample}"
    return next((lacking[record] for record in _RECORD.findall(expression) if record in lacking), "")


def _write_constant(constant: Constant, naming: Naming) -> dict[str, Any]:
    labels = {"model_name": naming.model}
    return {"record": constant.record, "expr": f"vector({constant.value:.6g})", "labels": labels}


def _write_alert(alert: Alert, order: Order, naming: Naming) -> dict[str, Any]:
    fact = get_finding(alert.code)
    who = "{{ $labels.model_name }}{{ with $labels.pool }}, pool {{ . }}{{ end }}"
    return {
        "alert": alert.name,
        "expr": naming.write(alert.expression),
        "for": alert.wait,
        "labels": {"severity": _SEVERITIES[alert.severity], "rule": alert.code, "action": alert.action},
        "annotations": {
            "summary": f"{fact.title} ({who}).",
            "description": f"{fact.explains} {fact.fix}",
            **_cite(order),
        },
    }


def _write_rollback(rule: Rollback, order: Order, naming: Naming) -> dict[str, Any]:
    """Return the alert of a rule of the decision, on the servers that speculate."""
    alert = make_alert(rule)
    action = "rollback" if rule.switch_to is None else "switch"
    return alert | {
        "expr": naming.write(alert["expr"], SPECULATING),
        "labels": alert["labels"] | {"rule": _ROLLBACK_CODES[rule.metric], "action": action},
        "annotations": {name: _quote(text) for name, text in alert["annotations"].items()} | dict(_cite(order)),
    }


def _cite(order: Order) -> Mapping[str, str]:
    """Return what the decision said, for those who are woken up."""
    evidence = order.evidence
    return {"decision": _quote(evidence.headline), "run": evidence.run} if evidence.headline else {}


def _quote(text: str) -> str:
    """Return text that Prometheus does not take for a template."""
    return text.replace("{{", '{{ "{{" }}')
