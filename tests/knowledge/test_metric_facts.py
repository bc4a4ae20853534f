"""The metric rows against the /metrics text of a real vLLM 0.32.0 (ngram, k = 3, context 256, its `vllm:` families)."""

import re
from pathlib import Path

import pytest

from draftwise.knowledge.metrics import METRICS, Metric, get_metric, make_token_buckets

RECORDED = (Path(__file__).parent / "vllm_0_32_metrics.txt").read_text()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_row_is_what_vllm_exports(metric: Metric) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", RECORDED, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", RECORDED, re.MULTILINE))
    assert (kinds[metric.sample], helps[metric.sample]) == (metric.kind, metric.help)
    sample = metric.sample + ("_bucket" if metric.kind == "histogram" else "")
    labels = re.findall(rf"^{sample}{{(.*)}} ", RECORDED, re.MULTILINE)
    assert set(re.findall(r'(\w+)="', labels[0])) - {"le"} == set(metric.labels)
    if metric.kind == "histogram":
        bounds = [float(le) for line in labels for le in re.findall(r'le="([^"]+)"', line)]
        assert bounds == [*(metric.buckets or make_token_buckets(256)), float("inf")]


def test_lookup_by_name_with_or_without_prefix() -> None:
    assert get_metric("num_preemptions") is get_metric("vllm:num_preemptions")
    with pytest.raises(KeyError):
        get_metric("spec_decode_efficiency")
