"""How requests end, and what an earlier window or the other replicas tell where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_windows import ASKED_SPEC, HEALTHY, PLAIN_WINDOW, expect, make_baseline, make_window
from tests.support.production import PLAIN, SPEC

from draftwise.core import Diagnosis, ServerLoad, SpecConfig, Window
from draftwise.watching.diagnose import SideInfo, diagnose

USUAL = {"aborted": 0.05, "failed": 0.0, "capped": 0.3, "refused": 0.02, "broken": 0.0, "corrupted": 0.0}


def ending(shares: Mapping[str, float], *, instance: str = "a", window: Window = HEALTHY, engine: str = "0") -> Window:
    finished = window.sums.finished or 0.0
    counts = {name: share * finished for name, share in {**USUAL, **shares}.items()}
    return replace(window, instance=instance, engine=engine, sums=replace(window.sums, **counts))


def judge(
    windows: Sequence[Window], plain: Window | None = None, earlier: Window | None = None, *, curve: bool = True
) -> Sequence[Diagnosis]:
    baseline = make_baseline() if curve else replace(make_baseline(), curve_ms={})
    expected = expect(earlier=earlier, baseline=baseline)
    return diagnose({"spec": windows}, expected, () if plain is None else (plain,), SideInfo(spec=ASKED_SPEC))


ENDS = {
    "requests-fail": ("failed", 0.04),
    "requests-aborted": ("aborted", 0.3),
    "answers-capped": ("capped", 0.8),
    "refused-params": ("refused", 0.15),
    "logits-corrupted": ("corrupted", 0.01),
}


@pytest.mark.parametrize("code", ENDS)
@pytest.mark.parametrize("elsewhere", ["plain", "before", "others", "ranks"])
def test_how_requests_end_is_held_against_what_is_at_hand(code: str, elsewhere: str) -> None:
    name, share = ENDS[code]
    usual = ending({}, instance="b")
    windows = [ending({name: share}, engine="1")]
    windows += [usual, replace(usual, instance="c")] if elsewhere == "others" else []
    windows += [replace(usual, instance="a", engine=rank) for rank in "23"] if elsewhere == "ranks" else []
    plain = ending({}, instance="p", window=PLAIN_WINDOW) if elsewhere == "plain" else None
    judged = judge(windows, plain, ending({}) if elsewhere == "before" else None)
    if (code, elsewhere) == ("refused-params", "ranks"):
        assert judged == ()  # no rank counts them: those of the whole server stand with the first
        return
    (found,) = judged
    assert found.code == code
    assert found.where == ("a" if elsewhere in ("others", "ranks") else "spec")
    assert ("engine 1" in found.message) is (elsewhere == "ranks")


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize(("name", "code"), [("refused", "refused-params"), ("broken", "requests-fail")])
def test_what_a_server_counts_is_a_share_of_all_its_ranks(ranks: int, name: str, code: str) -> None:
    def serve(share: float) -> Sequence[Diagnosis]:
        """Return what is said of ranks, the first of which has all that the server counted."""
        windows = [ending({name: share * ranks if not rank else 0.0}, engine=str(rank)) for rank in range(ranks)]
        return judge([replace(each, load=ServerLoad(running=1.0)) for each in windows])

    assert serve(0.005) == ()
    (found,) = serve(0.5)
    assert (found.code, found.where, "engine" in found.message) == (code, "spec", False)


def test_errors_in_both_pools_are_errors_and_those_of_the_plain_pool_are_its_own() -> None:
    failing = ending({"broken": 0.1}, instance="p", window=PLAIN_WINDOW)
    (both,) = judge([ending({"failed": 0.1})], failing)
    assert (both.code, both.where) == ("requests-fail", "spec")
    assert "in the plain pool, 9.8%" in both.message
    (own,) = judge([ending({})], failing)
    assert (own.code, own.where) == ("requests-fail", "p")


@pytest.mark.parametrize("name", ["aborted", "capped", "refused"])
@given(share=st.floats(0.0, 1.0), replicas=st.integers(1, 4))
def test_what_was_so_before_is_no_finding(name: str, share: float, replicas: int) -> None:
    windows = [ending({name: share}, instance=f"s{i}") for i in range(replicas)]
    plain = ending({name: share}, instance="p", window=PLAIN_WINDOW)
    assert judge(windows, plain, windows[0]) == ()


def test_a_few_errors_are_no_finding() -> None:
    assert judge([ending({"failed": 0.002})]) == ()


LATER = make_window(SPEC, cache_dtype="fp8")
BEFORE = make_window(SPEC, cache_dtype="auto")


def test_without_a_curve_steps_are_held_against_an_earlier_window() -> None:
    slow = make_window(replace(SPEC, step_s=0.04))
    (found,) = judge([slow], earlier=HEALTHY, curve=False)
    assert (found.code, found.message) == (
        "step-cost-up",
        "A step takes 1.48 times as long as before, at a similar load.",
    )
    assert (
        judge([make_window(replace(SPEC, step_s=0.04, finished=6.0, running=40.0))], earlier=HEALTHY, curve=False) == ()
    )
    assert judge([make_window(replace(SPEC, step_s=0.04, prompt_tokens=5000.0))], earlier=HEALTHY, curve=False) == ()


def test_prefill_is_held_against_an_earlier_window() -> None:
    slow = replace(HEALTHY, sums=replace(HEALTHY.sums, prefill_s=3 * (HEALTHY.sums.prefill_s or 0.0)))
    assert [each.code for each in judge([slow], earlier=HEALTHY)] == ["ttft-worse"]
    assert judge([slow]) == ()


def test_a_cache_of_fewer_bits_is_named_where_acceptance_fell_with_it() -> None:
    fallen = make_window(replace(SPEC, positions=(0.3, 0.12, 0.05)), cache_dtype="fp8")
    assert judge([fallen], earlier=BEFORE)[0].code == "kv-quantized"
    assert judge([LATER], earlier=BEFORE) == ()


@pytest.mark.parametrize(("uptime_s", "codes"), [(300_000.0, ["prefix-hits-fell"]), (600.0, [])])
def test_one_replica_that_hits_little_is_named_unless_its_cache_is_new(uptime_s: float, codes: list[str]) -> None:
    cold = make_window(replace(SPEC, prefix_hits=0.1), instance="c", uptime_s=uptime_s)
    found = judge([HEALTHY, replace(HEALTHY, instance="b"), cold])
    assert [each.code for each in found] == codes
    assert all(each.where == "c" for each in found)


def test_one_replica_that_is_worse_than_the_plain_pool_is_named_and_the_pool_is_not_blamed() -> None:
    windows = [replace(HEALTHY, instance=name, uptime_s=300_000.0) for name in "abc"]
    counters = replace(windows[2].counters, prefix_hits=0)
    slow = replace(windows[2].sums, prefill_s=10 * (windows[2].sums.prefill_s or 0.0))
    for ill, code in (({"counters": counters}, "prefix-hits-fell"), ({"sums": slow}, "ttft-worse")):
        found = judge([*windows[:2], replace(windows[2], **ill)], PLAIN_WINDOW)
        assert [(each.code, each.where) for each in found if each.code in ("prefix-lost", code)] == [(code, "c")]


@pytest.mark.parametrize("others", [0, 1])
def test_servers_with_another_k_shorten_no_drafts(others: int) -> None:
    short = make_window(replace(SPEC, positions=SPEC.positions[:1]), instance="b")
    stats = replace(short.counters.spec, num_draft_tokens=short.counters.spec.num_drafts)
    found = judge([*[HEALTHY] * others, replace(short, counters=replace(short.counters, spec=stats))])
    codes = {each.code for each in found}
    assert ("k-changed" in codes, "drafts-shortened" in codes) == (True, False)
    assert not any("structured outputs" in each.fix for each in found)


@pytest.mark.parametrize(("accepted", "k", "is_own"), [(0.0, 3, True), (0.5, 3, True), (0.0, 1, True), (0.5, 1, False)])
def test_an_outlier_is_a_finding_of_its_own_unless_its_k_explains_it(accepted: float, k: int, is_own: bool) -> None:
    """All draft another number of tokens than is configured, which explains no difference between them."""
    ill = make_window(replace(SPEC, positions=tuple(accepted * each for each in SPEC.positions[:k])), instance="b")
    drafts = ill.counters.spec.num_drafts
    stats = replace(ill.counters.spec, num_draft_tokens=k * drafts)
    ill = replace(ill, counters=replace(ill.counters, spec=stats))
    asked = SideInfo(spec=SpecConfig(num_speculative_tokens=4))
    found = {each.code: each for each in diagnose({"spec": [HEALTHY, ill]}, asked=asked)}
    assert "k-changed" in found
    assert found["replica-outlier"].where == "b"
    assert (found["replica-outlier"].follows_from == "") == is_own


def test_of_a_server_with_short_drafts_its_own_k_is_told() -> None:
    def with_k(name: str, k: int, drafted: float) -> Window:
        window = make_window(replace(SPEC, positions=(0.5, 0.1, *[0.0] * (k - 2))), instance=name)
        stats = replace(window.counters.spec, num_draft_tokens=round(drafted * window.counters.spec.num_drafts))
        return replace(window, counters=replace(window.counters, spec=stats))

    asked = SideInfo(spec=SpecConfig(num_speculative_tokens=8))
    found = diagnose({"spec": [with_k("a", 4, 4), with_k("b", 8, 2)]}, asked=asked)
    assert [each.message for each in found if each.code == "drafts-shortened"] == [
        "On b, a draft has 2.0 tokens on average, but 8 are configured."
    ]


def test_what_one_replica_has_too_much_of_is_its_own() -> None:
    loads = [replace(HEALTHY.load, running=running, waiting=20.0) for running in (20.0, 20.0, 90.0)]
    windows = [replace(HEALTHY, instance=name, load=load) for name, load in zip("abc", loads, strict=True)]
    assert [each.where for each in judge(windows) if each.code == "above-crossover"] == ["c"]


@pytest.mark.parametrize("curve", [True, False])
def test_steps_that_are_as_long_as_measured_under_a_load_make_no_outlier(curve: bool) -> None:
    """A replica with a backlog runs many requests, as many of which end as elsewhere."""
    longer = (33.0 / 27.0) * 1.1
    sums = replace(HEALTHY.sums, decode_s=longer * (HEALTHY.sums.decode_s or 0.0))
    busy = replace(HEALTHY, instance="c", load=replace(HEALTHY.load, running=64.0), sums=sums)
    codes = {each.code for each in judge([HEALTHY, replace(HEALTHY, instance="b"), busy], curve=curve)}
    assert ("replica-outlier" in codes) is not curve


def test_who_has_no_request_while_others_queue_is_named() -> None:
    queueing = make_window(replace(SPEC, waiting=20.0), instance="a")
    queueing = replace(queueing, sums=replace(queueing.sums, queue_s=20 * (queueing.sums.finished or 0.0)))
    idle = make_window(replace(SPEC, steps=0.0, finished=0.0, running=0.0), instance="c")
    found = judge([queueing, replace(queueing, instance="b"), idle])[0]
    assert found.code == "queue-grew"
    assert "Send requests to c" in found.fix


def test_a_queue_is_seen_by_its_length_where_no_times_are_told() -> None:
    logged = replace(HEALTHY, sums=type(HEALTHY.sums)(), load=ServerLoad(running=1.0, waiting=14.0, kv_usage=0.76))
    (found,) = judge([logged])
    assert (found.code, found.message) == (
        "queue-grew",
        "14 requests wait for an engine that runs 1, on average. The KV cache is 76% full.",
    )
    assert judge([replace(logged, load=ServerLoad(running=30.0, waiting=6.0))]) == ()
    counted = replace(logged, sums=type(HEALTHY.sums)(finished=HEALTHY.sums.finished))
    assert [each.code for each in judge([counted])] == ["queue-grew"]


def test_a_prefix_cache_that_is_off_is_told() -> None:
    off = replace(HEALTHY, counters=replace(HEALTHY.counters, prefix_queries=0, prefix_hits=0))
    (found,) = judge([off], earlier=HEALTHY)
    assert found.code == "prefix-hits-fell"
    assert found.message.startswith("0% of the prompt tokens come from the prefix cache")
    assert judge([off], earlier=off) == ()


def test_a_server_that_only_prefills_is_no_replica_that_lost_its_flag() -> None:
    prefill = ending({"capped": 1.0, "aborted": 0.0}, instance="c", window=PLAIN_WINDOW)
    sums = replace(prefill.sums, finished_tokens=prefill.sums.finished)
    prefill = replace(prefill, pool="spec", sums=sums)
    decode = [ending({}), ending({}, instance="b")]
    assert judge([*decode, prefill]) == ()
    (failing,) = judge([*decode, replace(prefill, sums=replace(sums, failed=0.2 * (sums.finished or 0.0)))])
    assert (failing.code, failing.where) == ("requests-fail", "c")
    lost = replace(prefill, sums=replace(sums, finished_tokens=PLAIN_WINDOW.sums.finished_tokens))
    assert "partial-rollout" in {each.code for each in judge([*decode, lost])}


def test_a_plain_pool_that_is_preempted_spoils_what_is_held_against_it() -> None:
    full = make_window(replace(PLAIN, kv=0.97, preemptions=0.5), pool="plain", instance="p")
    (found,) = judge([HEALTHY], full)
    assert (found.code, found.where) == ("kv-squeeze", "p")


@pytest.mark.parametrize(("share", "codes"), [(0.02, ["kv-squeeze"]), (0.005, [])])
def test_the_cache_is_full_between_two_reads_where_the_99th_percentile_is_preempted(
    share: float, codes: list[str]
) -> None:
    peaks = make_window(replace(SPEC, kv=0.6, preemptions=share * SPEC.finished))
    assert [each.code for each in judge([peaks])] == codes


def test_without_the_number_of_requests_no_share_is_told() -> None:
    window = ending({"aborted": 0.5, "refused": 0.5, "failed": 0.5})
    assert judge([replace(window, sums=replace(window.sums, finished=None))], earlier=ending({})) == ()
