"""The /metrics text and the log lines against vLLM's."""

import re
import time
from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving
from tests.support.spec_stats import stats_of

from draftwise.core import SpecStats
from draftwise.engine.engine_outputs import Delta, EngineStats
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.serve.app import StatsLog
from draftwise.serve.channel import PackedRequest
from draftwise.serve.served_metrics import ServerMetrics, Timeline

RECORDED = Path(__file__).parents[1] / "knowledge" / "vllm_0_32_metrics.txt"
NOT_HERE = ("repetition", "max_num_queued_tokens")
"""Label values of vLLM features that draftwise does not have."""


def snapshot(**given):
    zero = {field.name: 0 for field in fields(EngineStats)} | {"spec": SpecStats()}
    return EngineStats(**(zero | given))


def make_metrics(k=3, stats=None):
    return ServerMetrics(model_name="tiny", max_model_len=256, k=k, read_stats=lambda: stats or snapshot())


def series(text):
    """Every line without its value; those of the process are prometheus_client's own."""
    lines = [line if line.startswith("#") else line.rpartition(" ")[0] for line in text.splitlines()]
    lines = [line for line in lines if "process_" not in line]
    return {line for line in lines if "_created" not in line and not any(value in line for value in NOT_HERE)}


def value(text, sample):
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    assert found, sample
    return float(found[1])


def test_every_series_is_vllms_from_the_first_scrape():
    assert series(make_metrics().render().decode()) == series(RECORDED.read_text())


def test_the_start_of_the_process_is_told():
    assert 1.5e9 < value(make_metrics().render().decode(), "process_start_time_seconds") <= time.time()


def test_without_speculation_there_are_no_speculative_counters():
    text = make_metrics(k=None).render().decode()
    assert "spec_decode" not in text
    assert series(text) == {line for line in series(RECORDED.read_text()) if "spec_decode" not in line}


def test_speculative_counters_follow_the_engine_and_the_positions_never_reached_are_zero():
    spec = stats_of(drafted=2, accepted=1) + stats_of(drafted=1, accepted=1)
    text = make_metrics(stats=snapshot(spec=spec, num_waiting=4, kv_cache_usage=0.5)).render().decode()
    labels = 'engine="0",model_name="tiny"'
    assert value(text, f"vllm:spec_decode_num_drafts_total{{{labels}}}") == 2
    assert value(text, f"vllm:spec_decode_num_draft_tokens_total{{{labels}}}") == 3
    assert value(text, f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}}") == 2
    per_pos = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [value(text, f'{per_pos}{{{labels},position="{i}"}}') for i in range(3)] == [2, 0, 0]
    assert value(text, f"vllm:num_requests_waiting{{{labels}}}") == 4
    assert value(text, f"vllm:kv_cache_usage_perc{{{labels}}}") == 0.5


@pytest.mark.parametrize(("scheduled_s", "began"), [(13.0, 16.5), (None, 13.0)], ids=["told", "its first step"])
def test_intervals_of_a_request_are_vllms(scheduled_s, began):
    metrics = make_metrics()
    params = SamplingParams(max_tokens=9)
    request = PackedRequest.pack(EngineRequest(request_id="r", prompt_token_ids=[1, 2], params=params))
    timeline = Timeline(metrics, request, arrived=10.0, queued=11.0)
    for now, tokens, reason in ((17.0, [1], None), (25.0, [1, 2, 3], None), (26.0, [], None), (33.0, [4], "stop")):
        delta = Delta(request_id="r", index=0, token_ids=tokens, text="", finish_reason=reason, scheduled_s=scheduled_s)
        timeline.note_delta(delta, began=began, now=now)
    text = metrics.render().decode()

    def total(name):
        return value(text, f'vllm:{name}_sum{{engine="0",model_name="tiny"}}')

    assert total("time_to_first_token_seconds") == 7
    assert total("request_queue_time_seconds") == 2
    assert total("request_prefill_time_seconds") == 4
    assert total("request_decode_time_seconds") == 16
    assert total("request_inference_time_seconds") == 20
    assert total("e2e_request_latency_seconds") == 23
    assert total("request_time_per_output_token_seconds") == 16 / 4
    assert total("inter_token_latency_seconds") == 16
    assert value(text, 'vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"}') == 2
    assert (total("request_prompt_tokens"), total("request_generation_tokens")) == (2, 5)
    assert (total("request_params_max_tokens"), total("request_params_n")) == (9, 1)
    assert value(text, 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"}') == 1


def test_a_served_request_shows_in_the_histograms(checkpoint):
    with serving(FakeEngine(checkpoint, per_step=4, k=2)) as server:
        server.client.completions.create(model="m", prompt=["a", "b"], n=2, max_tokens=10)
        answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    labels = 'engine="0",model_name="m"'
    for name, count in {
        "time_to_first_token_seconds": 4,
        "inter_token_latency_seconds": 8,
        "e2e_request_latency_seconds": 4,
        "request_queue_time_seconds": 4,
        "request_params_n": 2,
    }.items():
        assert value(answer.text, f"vllm:{name}_count{{{labels}}}") == count
    assert value(answer.text, f"vllm:generation_tokens_total{{{labels}}}") == 40


def test_log_lines_are_vllms():
    log = StatsLog(snapshot(), k=3, device="CPU", now=0.0)
    spec = stats_of(drafted=3, accepted=2) + stats_of(drafted=3, accepted=0)
    busy = snapshot(
        num_running=2,
        num_waiting=1,
        prompt_tokens=298,
        generation_tokens=26,
        kv_cache_usage=0.125,
        prefix_cache_queries=298,
        prefix_cache_hits=149,
        spec=spec,
    )
    assert log.make_lines(busy, 10.0) == [
        "Engine 000: Avg prompt throughput: 29.8 tokens/s, Avg generation throughput: 2.6 tokens/s, Running: 2 reqs, "
        "Waiting: 1 reqs, CPU KV cache usage: 12.5%, Prefix cache hit rate: 50.0%",
        # The same drafts as in the text that vLLM 0.10.2, 0.19.1 and 0.32.0 printed.
        "SpecDecoding metrics: Mean acceptance length: 2.00, Accepted throughput: 0.20 tokens/s, "
        "Drafted throughput: 0.60 tokens/s, Accepted: 2 tokens, Drafted: 6 tokens, "
        "Per-position acceptance rate: 0.500, 0.500, 0.000, Avg Draft acceptance rate: 33.3%",
    ]


def test_the_log_is_silent_while_idle_and_about_drafts_without_drafts():
    log = StatsLog(snapshot(), k=3, device="GPU", now=0.0)
    assert log.make_lines(snapshot(), 10.0) == []
    worked = snapshot(generation_tokens=10)
    assert [line.partition(":")[0] for line in log.make_lines(worked, 20.0)] == ["Engine 000"]
    (last,) = log.make_lines(worked, 30.0)
    assert "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV" in last
    assert log.make_lines(worked, 40.0) == []
