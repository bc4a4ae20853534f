"""Rollback rules as PromQL: vLLM's names, restarts, idle servers, several servers, and the load that a rule is for."""

import re
from dataclasses import replace
from math import inf

import pytest
import yaml

from draftwise.core import ClosedLoop, Condition, OpenLoop, Relation, Rollback, RollbackBasis
from draftwise.knowledge.metrics import METRICS
from draftwise.knowledge.signals import SIGNALS
from draftwise.reporting.promql import write_alerts, write_expression

SPEED = Rollback(
    workload="code",
    arm="eagle3 k=3",
    metric="tokens_per_step",
    relation=Relation.BELOW,
    value=1.5123456,
    for_s=3600,
    basis=RollbackBasis.BREAK_EVEN,
    condition=Condition(load=ClosedLoop(concurrency=16), temperature=0.8),
    loads=(4, 19),
    measured=2.1,
)
IN_FLIGHT = (
    "avg by (model_name) (sum by (model_name, instance) (avg_over_time(vllm:num_requests_running[5m]))"
    " + sum by (model_name, instance) (avg_over_time(vllm:num_requests_waiting[5m])))"
)


def test_a_rule_on_tokens_per_step_holds_within_its_stretch_of_load() -> None:
    generated = "sum by (model_name) (rate(vllm:generation_tokens_total[5m]))"
    accepted = "sum by (model_name) (rate(vllm:spec_decode_num_accepted_tokens_total[5m]))"
    assert write_expression(SPEED) == (
        f"{generated} / ({generated} - {accepted} > 0) < 1.512 and {IN_FLIGHT} > 4 and {IN_FLIGHT} <= 19"
    )


@pytest.mark.parametrize(
    ("loads", "bounds"),
    [(None, []), ((0, inf), []), ((0, 4), [f"{IN_FLIGHT} <= 4"]), ((4, inf), [f"{IN_FLIGHT} > 4"])],
)
def test_only_ends_that_there_are_bound_the_load(loads, bounds) -> None:
    assert write_expression(replace(SPEED, loads=loads)).split(" and ")[1:] == bounds


def test_first_tokens_are_a_quantile_of_the_histogram() -> None:
    rule = replace(SPEED, metric="ttft_p99_s", relation=Relation.ABOVE, value=0.25, loads=None)
    assert write_expression(rule) == (
        "histogram_quantile(0.99, sum by (model_name, le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 0.25"
    )


def test_an_open_loop_is_bounded_by_its_rate() -> None:
    rule = replace(SPEED, condition=Condition(load=OpenLoop.steady(8.0)), loads=(2, 8))
    assert "sum by (model_name, instance) (rate(vllm:request_success_total[5m]))) > 2" in write_expression(rule)


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_every_signal_reads_the_samples_of_its_metrics_and_sums_after_rate(signal) -> None:
    kinds = {metric.name: metric.kind for metric in METRICS}
    samples = set(re.findall(r"vllm:\w+", signal.promql))
    suffix = {"counter": "_total", "histogram": "_bucket", "gauge": ""}
    assert samples == {f"{metric.name}{suffix[kinds[metric.name]]}" for metric in signal.metrics}
    # The sum of counters falls when one server restarts, and `rate` would take that for growth.
    assert re.search(r"rate\(sum", signal.promql) is None
    assert signal.promql.count("(") == signal.promql.count(")")


def test_the_alerts_are_a_file_that_prometheus_reads() -> None:
    load = replace(SPEED, metric="requests_in_flight", relation=Relation.ABOVE, value=19, basis=RollbackBasis.BAND_END,
                   loads=None, measured=None)  # fmt: skip
    (group,) = yaml.safe_load(write_alerts([SPEED, load]))["groups"]
    first, second = group["rules"]
    assert first["expr"] == write_expression(SPEED)
    assert (first["for"], first["labels"]["temperature"], first["labels"]["load"]) == ("1h", "0.8", "c=16")
    assert first["annotations"]["summary"] == (
        "Roll back eagle3 k=3 on code at temperature 0.8 if, for an hour, tokens per step stay under 1.51 above 4 and "
        "up to 19 concurrent requests, where the gain is gone (measured here: 2.1)."
    )
    assert second["expr"] == f"{IN_FLIGHT} > 19"
    assert "there are more than 19 concurrent requests" in second["annotations"]["summary"]
