"""Recording and alerting rules for Prometheus, from the rows of `templates/rules.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core import Rollback, Severity
from draftwise.deploying.observe.promise import (
    Naming,
    find_configured_k,
    find_crossover,
    find_expected_coverage,
    find_promise,
)
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.templating import read_template
from draftwise.knowledge.findings import get_finding
from draftwise.knowledge.signals import LOAD_SIGNALS, OUTPUT_TOKENS_PER_S, TOKENS_PER_STEP, TTFT_P99_S
from draftwise.reporting.promql import make_alert

_RECORD = re.compile(r"\bdraftwise:\w+(?::\w+)?")
_NAMED = ("namespace", "pool", "instance", "engine")
"""Labels by which an alert says whom it is about, after the service."""
_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "warning", Severity.INFO: "info"}
_GROUP = "namespace, service, pool, revision"
_DEAD_TAIL = 0.05
"""Accepted last positions of a draft, as a share, that `DraftwiseTailDead` is about."""
SPECULATING = 'pool!="plain"'
"""Servers without the label count as speculative, because a single pool needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number that production is compared with."""

    record: str
    value: float | None
    lack: str
    """Why the value is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; its severity and texts are those of the finding."""

    name: str
    code: str
    severity: Severity
    action: str
    """What to do first: note, probe, lower-k, restart-one, drain or rollback."""
    wait: str
    """How long it must hold, as a Prometheus duration."""
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Groups of rules in Prometheus' format, and the alerts that were left out."""

    groups: Sequence[Mapping[str, Any]]
    missing: Mapping[str, str]
    """Why an alert was left out, by its name."""
    series: tuple[int, int]
    """Maximum recorded series: (of the service with its plain pool, in addition per replica)."""


_KEPT = re.compile(r"by \(([^)]*)\)")
_POOLS = 2
_MOST_POSITIONS = 16
"""Draft positions that are counted where no length is configured."""
READINGS: Mapping[str, str] = read_template("rules.yaml")[0]["readings"]
"""Expressions by the names that they are recorded under, each after those that it uses."""
ALERTS: Sequence[Alert] = tuple(
    Alert(**{**row, "severity": Severity(row["severity"])}) for row in read_template("rules.yaml")[0]["alerts"]
)

_ROLLBACK_CODES = {
    TOKENS_PER_STEP.name: "fell-below-break-even",
    OUTPUT_TOKENS_PER_S.name: "slower-than-plain",
    TTFT_P99_S.name: "ttft-damaged",
    **{signal.name: "above-crossover" for signal in LOAD_SIGNALS.values()},
}
"""The finding that a rule of the decision stands for, by the quantity that it watches."""


def make_rules(order: ServiceOrder, naming: Naming) -> RuleSet:
    """Return the rules of a service whose metrics its release exports and whose numbers were measured."""
    constants = find_constants(order)
    lacking = {each.record: each.lack for each in constants if each.value is None}
    readings = []
    for record, expression in READINGS.items():
        if lack := _find_lack(expression, naming, lacking):
            lacking[record] = lack
        else:
            readings.append({"record": record, "expr": naming.write(expression)})
    missing = {each.name: lack for each in ALERTS if (lack := _find_lack(each.expression, naming, lacking))}
    missing |= _find_needless(order)
    alerts = [_write_alert(each, order, naming) for each in ALERTS if each.name not in missing]
    known = [_write_constant(each, naming) for each in constants if each.value is not None]
    rollback = [_write_rollback(rule, order, naming) for rule in order.evidence.rollback]
    found = {"constants": known, "readings": readings, "alerts": alerts, "rollback": rollback}
    prefix = f"draftwise-{order.service}"
    groups = [{"name": f"{prefix}-{name}", "interval": "30s", "rules": rules} for name, rules in found.items() if rules]
    return RuleSet(groups=groups, missing=missing, series=_count_series(readings, known, find_configured_k(order)))


def _count_series(
    readings: Sequence[Mapping[str, str]], known: Sequence[Mapping[str, Any]], k: int | None
) -> tuple[int, int]:
    """Return the series that rules record, by the labels that their sums keep."""
    shared, of_replica = len(known), 0
    for each in readings:
        kept = _KEPT.search(each["expr"])
        labels = kept[1] if kept else ""
        if "instance" in labels:
            of_replica += 1
        else:
            shared += (k or _MOST_POSITIONS) if "position" in labels else _POOLS
    return shared, of_replica


def find_constants(order: ServiceOrder) -> Sequence[Constant]:
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
            lack=(
                "no run that adopted this setup counted its drafts, or a K schedule leaves some steps without drafts"
            ),
        ),
        Constant(
            record="draftwise:crossover_in_flight",
            value=find_crossover(order),
            lack=unmeasured.format("the number of requests in flight up to which it pays"),
        ),
        Constant(record="draftwise:configured_k", value=k, lack="the setup sets no fixed draft length"),
    )


def _find_lack(expression: str, naming: Naming, lacking: Mapping[str, str]) -> str:
    """Return why a rule cannot be written. Empty where it can."""
    if sample := naming.find_missing(expression):
        return f"vLLM {naming.release} does not export vllm:{sample}"
    return next((lacking[record] for record in _RECORD.findall(expression) if record in lacking), "")


def _find_needless(order: ServiceOrder) -> Mapping[str, str]:
    """Return the alerts on what is normal for this service, and why it is."""
    expected, found = order.evidence.expected, dict[str, str]()
    if order.around.may_be_empty and order.platform.scale is None:
        found["DraftwiseNothingRead"] = "the source lets the service have no replica"
    rates = () if expected is None else expected.counters.spec.rate_per_pos
    if rates and rates[-1] < _DEAD_TAIL:
        found["DraftwiseTailDead"] = "the run adopted the setup with a last position that is hardly ever accepted"
    return found


def _write_constant(constant: Constant, naming: Naming) -> dict[str, Any]:
    labels = {"service": naming.service, "revision": naming.revisions[0]}
    return {"record": constant.record, "expr": f"vector({constant.value:.6g})", "labels": labels}


def _write_alert(alert: Alert, order: ServiceOrder, naming: Naming) -> dict[str, Any]:
    fact = get_finding(alert.code)
    named = (f"{{{{ with $labels.{each} }}}}, {each} {{{{ . }}}}{{{{ end }}}}" for each in _NAMED)
    who = "".join(["{{ $labels.service }}", *named])
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


def _write_rollback(rule: Rollback, order: ServiceOrder, naming: Naming) -> dict[str, Any]:
    alert = make_alert(rule)
    action = "rollback" if rule.switch_to is None else "switch"
    return alert | {
        "expr": naming.write(alert["expr"].replace("model_name", _GROUP), SPECULATING),
        "labels": alert["labels"] | {"rule": _ROLLBACK_CODES[rule.metric], "action": action},
        "annotations": {name: _quote(text) for name, text in alert["annotations"].items()} | dict(_cite(order)),
    }


def _cite(order: ServiceOrder) -> Mapping[str, str]:
    """Return what the decision said, for those who are woken up."""
    evidence = order.evidence
    return {"decision": _quote(evidence.headline), "run": evidence.run} if evidence.headline else {}


def _quote(text: str) -> str:
    """Return text that Prometheus does not take for a template."""
    return text.replace("{{", '{{ "{{" }}')
