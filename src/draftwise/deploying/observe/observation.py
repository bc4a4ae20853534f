"""Writes the files that monitor a service: rules, scraping, notifications, a dashboard, the analysis of a canary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from draftwise.deploying.observe.alert_rules import RuleSet, make_rules
from draftwise.deploying.observe.analysis import (
    find_window,
    make_analysis,
    make_canary_metric,
    make_metric_template,
    make_setup_map,
)
from draftwise.deploying.observe.promise import VLLM, Naming, Promise, find_promise, name_for
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.templating import dump_yaml, fill_part, read_template

_TEMPLATE, _DASHBOARD = "observe.yaml", "dashboard.yaml"
ANALYSIS, FLAGGER = "observe/analysis.yaml", "observe/flagger.yaml"

_GRAFANA_SCHEMA = 42
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24

_UNVERIFIED = (
    "The canary's analysis does not run `draftwise verify`, because you passed no image for it with --verifier."
)
_UNJUDGED = "There is no canary analysis: no run of `draftwise decide` that adopted this setup gives it limits."


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The files for observability, and what they lack."""

    files: Mapping[str, tuple[str, str]]
    """(purpose, text) of each file, by its name."""
    missing: tuple[str, ...]
    """What a reader might expect but is missing, one sentence each."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands that apply them, by description."""

    def describe(self) -> Mapping[str, str]:
        """Return the purpose of each file, by its name."""
        return {name: about for name, (about, _) in self.files.items()}


def observe(order: ServiceOrder, *, in_cluster: bool, prefix: str = VLLM, port: int | None = None) -> Observation:
    """Return the files that monitor a service.

    Args:
        order: order of the speculative twin.
        in_cluster: whether it runs on Kubernetes, with objects for operators.
        prefix: prefix of its metrics, if an exporter has changed it.
        port: port of its metrics; by default the server's own.
    """
    naming = name_for(order, prefix)
    rules = make_rules(order, naming)
    files = {
        "rules.yaml": (
            f"recording and alerting rules for Prometheus, at most {rules.series[0]} series and {rules.series[1]} "
            "more per replica",
            dump_yaml({"groups": list(rules.groups)}),
        ),
        **(_watch_cluster(order, rules, port or order.port) if in_cluster else _watch_hosts(order)),
        "alertmanager.yaml": (
            "a route, receivers and inhibitions to merge into your Alertmanager configuration",
            _ROUTES + _write("alertmanager", order, service_matcher=f"service={json.dumps(naming.service)}"),
        ),
        "dashboard.json": ("a Grafana dashboard: does speculation pay?", _make_dashboard(order, naming)),
    }
    missing = [f"There is no alert {name}, because {why}." for name, why in rules.missing.items()]
    promise = find_promise(order)
    if in_cluster and promise is not None:
        files |= _judge_canary(order, naming, promise)
        if not order.platform.verifier:
            missing.append(_UNVERIFIED)
    elif in_cluster:
        missing.append(_UNJUDGED)
    return Observation(
        files={f"observe/{name}": file for name, file in files.items()},
        missing=tuple(missing),
        commands=_list_commands(order, in_cluster=in_cluster),
    )


def _list_commands(order: ServiceOrder, *, in_cluster: bool) -> Mapping[str, str]:
    if not in_cluster:
        does = "Watch it: put the rules under Prometheus' rule_files, and the targets under its scrape_configs"
        return {does: "promtool check rules observe/rules.yaml"}
    return {
        "Watch it with the Prometheus operator": (
            "kubectl apply -f observe/prometheusrule.yaml -f observe/podmonitor.yaml"
        ),
        "Show the dashboard where Grafana loads ConfigMaps with the label grafana_dashboard": (
            f"kubectl create configmap {order.service}-dashboard --from-file=observe/dashboard.json --dry-run=client "
            "-o yaml | kubectl label --local -f - grafana_dashboard=1 -o yaml | kubectl apply -f -"
        ),
    }


_ROUTES = "# Merge the route, the receivers and the inhibition. You create the secret files.\n"
_SCRAPE = (
    "# Replace these with your host names. The rules select by these labels. While `rollback` is in force, give the "
    "first\n# target the pool `plain` and the second one's revision.\n"
)


