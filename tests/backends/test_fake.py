"""The pretend engine on virtual time: what its script says is what happens, to the last bit."""

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript, Served, find_crossover

from draftwise.backends import BrokenStream, Exchange
from draftwise.knowledge.metrics import METRICS

PLAIN = FakeScript(first_token_s=0.5, step_s=0.25)


def body(prompt: str = "hello", tokens: int = 9, **fields: Any) -> bytes:
    request = {"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "return_token_ids": True}
    return json.dumps({**request, "stream_options": {"include_usage": True}, **fields}).encode()


async def started(script: FakeScript) -> FakeBackend:
    backend = FakeBackend("a", script)
    await backend.start()
    return backend


def ask_many(script: FakeScript, *bodies: bytes, gap_s: float = 0.0) -> tuple[list[Any], FakeBackend]:
    """Return the exchanges (or errors) of requests sent so far apart, and the fake."""

    async def talk() -> tuple[list[Any], FakeBackend]:
        backend = await started(script)

        async def ask(number: int, each: bytes) -> Exchange:
            await asyncio.sleep(number * gap_s)
            return await backend.stream("/v1/completions", each)

        asking = (ask(number, each) for number, each in enumerate(bodies))
        return await asyncio.gather(*asking, return_exceptions=True), backend

    return virtual_time.run(talk())


def ask(script: FakeScript, *bodies: bytes) -> list[Served]:
    return ask_many(script, *bodies)[1].engine.served


def times(served: Served) -> list[float]:
    return [time for time, _ in served.chunks]


def events(exchange: Exchange) -> list[dict[str, Any]]:
    lines = b"".join(data for _, data in exchange.received).split(b"\n\n")
    return [json.loads(line[6:]) for line in lines if line and line != b"data: [DONE]"]


def token_ids(exchange: Exchange) -> list[int]:
    return [token for event in events(exchange) for choice in event["choices"] for token in choice["token_ids"]]


def test_first_token_steps_and_drafts_come_when_the_script_says() -> None:
    (served,) = ask(replace(PLAIN, k=3, accepted=(3, 0)), body(tokens=10))
    assert served.chunks == [(0.5, 1), (0.75, 4), (1.0, 1), (1.25, 4)]
    assert (served.arrived, served.started, served.ended, served.outcome) == (0.0, 0.0, 1.25, "length")


def test_what_a_client_receives_is_what_was_sent() -> None:
    (exchange,), backend = ask_many(PLAIN, body(tokens=3))
    assert [time for time, _ in exchange.received] == times(backend.engine.served[0]) == [0.5, 0.75, 1.0]
    *chunks, last = events(exchange)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert exchange.received[-1][1].endswith(b"data: [DONE]\n\n")


def test_prompts_take_time_by_token_and_the_prefix_cache_saves_it() -> None:
    script = replace(PLAIN, prefill_s=0.125, prefix_caching=True)
    text, other = "x" * 46, "x" * 30 + "y" * 16
    _, backend = ask_many(script, body(text), body(text), body(other), body(text, cache_salt="s"), gap_s=100)
    lengths = [times(served)[0] - served.arrived - 0.5 for served in backend.engine.served]
    # 46 letters and two quotes are 48 tokens; the last block of a prompt is never a hit, since one token is computed.
    assert lengths == [48 * 0.125, 16 * 0.125, 32 * 0.125, 48 * 0.125]
    assert (backend.engine.counters.prefix_queries, backend.engine.counters.prefix_hits) == (4 * 48, 32 + 16)


def test_a_full_batch_makes_the_others_wait_in_order() -> None:
    script = replace(PLAIN, max_running=1, max_waiting=1)
    exchanges, backend = ask_many(script, *(body(str(i), tokens=3) for i in range(3)))
    assert [served.started for served in backend.engine.served] == [0.0, 1.0]
    assert [exchange.status for exchange in exchanges] == [200, 200, 503]


@pytest.mark.parametrize("running", [1, 8, 40])
def test_steps_take_longer_when_the_batch_passes_the_knee(running: int) -> None:
    script = replace(PLAIN, row_s=0.0625, knee=16)
    for served in ask(script, *(body(str(i), tokens=5) for i in range(running))):
        assert times(served)[3] - times(served)[2] == 0.25 + 0.0625 * max(0, running - 16)


def test_speculation_loses_from_the_crossover_on() -> None:
    plain = FakeScript(step_s=0.02, row_s=1e-4, knee=64)
    speculative = replace(plain, k=3, accepted=(3, 2, 1), step_s=0.022)
    crossover = find_crossover(plain, speculative)

    def tokens_per_s(script: FakeScript, running: int) -> float:
        served = ask(script, *(body(str(i), tokens=301) for i in range(running)))
        return sum(300 / (times(each)[-1] - times(each)[0]) for each in served)

    assert 100 < crossover < 300
    for share, better in ((0.9, 1), (1.1, -1)):
        running = round(crossover * share)
        assert (tokens_per_s(speculative, running) - tokens_per_s(plain, running)) * better > 0


@pytest.mark.parametrize(
    ("speculative", "crossover"),
    [
        (FakeScript(step_s=0.004, k=1), 0),
        (FakeScript(step_s=0.005, k=1, accepted=(1,)), math.inf),
        (FakeScript(step_s=0.004, k=1, accepted=(1,), row_s=0.001, knee=8), 6),
        (FakeScript(step_s=0.004, k=1, accepted=(1,), row_s=0.001, knee=8, foreign_running=3), 3),
    ],
)
def test_the_crossover_is_known(speculative: FakeScript, crossover: float) -> None:
    """Two tokens a step pay for twice the step time: 4 ms, then 1 ms a row above 8, at 2 rows a request."""
    assert find_crossover(FakeScript(step_s=0.004), speculative) == pytest.approx(crossover)


def test_coins_stand_as_often_as_their_rates_and_less_when_hot() -> None:
    script = FakeScript(k=3, rates=(0.9, 0.6, 0.3), heat=0.5)
    for temperature, rates in ((0.0, (0.9, 0.6, 0.3)), (1.0, (0.45, 0.15, 0.0375))):
        assert script.rates_at(temperature) == pytest.approx(rates)
        bodies = (body(str(i), tokens=400, temperature=temperature) for i in range(50))
        stats = ask_many(script, *bodies)[1].engine.counters.spec
        assert stats.rate_per_pos == pytest.approx(rates, abs=0.02)
        assert stats.num_draft_tokens == 3 * stats.num_drafts


def test_chance_follows_the_seed_not_the_order_of_requests() -> None:
    script = replace(PLAIN, jitter=0.2, step_jitter=0.1, k=2, rates=(0.5, 0.2))
    one, two = body("one"), body("two")
    first, second = ask(script, one, two)
    swapped_second, swapped_first = ask(script, two, one)
    assert (first.chunks, second.chunks) == (swapped_first.chunks, swapped_second.chunks)
    assert times(first) != times(second)
    assert times(ask(replace(script, seed=1), one)[0]) != times(first)


def test_a_prompt_asked_again_is_another_draw() -> None:
    first, second = ask_many(replace(PLAIN, jitter=0.2), body(), body(), gap_s=100)[1].engine.served
    assert times(first)[0] - first.arrived != times(second)[0] - second.arrived


def test_the_same_experiment_gives_the_same_numbers() -> None:
    script = FakeScript(
        k=3, rates=(0.8, 0.5, 0.2), jitter=0.3, step_jitter=0.2, row_s=1e-4, knee=20, max_running=30, dies_at_s=2.0
    )
    bodies = [body(str(i), tokens=50 + i) for i in range(300)]
    first, second = (ask_many(script, *bodies, gap_s=0.004) for _ in range(2))
    assert first[1].engine.served == second[1].engine.served
    assert [str(each) for each in first[0]] == [str(each) for each in second[0]]
    assert {served.outcome for served in first[1].engine.served} == {"length", "abort"}


def test_drift_makes_everything_slower_with_time() -> None:
    early, late = ask_many(replace(PLAIN, drift_per_s=0.01), body(), body(), gap_s=100)[1].engine.served
    assert times(early)[0] == 0.5
    assert times(late)[0] - late.arrived == pytest.approx(0.5 * 2)


def test_nothing_is_sent_in_a_stall_and_the_steps_after_it_count_from_its_end() -> None:
    (served,) = ask(replace(PLAIN, stalls=((0.6, 2.0),)), body(tokens=4))
    assert times(served) == [0.5, 2.0, 2.25, 2.5]


def test_outputs_depend_on_the_prompt_alone() -> None:
    fast = replace(PLAIN, k=2, accepted=(2, 1), seed=9, jitter=0.1)
    (plain, other), (same, _) = (ask_many(script, body(), body("other"))[0] for script in (PLAIN, fast))
    assert token_ids(plain) == token_ids(same) != token_ids(other)
    (odd,), _ = ask_many(replace(PLAIN, differs_at=4), body())
    assert [a == b for a, b in zip(token_ids(plain), token_ids(odd), strict=True)] == [True] * 4 + [False] + [True] * 4


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": False}, {"stream_options": {}}])
def test_one_token_and_several_are_told_alike(fields: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = body(tokens=9, **{"stream_options": options, **fields})
    (one,), _ = ask_many(replace(PLAIN, model="100%"), request)
    (several,), _ = ask_many(replace(PLAIN, model="100%", k=1, accepted=(1,)), request)
    singles, pairs = ([event for event in events(each) if event["choices"]] for each in (one, several))
    assert (len(singles), len(pairs)) == (9, 5)
    for single, pair in zip(singles[2::2], pairs[1:], strict=True):
        assert {**single, "choices": []} == {**pair, "choices": []}
        assert single["choices"][0].keys() == pair["choices"][0].keys()
    texts = ["".join(event["choices"][0]["text"] for event in each) for each in (singles, pairs)]
    assert texts[0] == texts[1]


def test_outputs_may_end_by_themselves() -> None:
    served = ask(replace(PLAIN, shortest=0.5), *(body(str(i), tokens=100) for i in range(30)))
    lengths = [len(each.chunks) for each in served]
    assert 50 <= min(lengths) < 60
    assert 90 < max(lengths) <= 100
    assert {each.outcome for each in served} <= {"stop", "length"}


def test_a_request_fails_in_the_middle() -> None:
    (good, bad), backend = ask_many(replace(PLAIN, fails=(2,)), body("a"), body("b"))
    assert [served.outcome for served in backend.engine.served] == ["length", "error"]
    assert "error" not in events(good)[-1]
    assert len(token_ids(good)) == 9
    assert len(events(bad)) == 5
    assert events(bad)[-1]["error"]["message"] == "the engine has failed"


@pytest.mark.parametrize("death", [{"dies_at_s": 1.1}, {"dies_after": 2}])
def test_death_takes_everything_along(death: dict[str, Any]) -> None:
    bodies = (body("long", 99), body("short", 1), body("late"))
    (long, short, late), backend = ask_many(replace(PLAIN, **death), *bodies, gap_s=0.55)
    assert isinstance(long, BrokenStream)
    assert isinstance(short, Exchange)
    assert isinstance(late, BrokenStream)
    assert [time for time, _ in long.partial.received] == [0.5, 0.75, 1.0]
    assert backend.engine.served[0].outcome == "abort"

    async def ask_again() -> None:
        await backend.stream("/v1/completions", body())

    with pytest.raises(BrokenStream, match="the fake is dead"):
        virtual_time.run(ask_again())


def test_a_cancelled_request_leaves_its_place_to_the_next() -> None:
    async def talk() -> tuple[list[Served], list[tuple[float, bytes]]]:
        backend, received = await started(replace(PLAIN, max_running=1)), []
        asking = asyncio.ensure_future(backend.stream("/v1/completions", body("a", 99), received))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(backend.stream("/v1/completions", body("b")))
        next_one = asyncio.ensure_future(backend.stream("/v1/completions", body("c")))
        await asyncio.sleep(0.6)
        waiting.cancel()
        asking.cancel()
        await next_one
        return backend.engine.served, received

    (first, waiting, last), received = virtual_time.run(talk())
    assert (first.outcome, len(first.chunks), waiting.outcome, waiting.started) == ("abort", 1, "abort", None)
    assert last.started == 0.6
    assert len(received) == 1


def test_gauges_counters_and_histograms_are_read_as_those_of_a_server() -> None:
    script = replace(PLAIN, k=1, accepted=(1, 0), max_running=2, kv_tokens=100, foreign_running=3, version={"a": 1})
    script = replace(script, foreign_tokens_per_s=8.0)

    async def talk() -> None:
        backend = await started(script)
        bodies = [body("12345678", tokens=5) for _ in range(3)]
        asking = [asyncio.ensure_future(backend.stream("/v1/completions", each)) for each in bodies]
        await asyncio.sleep(0.6)
        load = backend.engine.batch.load
        assert (load.running, load.waiting, load.kv_usage) == (5, 1, 2 * 11 / 100)
        await asyncio.gather(*asking)
        counters = await backend.counters()
        assert counters == replace(backend.engine.counters, spec=counters.spec)
        assert counters.generation_tokens == 15 + 8 * backend.now()
        assert (counters.spec.num_drafts, counters.spec.accepted_per_pos) == (9, (3,))
        text = (await backend.client.get("/metrics")).text
        assert 'vllm:time_to_first_token_seconds_bucket{model_name="fake",engine="0",le="0.5"} 2' in text
        assert 'vllm:time_to_first_token_seconds_count{model_name="fake",engine="0"} 3' in text
        assert 'vllm:request_queue_time_seconds_sum{model_name="fake",engine="0"} 1.25' in text
        assert 'vllm:request_success_total{model_name="fake",engine="0",finished_reason="length"} 3' in text

    virtual_time.run(talk())


@pytest.mark.engine
def test_every_metric_is_one_that_vllm_has() -> None:
    from prometheus_client import parser

    engine = ask_many(replace(PLAIN, k=2), body())[1].engine
    text = engine.metrics.exposition(0, engine.batch.load)
    kinds = {family.name: family.type for family in parser.text_string_to_metric_families(text)}
    assert kinds.items() <= {row.name: row.kind for row in METRICS}.items()
    assert len(kinds) > 15


def test_the_last_chunk_tells_the_acceptance_of_its_request() -> None:
    script = replace(PLAIN, k=2, accepted=(2, 0), per_request_metrics=True)
    (exchange,), _ = ask_many(script, body(tokens=9))
    told = events(exchange)[-1]["metrics"]["speculative_decoding"]
    assert told["acceptance_histogram"] == [2, 0, 2]
    assert (told["num_spec_steps"], told["num_accepted_draft_tokens"], told["num_draft_tokens"]) == (4, 4, 8)
    assert told["mean_acceptance_length"] == 2.0


@pytest.mark.parametrize(
    ("request_body", "status"),
    [(b"{", 400), (b"[]", 400), (b"{}", 400), (b'{"prompt": ["a", "b"]}', 400), (b'{"prompt": ["a"]}', 200)],
)
def test_requests_without_one_prompt_are_refused(request_body: bytes, status: int) -> None:
    (exchange,), _ = ask_many(PLAIN, request_body)
    assert exchange.status == status


def test_answers_that_are_not_streamed_come_whole() -> None:
    (exchange,), _ = ask_many(PLAIN, body(stream=False, tokens=3))
    ((time, data),) = exchange.received
    assert time == 1.0
    assert len(json.loads(data)["choices"][0]["text"].split()) == json.loads(data)["usage"]["completion_tokens"] == 3


def test_what_is_compiled_takes_longer_by_number_and_by_size_of_the_batch() -> None:
    def paces(script: FakeScript, gap_s: float) -> list[float]:
        served = ask_many(script, *(body(str(i), tokens=3) for i in range(3)), gap_s=gap_s)[1].engine.served
        return [each.chunks[-1][0] - each.chunks[0][0] for each in served]

    assert paces(replace(PLAIN, cold=((2, 2, 3.0),)), 100) == [0.5, 1.5, 0.5]
    assert paces(replace(PLAIN, cold_sizes=4.0), 100) == [2.0, 0.5, 0.5]
    assert paces(replace(PLAIN, cold_sizes=4.0), 0) == [2.0, 2.0, 2.0]


def test_a_prompt_is_as_slow_whenever_it_is_asked() -> None:
    script = replace(PLAIN, prompt_spread=0.5)
    served = ask_many(script, body("one"), body("one"), body("two"), gap_s=100)[1].engine.served
    first, again, other = (each.chunks[-1][0] - each.chunks[0][0] for each in served)
    assert first == pytest.approx(again)
    assert first != pytest.approx(other)


def test_some_requests_are_slow_by_a_factor_of_one_or_more() -> None:
    script = replace(PLAIN, slow_requests=(0.25, 2.0))
    served = ask_many(script, *(body(str(i), tokens=2) for i in range(400)), gap_s=1000)[1].engine.served
    factors = [(each.chunks[1][0] - each.chunks[0][0]) / PLAIN.step_s for each in served]
    assert min(factors) == pytest.approx(1.0)
    assert sum(factor > 1.001 for factor in factors) / len(factors) == pytest.approx(0.25, abs=0.09)


def test_a_late_server_answers_from_its_start_on() -> None:
    backend = FakeBackend("late", replace(PLAIN, start_s=90.0, spells=((0.0, 1.0, 2.0),)))

    async def start_and_ask() -> float:
        await backend.start()
        await backend.stream("/v1/completions", body(tokens=1))
        return backend.engine.served[0].chunks[0][0]

    assert virtual_time.run(start_and_ask()) == pytest.approx(90.0 + 2 * PLAIN.first_token_s)
