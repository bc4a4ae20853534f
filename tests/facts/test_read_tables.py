"""The tables by which logs and metrics are read are whole."""

import re

from draftwise.core import Counters, ServerLoad, SpecStats
from draftwise.facts.metrics import METRICS
from draftwise.facts.server_metrics import read_server_metrics
from draftwise.facts.startup_log import read_log_facts
from draftwise.facts.stored import read_data


def test_every_row_has_its_source() -> None:
    log = read_data("startup_log")
    rows = [*log["phases"], *log["values"], *read_data("server_metrics")["rows"]]
    assert all(row["source"] for row in rows)
    names = [row["name"] for row in [*log["phases"], *log["values"]]]
    assert len(names) == len(set(names))


def test_a_value_has_a_group_and_a_phase_has_none() -> None:
    assert all(mark.pattern.groups >= 1 for mark in read_log_facts().values)
    assert all(mark.pattern.groups == 0 for mark in read_log_facts().phases)
    assert read_log_facts().phases[-1].name == "ready"


def test_readings_are_fields_of_the_nouns_they_fill() -> None:
    fields = {name for noun in (Counters, SpecStats, ServerLoad) for name in noun.__dataclass_fields__}
    assert {reading for reading, _ in read_server_metrics().values()} <= fields


def test_vllm_samples_are_metrics_that_vllm_has() -> None:
    known = {metric.sample for metric in METRICS} | {"vllm:gpu_cache_usage_perc"}
    ours = {sample for sample in read_server_metrics() if sample.startswith("vllm:")}
    assert ours <= known
    assert all(re.fullmatch(r"[a-z_]+:?[a-z_]+", sample) for sample in read_server_metrics())
