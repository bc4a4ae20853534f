"""Windows of servers that tell less than vLLM does."""

import pytest
from tests.support.watched import make_baseline

from draftwise.core import Window
from draftwise.watching.diagnose import PoolExpectation, diagnose
from draftwise.watching.watcher import find_renamed, grow, read_page
from draftwise.watching.yardstick import Yardstick

SGLANG = "sglang:generation_tokens_total{{}} {}\nsglang:num_requests_total{{}} {}\n"
LLAMA = "llamacpp:tokens_predicted_total {}\n" + "".join(
    f"llamacpp:spec_decode_num_{name}_total {{}}\n" for name in ("drafts", "draft_tokens", "accepted_tokens")
)
RAY = 'ray_vllm_generation_tokens_total{{engine="0",ReplicaId="a"}} {}\n'


def watch(before: str, after: str, pool: str = "spec") -> Window:
    first, second = (
        read_page(text, pool=pool, instance="a", at_s=at_s, clock_s=at_s)
        for at_s, text in ((0.0, before), (10.0, after))
    )
    (window,) = grow(first, second)
    return window


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SGLANG.format(1000, 10), SGLANG.format(2000, 20)),
        (LLAMA.format(1000, 0, 0, 0), LLAMA.format(2000, 0, 0, 0)),
        (LLAMA.splitlines()[0].format(1000), LLAMA.splitlines()[0].format(2000)),
        (RAY.format(1000), RAY.format(2000)),
    ],
    ids=["sglang", "llama.cpp", "an old llama.cpp", "vllm under ray's names"],
)
def test_nothing_said_of_speculation_is_not_taken_for_none(before: str, after: str) -> None:
    window = watch(before, after)
    assert window.output_tokens == 1000
    assert (window.counts_drafts, window.tokens_per_step, window.coverage) == (None, None, None)
    assert watch(before, after, pool="plain").tokens_per_step == 1.0  # the operator says so


@pytest.mark.parametrize(
    ("page", "pool", "lacks"),
    [
        (SGLANG, "spec", "is a server of SGLang, whose page does not count drafts."),
        (SGLANG, "plain", ""),
        (SGLANG + "sglang:spec_verify_calls_total {}\n", "spec", ""),
        (LLAMA.replace("{}", "0"), "spec", ""),
        (
            'trtllm_request_success_total{{model_name="m"}} {}\n',
            "spec",
            "TensorRT-LLM, whose page does not count drafts and output",
        ),
        (RAY, "spec", ""),
    ],
)
def test_a_server_that_tells_nothing_of_speculation_is_named(page: str, pool: str, lacks: str) -> None:
    look = read_page(page.format(1000, 10, 400), pool=pool, instance="a", at_s=0.0, clock_s=0.0)
    found = list(find_renamed([look]))
    assert [lacks in each.message for each in found] == ([True] if lacks else [])


def test_llama_cpp_tells_as_much_as_vllm_once_it_drafts() -> None:
    window = watch(LLAMA.format(0, 0, 0, 0), LLAMA.format(1000, 400, 1200, 580))
    assert window.counts_drafts is True
    assert window.tokens_per_step == pytest.approx(1000 / 420)
    assert (window.acceptance_length, window.mean_k) == pytest.approx((2.45, 3.0))


GAUGE = 'sglang:spec_accept_length{{dp_rank="{}"}} {}\n'


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (GAUGE.format(0, 2.9), 2.9),
        (GAUGE.format(0, 0.0), None),  # nothing was drafted since the last log line
        (GAUGE.format(0, 2.9) + GAUGE.format(1, 1.5), None),  # gauges of two engines are no total
        ("", None),
    ],
)
def test_a_gauge_of_sglang_is_told_as_it_is_and_counted_nowhere(after: str, expected: float | None) -> None:
    window = watch(SGLANG.format(1000, 10) + GAUGE.format(0, 2.0), SGLANG.format(2000, 20) + after)
    assert window.load.reported_length == expected
    assert (window.tokens_per_step, window.acceptance_length, window.counts_drafts) == (None, None, None)


VERIFIES = "sglang:spec_verify_calls_total {}\n"


@pytest.mark.parametrize(
    ("steps", "codes"),
    [
        (10_000, {"zero-acceptance", "acceptance-fell", "fell-below-break-even"}),
        (9_000, {"acceptance-fell", "fell-below-break-even"}),
        (5_300, set()),
    ],
)
def test_sglang_that_accepts_less_is_ill_though_it_counts_no_drafts(steps: int, codes: set[str]) -> None:
    window = watch(SGLANG.format(0, 0) + VERIFIES.format(0), SGLANG.format(10_100, 100) + VERIFIES.format(steps))
    expected = PoolExpectation(yardstick=Yardstick(baseline=make_baseline()))
    assert {each.code for each in diagnose({"spec": [window]}, expected)} == codes


def test_what_follows_from_counters_of_sglang_may_fall_in_one_process() -> None:
    """A request that ends before its first token counts as finished only."""
    window = watch(SGLANG.format(9000, 20) + VERIFIES.format(8000), SGLANG.format(9600, 40) + VERIFIES.format(8600))
    assert (window.output_tokens, window.counters.spec.num_accepted_tokens) == (600, 0)


def test_sglang_tells_tokens_per_step_by_its_verifications() -> None:
    window = watch(SGLANG.format(1000, 10) + VERIFIES.format(400), SGLANG.format(11000, 110) + VERIFIES.format(4400))
    assert window.tokens_per_step == pytest.approx(10000 / (100 + 4000))  # a step for each prefill
    assert (window.counts_drafts, window.coverage, window.mean_k) == (None, None, None)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (400, 400), (400, 500)])
def test_sglang_whose_steps_mostly_verify_nothing_tells_no_tokens_per_step(before: int, after: int) -> None:
    pages = (SGLANG.format(1000, 10) + VERIFIES.format(before), SGLANG.format(11000, 110) + VERIFIES.format(after))
    window = watch(*pages)
    assert (window.tokens_per_step, window.coverage, window.counters.spec.num_accepted_tokens) == (None, None, 0)
    expected = PoolExpectation(yardstick=Yardstick(baseline=make_baseline()))
    assert list(diagnose({"spec": [window]}, expected)) == []
