"""Rollback rules as PromQL over vLLM's metrics, and as a file of alerting rules for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

import yaml

from draftwise.core import Rollback
from draftwise.knowledge.signals import LOAD_SIGNALS, get_signal
from draftwise.reporting.conditions import describe_rule

ALERTS = "rollback.rules.yml"
"""File in a run directory; Prometheus loads rule files by path, often `*.rules.yml`."""

_PREAMBLE = (
    "# Alerts for Prometheus, written by draftwise. Each alert says when to undo an adoption, or to replace it by "
    "another one.\n# Each applies to the named traffic on the servers that speculate. Metrics know neither "
    "temperature nor workload. Where\n# servers or traffic differ, select the metrics by labels of your own, e.g. "
    '{deployment="chat"}.\n'
)
_MINUTE, _HOUR = 60, 3600


def write_expression(rule: Rollback) -> str:
    """Return the PromQL condition that holds while a rule is broken, by model."""
    broken = f"{get_signal(rule.metric).promql} {rule.relation} {rule.value:.4g}"
    return " and ".join([broken, *_bound_load(rule)])


def _bound_load(rule: Rollback) -> list[str]:
    """Return the conditions on the load under which a rule holds."""
    place = rule.condition.place
    if rule.loads is None or place is None:
        return []
    load, (above, up_to) = LOAD_SIGNALS[place[0]].promql, rule.loads
    lower = [f"{load} > {above:.4g}"] if above else []
    return lower if isinf(up_to) else [*lower, f"{load} <= {up_to:.4g}"]


def write_alerts(rules: Sequence[Rollback]) -> str:
    """Return a file of alerting rules, one for each rule."""
    group = {"name": "draftwise-rollback", "rules": list(map(make_alert, rules))}
    text: str = yaml.safe_dump({"groups": [group]}, sort_keys=False, width=10_000, allow_unicode=True)
    return _PREAMBLE + text


def make_alert(rule: Rollback) -> dict[str, Any]:
    """Return the alerting rule of a rollback rule."""
    return {
        "alert": "SpeculationRollback" if rule.switch_to is None else "SpeculationSwitch",
        "expr": write_expression(rule),
        "for": _write_duration(rule.for_s),
        "labels": {
            "severity": "warning",
            "candidate": rule.arm,
            "workload": rule.workload,
            "temperature": f"{rule.condition.temperature:g}",
            "signal": rule.metric,
            "load": rule.condition.load.label,
            **({} if rule.switch_to is None else {"switch_to": rule.switch_to}),
        },
        "annotations": {"summary": describe_rule(rule)},
    }


def _write_duration(seconds: float) -> str:
    """Return e.g. `1h`, `10m`, `30s`."""
    for unit, name in ((_HOUR, "h"), (_MINUTE, "m")):
        if seconds % unit == 0:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s"
