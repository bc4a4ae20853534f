"""The analysis of a canary, for Argo Rollouts and Flagger: its thresholds are the decision's."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from draftwise.deploying.deployment_folder import SETUP
from draftwise.deploying.observe.promise import PROMETHEUS, Naming, Promise
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.templating import fill_part
from draftwise.setups.write import write_json

_SPREAD = 3 * 0.38
"""Three coefficients of variation of a request's acceptance: that of the mean of n requests is 0.38 / sqrt(n), as
simulated from per-prompt spreads that were seen, until the mix of traffic dominates."""
_LEAST_S, _MOST_S = 300, 3600
"""Twenty scrapes at least, and an answer within a working day."""
_DEFAULT_S = 600
_NOT_SLOWER = 1.02
"""Seconds per token over the plain pool's, from which speculation does damage."""
_TEMPLATE = "observe.yaml"
_SIDES = {"canary": "spec", "stable": "plain"}
"""Arguments of the analysis: the pool of either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisWindow:
    """The period of one reading, long enough that noise does not decide."""

    seconds: int
    requests: int
    """Minimum number of requests for a result."""


def find_window(promise: Promise) -> AnalysisWindow:
    """Return the window in which three standard deviations fit between measured value and break-even."""
    margin = 1 - promise.break_even / promise.measured
    requests = ceil((_SPREAD / margin) ** 2)
    wanted = _DEFAULT_S if promise.rate_per_s is None else requests / promise.rate_per_s
    return AnalysisWindow(seconds=60 * ceil(min(max(wanted, _LEAST_S), _MOST_S) / 60), requests=requests)


def make_analysis(order: ServiceOrder, naming: Naming, promise: Promise) -> dict[str, Any]:
    """Return the AnalysisTemplate: failure below break-even, success from the wanted gain on, else inconclusive."""
    window, least = find_window(promise), promise.worthwhile
    canary, stable = (_query_seconds_per_token(naming, window, f'pool="{{{{args.{side}}}}}"') for side in _SIDES)
    metrics = [
        {
            "metric_name": "tokens-per-step",
            "query": _query_tokens_per_step(naming, window, 'pool="{{args.canary}}"'),
            "success": f">= {least:.4g}",
            "failure": f"< {promise.break_even:.4g}",
        },
        {
            "metric_name": "seconds-per-token-beside-stable",
            "query": f"{canary} / {stable}",
            "success": f"<= {promise.break_even / least:.4g}",
            "failure": f"> {_NOT_SLOWER}",
        },
    ]
    args = {**_SIDES, "prometheus": PROMETHEUS}
    times = {"window_s": window.seconds, "delay_s": order.startup_s + window.seconds}
    found = [_fill("analysis_metric", order, **each, **times) for each in metrics]
    if order.platform.verifier:
        args |= {"canary-url": f"http://{order.service}", "stable-url": f"http://{order.service}-plain"}
        job = _fill("analysis_job", order, verifier=order.platform.verifier, setup_file=f"/setup/{SETUP}")
        found.append(job)
    pairs = [{"name": name, "value": value} for name, value in args.items()]
    return _fill("analysis", order, analysis_args=pairs, metrics=found)


def make_setup_map(order: ServiceOrder) -> dict[str, Any]:
    """Return the ConfigMap with the setup, for the job that verifies a canary."""
    return _fill("setup_map", order, setup=write_json(order.setup))


def make_metric_template(order: ServiceOrder, naming: Naming, promise: Promise) -> dict[str, Any]:
    """Return Flagger's MetricTemplate; its threshold is in a Canary (`make_canary_metric`)."""
    pods = ('namespace="{{ namespace }}"', 'pod=~"{{ target }}-[0-9a-zA-Z]+(-[0-9a-zA-Z]+)"')
    query = _query_tokens_per_step(naming, find_window(promise), *pods)
    return _fill("metric_template", order, prometheus=PROMETHEUS, query=query)


def _fill(part: str, order: ServiceOrder, **values: object) -> dict[str, Any]:
    filled: dict[str, Any] = fill_part(part, order, values, of=_TEMPLATE)
    return filled


def make_canary_metric(order: ServiceOrder, promise: Promise) -> dict[str, Any]:
    """Return the item of a Canary's `analysis.metrics` that fails below break-even."""
    name = f"{order.service}-tokens-per-step"
    return {
        "name": name,
        "templateRef": {"name": name},
        "interval": f"{find_window(promise).seconds}s",
        "thresholdRange": {"min": round(promise.break_even, 4)},
    }


def _query_tokens_per_step(naming: Naming, window: AnalysisWindow, *matchers: str) -> str:
    def grown(sample: str) -> str:
        return f"sum(increase({sample}[{window.seconds}s]))"

    generated, accepted = grown("vllm:generation_tokens_total"), grown("vllm:spec_decode_num_accepted_tokens_total")
    finished = grown("vllm:request_success_total")
    return naming.write(f"{generated} / ({generated} - {accepted} > 0) and {finished} >= {window.requests}", *matchers)


def _query_seconds_per_token(naming: Naming, window: AnalysisWindow, *matchers: str) -> str:
    def grown(sample: str) -> str:
        return f"sum(increase(vllm:{sample}[{window.seconds}s]))"

    # The first token of a request is not decoded.
    decoded = f"{grown('request_generation_tokens_sum')} - {grown('request_generation_tokens_count')}"
    least = f"and {grown('request_generation_tokens_count')} >= {window.requests}"
    return naming.write(f"({grown('request_decode_time_seconds_sum')} / ({decoded} > 0) {least})", *matchers)
