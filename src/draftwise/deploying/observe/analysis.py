"""The analysis of a canary, for Argo Rollouts and Flagger: its thresholds are the decision's."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from draftwise.deploying.observe.naming import PROMETHEUS, Naming
from draftwise.deploying.observe.promise import Promise
from draftwise.deploying.order import Order
from draftwise.deploying.record import SETUP
from draftwise.setups.write import write_json

__all__ = [
    "Window",
    "find_window",
    "make_analysis",
    "make_canary_metric",
    "make_metric_template",
    "make_setup_map",
]

_SPREAD = 3 * 0.38
"""Three coefficients of variation of a request's acceptance: that of the mean of n requests is 0.38 / sqrt(n), as
simulated from per-prompt spreads that were seen, until the mix of traffic dominates."""
_LEAST_S, _MOST_S = 300, 3600
"""Twenty scrapes at least, and an answer within a working day."""
_DEFAULT_S = 600
_NOT_SLOWER = 1.02
"""Seconds per token beside the plain pool's, from which it is damage."""
_COUNT = 12
_SETUP_FOLDER = "/setup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Over what a reading is taken, so that its noise does not decide."""

    seconds: int
    requests: int
    """Fewer of them are no answer."""


def find_window(promise: Promise) -> Window:
    """Return the window in which three deviations of the noise fit between what was measured and the break-even."""
    margin = 1 - promise.break_even / promise.measured
    requests = ceil((_SPREAD / margin) ** 2)
    wanted = _DEFAULT_S if promise.rate_per_s is None else requests / promise.rate_per_s
    return Window(seconds=60 * ceil(min(max(wanted, _LEAST_S), _MOST_S) / 60), requests=requests)


def make_analysis(order: Order, naming: Naming, promise: Promise) -> dict[str, Any]:
    """Return the AnalysisTemplate: failure under the break-even, success from the wanted gain, else inconclusive."""
    window = find_window(promise)
    canary, stable = ('pool="{{args.canary}}"',), ('pool="{{args.stable}}"',)
    least = promise.worthwhile
    metrics = {
        "tokens-per-step": (
            _query_tokens_per_step(naming, window, canary),
            f"result[0] >= {least:.4g}",
            f"result[0] < {promise.break_even:.4g}",
        ),
        "seconds-per-token-beside-stable": (
            f"{_query_seconds_per_token(naming, window, canary)} / {_query_seconds_per_token(naming, window, stable)}",
            f"result[0] <= {promise.break_even / least:.4g}",
            f"result[0] > {_NOT_SLOWER}",
        ),
    }
    args = {"canary": "spec", "stable": "plain", "prometheus": PROMETHEUS}
    if order.platform.verifier:
        args |= {"canary-url": f"http://{order.service}", "stable-url": f"http://{order.service}-plain"}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": order.service, "annotations": dict(order.annotations)},
        "spec": {
            "args": [{"name": name, "value": value} for name, value in args.items()],
            "metrics": [
                *(_make_metric(name, order, window, *rest) for name, rest in metrics.items()),
                *([_make_job(order)] if order.platform.verifier else []),
            ],
        },
    }


def make_setup_map(order: Order) -> dict[str, Any]:
    """Return the ConfigMap with the setup, for the job that verifies a canary."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{order.service}-setup"},
        "data": {SETUP: write_json(order.setup)},
    }


def _make_job(order: Order) -> dict[str, Any]:
    """Return the metric that runs `draftwise verify` on the canary once: its exit code decides."""
    command = ["draftwise", "verify", "{{args.canary-url}}", "--against", "{{args.stable-url}}"]
    container = {
        "name": "verify",
        "image": order.platform.verifier,
        "command": [*command, "--setup", f"{_SETUP_FOLDER}/{SETUP}"],
        "volumeMounts": [{"name": "setup", "mountPath": _SETUP_FOLDER, "readOnly": True}],
    }
    volume = {"name": "setup", "configMap": {"name": f"{order.service}-setup"}}
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    return {
        "name": "verified",
        "initialDelay": f"{order.startup_s}s",
        "count": 1,
        "failureLimit": 0,
        "provider": {"job": {"spec": {"backoffLimit": 0, "template": {"spec": pod}}}},
    }


def _make_metric(name: str, order: Order, window: Window, query: str, success: str, failure: str) -> dict[str, Any]:
    # Without traffic there is an empty vector or NaN: neither is a success, and neither a failure.
    answered = "len(result) > 0 && !isNaN(result[0])"
    return {
        "name": name,
        "initialDelay": f"{order.startup_s + window.seconds}s",
        "interval": f"{window.seconds}s",
        "count": _COUNT,
        "failureLimit": 2,
        "inconclusiveLimit": 4,
        "consecutiveErrorLimit": 4,
        "successCondition": f"{answered} && {success}",
        "failureCondition": f"{answered} && {failure}",
        "provider": {"prometheus": {"address": "{{args.prometheus}}", "query": query}},
    }


def make_metric_template(order: Order, naming: Naming, promise: Promise) -> dict[str, Any]:
    """Return the MetricTemplate of Flagger; its threshold stands in a Canary (`make_canary_metric`)."""
    pods = ('namespace="{{ namespace }}"', 'pod=~"{{ target }}-[0-9a-zA-Z]+(-[0-9a-zA-Z]+)"')
    return {
        "apiVersion": "flagger.app/v1beta1",
        "kind": "MetricTemplate",
        "metadata": {"name": f"{order.service}-tokens-per-step", "annotations": dict(order.annotations)},
        "spec": {
            "provider": {"type": "prometheus", "address": PROMETHEUS},
            "query": _query_tokens_per_step(naming, find_window(promise), pods),
        },
    }


def make_canary_metric(order: Order, promise: Promise) -> dict[str, Any]:
    """Return the item of a Canary's `analysis.metrics` that fails under the break-even."""
    name = f"{order.service}-tokens-per-step"
    return {
        "name": name,
        "templateRef": {"name": name},
        "interval": f"{find_window(promise).seconds}s",
        "thresholdRange": {"min": round(promise.break_even, 4)},
    }


def _query_tokens_per_step(naming: Naming, window: Window, matchers: tuple[str, ...]) -> str:
    def grown(sample: str) -> str:
        return f"sum(increase({sample}[{window.seconds}s]))"

    generated, accepted = grown("vllm:generation_tokens_total"), grown("vllm:spec_decode_num_accepted_tokens_total")
    finished = grown("vllm:request_success_total")
    return naming.write(f"{generated} / ({generated} - {accepted} > 0) and {finished} >= {window.requests}", *matchers)


def _query_seconds_per_token(naming: Naming, window: Window, matchers: tuple[str, ...]) -> str:
    def grown(sample: str) -> str:
        return f"sum(increase(vllm:{sample}[{window.seconds}s]))"

    # The first token of a request is not decoded.
    decoded = f"{grown('request_generation_tokens_sum')} - {grown('request_generation_tokens_count')}"
    least = f"and {grown('request_generation_tokens_count')} >= {window.requests}"
    return naming.write(f"({grown('request_decode_time_seconds_sum')} / ({decoded} > 0) {least})", *matchers)
