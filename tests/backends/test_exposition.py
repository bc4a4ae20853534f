"""Counters out of the text that a real vLLM prints."""

from draftwise.backends.exposition import parse_counters
from draftwise.core import Counters, SpecStats

# The lines of vLLM 0.32.0 that matter, for two engines.
VLLM = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 192.0
vllm:generation_tokens_total{engine="1",model_name="m"} 8.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.2e+03
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7829e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 48.0
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 50.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 45.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.7e+09
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
"""


def test_vllm_counters_are_summed_over_engines() -> None:
    assert parse_counters(VLLM) == Counters(
        spec=SpecStats(num_drafts=50, num_draft_tokens=150, num_accepted_tokens=90, accepted_per_pos=(45, 30, 15)),
        generation_tokens=200,
        prefix_queries=1200,
        prefix_hits=48,
    )


def test_what_a_server_does_not_report_is_unknown_and_not_zero() -> None:
    assert parse_counters("process_cpu_seconds_total 3.5\n") == Counters()
    assert parse_counters("").generation_tokens is None


def test_tokens_per_step_counts_the_steps_without_a_draft() -> None:
    # 200 tokens of which 90 came as accepted drafts took 110 steps; only 50 of them verified a draft.
    found = parse_counters(VLLM)
    assert found.tokens_per_step == 200 / 110
    assert found.spec.acceptance_length == 1 + 90 / 50
    assert found.prefix_hit_rate == 0.04


def test_windows_add_up_and_unknown_stays_unknown() -> None:
    whole = parse_counters(VLLM)
    assert (whole + whole) - whole == whole
    assert (whole - Counters()).generation_tokens is None
