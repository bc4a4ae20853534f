"""The files that watch a service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftwise.deploying.observe.analysis import (
    find_window,
    make_analysis,
    make_canary_metric,
    make_metric_template,
    make_setup_map,
)
from draftwise.deploying.observe.dashboard import make_dashboard
from draftwise.deploying.observe.monitor import make_pod_monitor, make_scrape_config
from draftwise.deploying.observe.naming import VLLM, Naming, name_for
from draftwise.deploying.observe.promise import Promise, find_promise
from draftwise.deploying.observe.routes import make_routes
from draftwise.deploying.observe.rules import RuleSet, make_rules
from draftwise.deploying.order import Order
from draftwise.deploying.templating import dump_yaml

__all__ = ["ANALYSIS", "FLAGGER", "Observation", "observe"]

ANALYSIS, FLAGGER = "observe/analysis.yaml", "observe/flagger.yaml"

_UNVERIFIED = "The analysis of a canary does not run `draftwise verify`: no image that holds it was named (--verifier)."
_UNJUDGED = "No analysis of a canary is written: no run of `draftwise decide` that adopted this setup gives it limits."


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is written, and what is not."""

    files: Mapping[str, tuple[str, str]]
    """What each file is for and its text, by its name."""
    missing: tuple[str, ...]
    """What a reader could look for in vain, a sentence each."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """What puts them into force, by what it does."""

    def describe(self) -> Mapping[str, str]:
        """Return what each file is for, by its name."""
        return {name: about for name, (about, _) in self.files.items()}


def observe(order: Order, *, in_cluster: bool, prefix: str = VLLM, port: int | None = None) -> Observation:
    """Return what watches a service.

    Args:
        order: of the side that speculates.
        in_cluster: whether it runs in Kubernetes, where objects tell operators what to do.
        prefix: how the names of its metrics begin, where an exporter has changed them.
        port: where they are shown; by default on the server's own.
    """
    naming = name_for(order, prefix)
    rules = make_rules(order, naming)
    files = {
        "rules.yaml": ("recording and alerting rules for Prometheus", dump_yaml({"groups": list(rules.groups)})),
        **(_watch_cluster(order, rules, port or order.port) if in_cluster else _watch_hosts(order)),
        "alertmanager.yaml": (
            "route, receivers and inhibitions for Alertmanager, to be merged into its configuration",
            _ROUTES + dump_yaml(make_routes(naming)),
        ),
        "dashboard.json": ("a dashboard for Grafana: does it pay?", make_dashboard(order, naming)),
    }
    missing = [f"The alert {name} is not written: {why}." for name, why in rules.missing.items()]
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


def _list_commands(order: Order, *, in_cluster: bool) -> Mapping[str, str]:
    if not in_cluster:
        does = "Watch it: the rules go under Prometheus' rule_files, what it scrapes under its scrape_configs"
        return {does: "promtool check rules observe/rules.yaml"}
    return {
        "Watch it, by the Prometheus operator": (
            "kubectl apply -f observe/prometheusrule.yaml -f observe/podmonitor.yaml"
        ),
        "See it, where Grafana looks for ConfigMaps with the label grafana_dashboard": (
            f"kubectl create configmap {order.service}-dashboard --from-file=observe/dashboard.json --dry-run=client "
            "-o yaml | kubectl label --local -f - grafana_dashboard=1 -o yaml | kubectl apply -f -"
        ),
    }


_ROUTES = """\
# Take over the route, the receivers and the inhibition; the files of secrets are yours to make.
"""
_SCRAPE = """\
# Put the hosts' names for these; the label `pool` tells the twins apart.
"""


def _watch_hosts(order: Order) -> dict[str, tuple[str, str]]:
    scrape = make_scrape_config((order, order.without_speculation()))
    return {"scrape.yaml": ("what Prometheus scrapes", _SCRAPE + dump_yaml(scrape))}


def _watch_cluster(order: Order, rules: RuleSet, port: int) -> dict[str, tuple[str, str]]:
    prometheus_rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": f"{order.service}-speculation", "labels": {"app.kubernetes.io/name": order.service}},
        "spec": {"groups": list(rules.groups)},
    }
    return {
        "prometheusrule.yaml": ("the same rules for the Prometheus operator", dump_yaml(prometheus_rule)),
        "podmonitor.yaml": ("what the Prometheus operator scrapes", dump_yaml(make_pod_monitor(order, port))),
    }


def _judge_canary(order: Order, naming: Naming, promise: Promise) -> dict[str, tuple[str, str]]:
    item = dump_yaml([make_canary_metric(order, promise)])
    use = "".join(f"# {line}\n" for line in ["In the Canary, under spec.analysis.metrics:", *item.splitlines()])
    fails = f"fails under {promise.break_even:.3g} tokens per step"
    needs = f"a window needs {find_window(promise).requests} requests"
    verifier = order.platform.verifier
    return {
        "analysis.yaml": (
            f"the analysis of a canary by Argo Rollouts: {fails}, passes from {promise.worthwhile:.3g}; {needs}"
            + ("; `draftwise verify` must find nothing wrong" if verifier else ""),
            dump_yaml(*([make_setup_map(order)] if verifier else []), make_analysis(order, naming, promise)),
        ),
        "flagger.yaml": (
            f"the same for Flagger: {fails}; {needs}",
            use + dump_yaml(make_metric_template(order, naming, promise)),
        ),
    }
