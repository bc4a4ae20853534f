"""Counters and gauges out of the text that real servers print."""

from dataclasses import replace

import pytest
from tests.support.spellings import SPELLINGS, respell

from draftwise.backends.exposition import (
    find_engine,
    find_unknown,
    has_spec_counters,
    parse_cache_tokens,
    parse_counters,
    parse_engines,
    parse_gauges,
    parse_load_and_counters,
)
from draftwise.core import Counters, ServerLoad, SpecStats, Sums

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


def test_the_load_is_summed_over_engines_and_the_fullest_cache_counts() -> None:
    text = VLLM + (
        'vllm:num_requests_running{engine="1",model_name="m"} 2.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5\n'
    )
    assert parse_gauges(text) == ServerLoad(running=5, waiting=0, kv_usage=0.5)
    assert parse_gauges("process_cpu_seconds_total 3.5\n") == ServerLoad()


def test_a_renamed_gauge_counts_once() -> None:
    # vLLM 0.9.2 exports both names.
    both = 'vllm:gpu_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="0"} 0.125\n'
    assert parse_gauges(both).kv_usage == 0.125
    assert parse_gauges(both.splitlines()[0]).kv_usage == 0.25


SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.28
sglang:generation_tokens_total{model_name="m"} 7557
sglang:prompt_tokens_total{model_name="m"} 8128
sglang:cached_tokens_total{cache_source="device",model_name="m"} 64
sglang:cached_tokens_total{cache_source="host",model_name="m"} 8
"""
SCHEDULERS = "".join(
    f'sglang:{name}{{dp_rank="{dp}",engine_type="unified",tp_rank="{tp}"}} {value}\n'
    for dp, tp, running, length in (
        (0, 0, 4, 2.8),
        (0, 1, 4, 2.8),
        (1, 2, 5, 1),
        (1, 3, 5, 1),
        (2, 4, 0, 2),
        (3, 6, 1, 0),
    )
    for name, value in (("num_running_reqs", running), ("spec_accept_length", length))
)
"""Two schedulers a rank that both export: one rank is idle, one has drafted nothing."""


def test_ranks_of_sglang_are_told_by_their_first_schedulers() -> None:
    load = parse_gauges(f"{SCHEDULERS}sglang:generation_tokens_total 7557\n")
    assert (load.running, load.reported_length, load.lengths) == (10, None, {"0": 2.8, "1": 1.0})


TGI = """\
tgi_batch_current_size 3
tgi_queue_size 2
tgi_request_generated_tokens_sum 400
tgi_request_skipped_tokens_sum 150
tgi_request_skipped_tokens_count 250
"""
LLAMA_CPP = """\
llamacpp:tokens_predicted_total 39080
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
"""


@pytest.mark.parametrize(
    ("text", "load", "counters"),
    [
        (
            SGLANG,
            ServerLoad(running=4, waiting=1, kv_usage=0.28),
            Counters(generation_tokens=7557, prefix_queries=8128, prefix_hits=72),
        ),
        (
            TGI,
            ServerLoad(running=3, waiting=2),
            Counters(spec=SpecStats(num_accepted_tokens=150), generation_tokens=400),
        ),
        (LLAMA_CPP, ServerLoad(running=1, waiting=0), Counters(generation_tokens=39080)),
    ],
)
def test_other_servers_are_read_as_far_as_they_tell(text: str, load: ServerLoad, counters: Counters) -> None:
    assert parse_gauges(text) == load
    assert parse_counters(text) == counters
    assert parse_load_and_counters(text) == (load, counters)


def test_damaged_and_unusual_lines_do_no_harm() -> None:
    text = (
        "vllm:num_requests_running\n"
        'vllm:num_requests_waiting{engine="0"} many\n'
        'vllm:kv_cache_usage_perc{engine="0"} NaN\n'
        'vllm:generation_tokens_total{model_name="a } b"} 5.0 1700000000000\n'
        "vllm:generation_tokens_total 2\n"
        'vllm:prefix_cache_hits_total{engine="0"'
    )
    assert parse_gauges(text) == ServerLoad()
    assert parse_counters(text) == Counters(generation_tokens=7)


def test_a_server_that_was_told_to_speculate_counts_drafts_from_the_start() -> None:
    assert has_spec_counters('vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n')
    assert not has_spec_counters(LLAMA_CPP)


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="128",kv_cache_size_tokens="7168",num_gpu_blocks="64"', 7168),
        ('block_size="16",num_gpu_blocks="100"', 1600),
        ('block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="100"', 1600),
        ('block_size="16",num_gpu_blocks="None"', None),
    ],
)
def test_the_size_of_the_cache_is_read_from_its_config(labels: str, tokens: int | None) -> None:
    assert parse_cache_tokens(f"vllm:cache_config_info{{{labels}}} 1.0\n") == tokens


def test_a_server_that_hides_its_cache_says_nothing() -> None:
    assert parse_cache_tokens(LLAMA_CPP) is None


RANKS = VLLM + (
    'vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 0.0\n'
    'vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 0.0\n'
    'vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 0.0\n'
    'vllm:num_requests_running{engine="1",model_name="m"} 2.0\n'
    'vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} 6.5\n'
    'vllm:request_decode_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 2.0\n'
    'vllm:request_generation_tokens_count{engine="0",model_name="m"} 4.0\n'
    'vllm:request_generation_tokens_sum{engine="0",model_name="m"} 190.0\n'
    'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 60.0\n'
    'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0\n'
    'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0\n'
    'vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 0.0\n'
    'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters=""} 1.7e+09\n'
    'vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="0"} 1.0\n'
)


def test_engines_of_a_page_are_read_apart() -> None:
    first, second = parse_engines(RANKS)
    assert (first.engine, second.engine) == ("0", "1")
    assert first.counters.generation_tokens == 192
    assert second.counters.generation_tokens == 8
    assert first.counters.spec.accepted_per_pos == (45, 30, 15)
    assert second.load == ServerLoad(running=2)
    assert first.sums == Sums(decode_s=6.5, finished=4, finished_tokens=190, engine_steps=60)
    assert (first.counts_drafts, second.counts_drafts) == (True, True)
    assert (first.sleeping, second.sleeping) == (False, True)
    assert (first.cache_dtype, second.cache_dtype) == ("fp8", None)
    assert first.adapters == second.adapters == {"sql": 1.7e9, "chat": 1.7e9}


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 9, "²"])
def test_labels_that_are_no_numbers_of_a_server_are_passed_over(digits: str) -> None:
    page = RANKS.replace('position="2"', f'position="{digits}"')
    assert page != RANKS
    assert parse_engines(page)[0].counters.spec.accepted_per_pos == (45, 30)
    ranks = f'sglang:spec_accept_length{{tp_rank="{digits}",dp_rank="0"}} 2.5\nsglang:generation_tokens_total 5\n'
    assert parse_engines(ranks)[0].counters.generation_tokens == 5
    assert parse_cache_tokens(f'vllm:cache_config_info{{kv_cache_size_tokens="{"9" * 5000}"}} 1.0\n') is None


def test_engines_add_up_to_the_page() -> None:
    engines = [engine.counters for engine in parse_engines(RANKS)]
    whole = parse_counters(RANKS)
    assert sum(each.generation_tokens or 0 for each in engines) == whole.generation_tokens
    assert sum((each.spec for each in engines), SpecStats()) == whole.spec


def test_a_plain_vllm_is_known_not_to_count_drafts_and_others_are_not() -> None:
    (plain,) = parse_engines('vllm:generation_tokens_total{engine="0"} 5\n')
    assert plain.counts_drafts is False
    assert [engine.counts_drafts for engine in parse_engines(SGLANG + TGI + LLAMA_CPP)] == [None]
    assert parse_engines("process_cpu_seconds_total 3.5\n") == ()


def test_llama_cpp_speculates_once_it_has_counted_a_draft() -> None:
    counters = "".join(
        f"llamacpp:spec_decode_num_{name}_total {{}}\n" for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    position = 'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 300\n'
    (never,) = parse_engines(LLAMA_CPP + counters.format(0, 0, 0))
    (drafting,) = parse_engines(LLAMA_CPP + counters.format(400, 1200, 580) + position)
    assert (never.counts_drafts, drafting.counts_drafts) == (None, True)
    assert drafting.counters.spec == SpecStats(
        num_drafts=400, num_draft_tokens=1200, num_accepted_tokens=580, accepted_per_pos=(300,)
    )


def test_lmdeploys_names_are_vllms_behind_its_own_prefix() -> None:
    whole, found = parse_counters(VLLM), parse_counters(VLLM.replace("vllm:", "lmdeploy:"))
    assert (found.spec, found.generation_tokens) == (whole.spec, whole.generation_tokens)
    (never,) = parse_engines('lmdeploy:spec_decode_num_drafts_total{engine="0"} 0\n')
    assert never.counts_drafts is None


def test_sglang_tells_accepted_tokens_by_what_its_steps_gave() -> None:
    ended = SGLANG + 'sglang:num_requests_total{model_name="m"} 57\n'
    (unknown,), (told,) = (
        parse_engines(text) for text in (ended, ended + 'sglang:spec_verify_calls_total{model_name="m"} 3000\n')
    )
    assert unknown.counters.spec.num_accepted_tokens == 0
    assert told.counters.spec == SpecStats(num_accepted_tokens=4500)  # 57 by prefill, 3000 by a step each
    assert told.counters.coverage is None


def test_names_that_an_exporter_changed_are_read() -> None:
    ray = (
        'ray_vllm_generation_tokens_total{engine="0",ReplicaId="a1",WorkerId="w"} 30\n'
        'ray_vllm_spec_decode_num_accepted_tokens{engine="0",ReplicaId="a1",WorkerId="w"} 10\n'
        'ray_vllm_generation_tokens_total{engine="0",ReplicaId="b2",WorkerId="v"} 7\n'
    )
    first, second = parse_engines(ray)
    assert (first.engine, second.engine) == ("a1 0", "b2 0")
    assert first.counters.tokens_per_step == 30 / 20
    # Ray shows a counter from its first increment on: absence is no proof of a lost flag.
    assert second.counts_drafts is None
    assert parse_counters(ray).generation_tokens == 37


def test_a_counter_that_stands_there_under_two_names_counts_once() -> None:
    text = 'ray_vllm_generation_tokens{engine="0"} 30\nray_vllm_generation_tokens_total{engine="0"} 30\n'
    assert parse_counters(text).generation_tokens == 30


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_name_in_another_spelling_is_the_same_name(spelling: str) -> None:
    read = [replace(each, is_sparse=False, told=frozenset()) for each in parse_engines(RANKS)]
    page = respell(RANKS, spelling)
    assert [replace(each, is_sparse=False, told=frozenset()) for each in parse_engines(page)] == read
    both = parse_engines(RANKS + "".join(line for line in page.splitlines(keepends=True) if line not in RANKS))
    assert [replace(each, is_sparse=False, told=frozenset()) for each in both] == read
    assert (find_engine(page), find_unknown(page)) == ("vLLM", ())


@pytest.mark.parametrize("name", ["spec_decode_drafts", "speculation_accepted", "draft_rounds"])
@pytest.mark.parametrize("prefix", ["vllm_", "otel_vllm_", "vllm.", "prod:vllm:"])
def test_a_name_about_drafts_that_no_release_has_leaves_them_unknown(prefix: str, name: str) -> None:
    line = f'{{"{prefix}{name}",engine="0"}} 7\n' if "." in prefix else f'{prefix}{name}{{engine="0"}} 7\n'
    page = 'vllm_generation_tokens{engine="0"} 5000\n' + line
    assert [each.counts_drafts for each in parse_engines(page)] == [None]
    assert find_unknown(page) == (prefix + name,)


def test_counters_of_drafts_that_are_renamed_in_part_are_unknown_and_not_zero() -> None:
    page = respell(RANKS, "underscore").replace("num_accepted_tokens", "num_taken")
    assert [(each.counts_drafts, each.counters.spec) for each in parse_engines(page)] == [(None, SpecStats())] * 2


def test_servers_on_a_collectors_page_are_read_apart() -> None:
    first, second = (respell(VLLM, "underscore").replace("{", f'{{instance="{name}:8000",') for name in "ab")
    assert [each.engine for each in parse_engines(first + second)] == ["a:8000 0", "a:8000 1", "b:8000 0", "b:8000 1"]


# The lines of TensorRT-LLM's /prometheus/metrics that matter, as tensorrt_llm/metrics/collector.py names them.
TENSORRT_LLM = """\
# HELP trtllm_generation_tokens_total Cumulative number of generation (output) tokens produced.
# TYPE trtllm_generation_tokens_total counter
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 200.0
trtllm_generation_tokens_created{engine_type="trtllm",model_name="m"} 1.78e+09
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.25
trtllm_spec_decode_num_draft_tokens_total{engine_type="trtllm",model_name="m"} 150.0
trtllm_spec_decode_num_accepted_tokens_total{engine_type="trtllm",model_name="m"} 90.0
trtllm_spec_decode_acceptance_length{engine_type="trtllm",model_name="m"} 2.8
"""


def test_tensorrt_llm_counts_tokens_and_no_drafts() -> None:
    found = parse_counters(TENSORRT_LLM)
    assert (found.spec.num_draft_tokens, found.spec.num_accepted_tokens, found.spec.num_drafts) == (150, 90, 0)
    assert found.tokens_per_step == 200 / 110
    assert parse_gauges(TENSORRT_LLM) == ServerLoad(running=3, waiting=1, kv_usage=0.25)
    assert not has_spec_counters(TENSORRT_LLM)


def test_buckets_of_a_histogram_become_what_is_slower_than_each_edge() -> None:
    name = 'vllm:request_time_per_output_token_seconds_bucket{engine="0",model_name="m",le='
    edges = {"0.01": 3, "0.025": 9, "+Inf": 10}
    page = "".join(f'{name}"{edge}"}} {count}\n' for edge, count in edges.items())
    (engine,) = parse_engines(page)
    assert engine.slower_than == ((0.0, 10.0), (0.01, 7.0), (0.025, 1.0))


ENDED = (
    'vllm:request_success_total{{engine="{0}",finished_reason="stop",model_name="m"}} 80.0\n'
    'vllm:request_success_total{{engine="{0}",finished_reason="length",model_name="m"}} 9.0\n'
    'vllm:request_success_total{{engine="{0}",finished_reason="repetition",model_name="m"}} 1.0\n'
    'vllm:request_success_total{{engine="{0}",finished_reason="abort",model_name="m"}} 4.0\n'
)
ANSWERED = (
    'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 100.0\n'
    'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 7.0\n'
    'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 2.0\n'
    'http_requests_total{handler="/v1/models",method="GET",status="4xx"} 50.0\n'
    'http_requests_total{handler="none",method="POST",status="4xx"} 900.0\n'
)


def test_requests_are_counted_by_how_they_end_and_answers_of_a_server_once() -> None:
    first, second = parse_engines(ENDED.format(0) + ANSWERED + ENDED.format(1))
    for engine in (first, second):
        assert (engine.sums.aborted, engine.sums.failed, engine.sums.capped) == (4.0, 0.0, 10.0)
    assert (first.sums.refused, first.sums.broken) == (7.0, 2.0)
    assert (second.sums.refused, second.sums.broken) == (0.0, 0.0)
    (alone,) = parse_engines(ENDED.format(0))
    assert (alone.sums.refused, alone.sums.broken) == (None, None)


def test_answers_over_http_alone_are_of_no_known_server() -> None:
    assert find_engine(ANSWERED) is None
    assert find_engine(ANSWERED + ENDED.format(0)) == "vLLM"