def _label(order: ServiceOrder) -> dict[str, str]:
    return {
        "namespace": "default",
        "service": order.service,
        "deployment": order.name,
        "pool": order.pool,
        "revision": order.revision,
    }


def _write(part: str, order: ServiceOrder, **values: object) -> str:
    return dump_yaml(fill_part(part, order, values, of=_TEMPLATE))


def _watch_hosts(order: ServiceOrder) -> dict[str, tuple[str, str]]:
    sides = (order, order.without_speculation())
    targets = [{"targets": [f"{each.name}:{each.port}"], "labels": _label(each)} for each in sides]
    return {"scrape.yaml": ("the scrape targets for Prometheus", _SCRAPE + _write("scrape", order, targets=targets))}


def _watch_cluster(order: ServiceOrder, rules: RuleSet, port: int) -> dict[str, tuple[str, str]]:
    return {
        "prometheusrule.yaml": (
            "the same rules for the Prometheus operator",
            _write("prometheus_rule", order, groups=list(rules.groups)),
        ),
        "podmonitor.yaml": (
            "the scrape targets for the Prometheus operator",
            _write("pod_monitor", order, metrics_port=str(port)),
        ),
    }


def _judge_canary(order: ServiceOrder, naming: Naming, promise: Promise) -> dict[str, tuple[str, str]]:
    item = dump_yaml([make_canary_metric(order, promise)])
    use = "".join(f"# {line}\n" for line in ["In the Canary, under spec.analysis.metrics:", *item.splitlines()])
    fails = f"fails under {promise.break_even:.3g} tokens per step"
    needs = f"a window needs {find_window(promise).requests} requests"
    verifier = order.platform.verifier
    return {
        "analysis.yaml": (
            f"the canary analysis for Argo Rollouts: {fails}, passes from {promise.worthwhile:.3g}; {needs}"
            + ("; `draftwise verify` must find no fault" if verifier else ""),
            dump_yaml(*([make_setup_map(order)] if verifier else []), make_analysis(order, naming, promise)),
        ),
        "flagger.yaml": (
            f"the canary analysis for Flagger: {fails}; {needs}",
            use + dump_yaml(make_metric_template(order, naming, promise)),
        ),
    }


def _make_dashboard(order: ServiceOrder, naming: Naming) -> str:
    title = f"{order.service}: does speculation pay?"
    dashboard = {
        "uid": sha256(title.encode()).hexdigest()[:16],
        "title": title,
        "description": order.evidence.headline,
        "tags": ["draftwise", "vllm"],
        "schemaVersion": _GRAFANA_SCHEMA,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "annotations": {"list": list(_annotate(naming))},
        "links": [{"title": "vLLM", "type": "dashboards", "tags": ["vllm"], "asDropdown": True, "icon": "", "url": "",
                   "tooltip": "", "includeVars": False, "keepTime": True, "targetBlank": False}],
        "panels": list(_lay_out(naming)),
    }  # fmt: skip
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


def _lay_out(naming: Naming) -> Iterator[dict[str, Any]]:
    """Yield rows and panels with their places, three panels in a row."""
    number = top = 0
    for row, panels in read_template(_DASHBOARD)[0].items():
        number += 1
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row, "gridPos": place, "collapsed": False, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            left, down = index * _WIDTH % _COLUMNS, index * _WIDTH // _COLUMNS * _HEIGHT
            place = {"x": left, "y": top + down, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "gridPos": place, **_draw(panel, naming)}
        top += _HEIGHT * -(-len(panels) * _WIDTH // _COLUMNS)


def _draw(panel: Mapping[str, Any], naming: Naming) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": naming.write(query), "legendFormat": legend}
        for index, (legend, query) in enumerate(panel["queries"].items())
    ]
    return {
        "type": "timeseries",
        "title": panel["title"],
        "description": panel["about"],
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}},
        "targets": targets,
    }


def _annotate(naming: Naming) -> Iterator[dict[str, Any]]:
    alerts = f'ALERTS{{alertstate="firing",rule!="",service={json.dumps(naming.service)}}}'
    restarts = "changes(process_start_time_seconds[5m]) > 0"
    for name, expression, colour in (("Alerts", alerts, "red"), ("Restarts", naming.write(restarts), "blue")):
        yield {"name": name, "datasource": _SOURCE, "enable": True, "iconColor": colour, "expr": expression}
